//! A plot of each minute: admitted requests, and denied ones above them.

use std::fmt::Write;

use super::report::{Minute, PolicyReport, Report};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 160.0;
const MARGIN: f64 = 40.0;
/// Readable on a light and on a dark page, and without telling red from green.
const STYLE: &str =
    "text{font:13px sans-serif;fill:#888}.admitted{fill:#3b82c4}.denied{fill:#e08e2b}";

pub(super) fn svg(report: &Report) -> String {
    let panels = report.policies.len() as f64;
    let (width, height) = (WIDTH + 2.0 * MARGIN, panels * (HEIGHT + 2.0 * MARGIN));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>Admitted and denied requests per minute</title><style>{STYLE}</style>\n"
    );
    for (index, policy) in report.policies.iter().enumerate() {
        panel(policy, index as f64 * (HEIGHT + 2.0 * MARGIN) + MARGIN, &mut svg);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Writing to a string cannot fail.
fn panel(policy: &PolicyReport, top: f64, svg: &mut String) {
    let minutes = &policy.minutes;
    let (Some(first), Some(last)) = (minutes.first(), minutes.last()) else { return };
    let span = (last.number - first.number + 1) as f64;
    let most = minutes.iter().map(|minute| minute.admitted + minute.denied).max().unwrap_or(1);
    let _ = writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{}\">{}: at most {most} requests per minute</text>",
        top - 8.0,
        policy.policy
    );
    let width = WIDTH / span;
    let mut bar = |minute: &Minute, class: &str, from: u64, count: u64| {
        let scale = HEIGHT / most as f64;
        let x = MARGIN + (minute.number - first.number) as f64 * width;
        let y = top + HEIGHT - (from + count) as f64 * scale;
        let height = count as f64 * scale;
        if count > 0 {
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
                 height=\"{height:.2}\"><title>{}: {count} {class}</title></rect>",
                minute.start
            );
        }
    };
    for minute in minutes {
        bar(minute, "admitted", 0, minute.admitted);
        bar(minute, "denied", minute.admitted, minute.denied);
    }
    let bottom = top + HEIGHT + 16.0;
    let right = MARGIN + WIDTH;
    let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{bottom}\">{}</text>", first.start);
    let _ = writeln!(
        svg,
        "<text x=\"{right}\" y=\"{bottom}\" text-anchor=\"end\">{}</text>",
        last.start
    );
}
