//! A plot of each policy: the requests, what was admitted of them, and below that what was denied.

use fleetlimit_plot::Svg;

use crate::report::{PolicyReport, Report, clock};
use crate::run::Counts;
use crate::text::{counted, grouped};

const WIDTH: f64 = 800.0;
const MARGIN: f64 = 40.0;
const REQUESTS_HEIGHT: f64 = 140.0;
const DENIED_HEIGHT: f64 = 70.0;
const LINE: f64 = 18.0;
/// More minutes are added up, so that the plot of a month is no larger than that of a day.
const MOST_STEPS: u64 = 400;
/// The classes of the first and the second file.
const CLASSES: [&str; 2] = ["a", "b"];
/// Readable on a light and on a dark page, and without telling colours apart.
const STYLE: &str = "text{font:13px sans-serif;fill:#888}text.a{fill:#3b82c4}text.b{fill:#d9822b}\
    .requests{fill:#888;fill-opacity:.25}path.a,path.b{fill:none;stroke-width:1.5}\
    path.a{stroke:#3b82c4}path.b{stroke:#d9822b;stroke-dasharray:5 2}\
    .step{fill:#888;fill-opacity:0}.step:hover{fill-opacity:.3}";

pub(crate) fn svg(report: &Report) -> String {
    let mut plot = Plot { svg: Svg::default(), y: MARGIN };
    for policy in &report.policies {
        plot.policy(policy);
    }
    let size = (WIDTH + 2.0 * MARGIN, plot.y);
    plot.svg.styled(size, "Admitted and denied requests", STYLE)
}

/// The sums of some minutes.
struct Step {
    start: String,
    requests: u64,
    results: Vec<Counts>,
}

/// The steps from the first minute to the last one, and the number of minutes in each.
fn steps(policy: &PolicyReport) -> (Vec<Step>, u64) {
    let (Some(first), Some(last)) = (policy.minutes.first(), policy.minutes.last()) else {
        return (Vec::new(), 1);
    };
    let (first, last) = (first.number, last.number);
    let minutes = (last - first) / MOST_STEPS + 1;
    let unused = |number| {
        let results = vec![Counts::default(); policy.results.len()];
        Step { start: clock(number), requests: 0, results }
    };
    let mut steps: Vec<_> = (first..=last).step_by(minutes as usize).map(unused).collect();
    for minute in &policy.minutes {
        let step = &mut steps[((minute.number - first) / minutes) as usize];
        step.requests += minute.requests;
        for (sum, counts) in step.results.iter_mut().zip(&minute.results) {
            sum.admitted += counts.admitted;
            sum.denied += counts.denied;
        }
    }
    (steps, minutes)
}

struct Plot {
    svg: Svg,
    /// The position of the next line or drawing.
    y: f64,
}

impl Plot {
    fn policy(&mut self, policy: &PolicyReport) {
        let (steps, minutes) = steps(policy);
        let per = if minutes == 1 { "minute".to_owned() } else { format!("{minutes} minutes") };
        let classes: Vec<_> = policy.results.iter().map(|result| CLASSES[result.index]).collect();
        let series = |count: fn(&Counts) -> u64| {
            let of = |n: usize| steps.iter().map(|step| count(&step.results[n])).collect();
            classes.iter().enumerate().map(|(n, class)| (*class, of(n))).collect::<Vec<_>>()
        };
        let top = self.y;

        let requests: Vec<_> = steps.iter().map(|step| step.requests).collect();
        let most = requests.iter().copied().max().unwrap_or_default();
        let title = format!(
            "{}: up to {} per {per} (area), and admitted (line)",
            policy.policy,
            counted(most, "request")
        );
        self.text("", &title);
        for (result, class) in policy.results.iter().zip(&classes) {
            self.text(class, &format!("{}: {}", result.file, result.quotas.join(", ")));
        }
        let mut counts = vec![("requests", requests)];
        counts.extend(series(|counts| counts.admitted));
        self.outlines(REQUESTS_HEIGHT, most, &counts);

        let denied = series(|counts| counts.denied);
        let most = denied.iter().flat_map(|(_, counts)| counts).copied().max().unwrap_or_default();
        self.y += LINE;
        self.text("", &format!("denied: up to {} per {per}", grouped(most)));
        self.outlines(DENIED_HEIGHT, most, &denied);

        self.tooltips(policy, &steps, top);
        self.y += LINE;
        self.times(&steps);
        self.y += MARGIN;
    }

    fn text(&mut self, class: &str, text: &str) {
        self.svg.text((MARGIN, self.y), &format!("class=\"{class}\""), text);
        self.y += LINE;
    }

    /// The time at both ends.
    fn times(&mut self, steps: &[Step]) {
        let ends = [(steps.first(), MARGIN, "start"), (steps.last(), MARGIN + WIDTH, "end")];
        for (step, x, anchor) in ends {
            let start = step.map_or("", |step| &step.start);
            self.svg.text((x, self.y), &format!("text-anchor=\"{anchor}\""), start);
        }
    }

    /// Draws counts, all to one scale.
    fn outlines(&mut self, height: f64, most: u64, lines: &[(&str, Vec<u64>)]) {
        let bottom = self.y - LINE / 2.0 + height;
        for (class, counts) in lines {
            let heights = counts.iter().map(|&count| height * count as f64 / most.max(1) as f64);
            self.svg.steps(class, (MARGIN, bottom), WIDTH / counts.len() as f64, heights);
        }
        self.y = bottom;
    }

    fn tooltips(&mut self, policy: &PolicyReport, steps: &[Step], top: f64) {
        let size = (WIDTH / steps.len() as f64, self.y - top);
        for (n, Step { start, requests, results }) in steps.iter().enumerate() {
            let mut text = format!("{start}: {}", counted(*requests, "request"));
            for (result, counts) in policy.results.iter().zip(results) {
                let Counts { admitted, denied } = counts;
                text += &format!("\n{}: {admitted} admitted, {denied} denied", result.file);
            }
            self.svg.tooltip("step", (MARGIN + n as f64 * size.0, top), size, &text);
        }
    }
}
