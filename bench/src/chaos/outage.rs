//! A plot of what the processes admit together, second by second, while Redis is killed and started again.

use std::process::ExitCode;
use std::time::Duration;

use fleetlimit_plot::Svg;
use tokio::time::{interval, sleep};

use super::fault::{Fault, Target};
use super::instance::Instance;
use super::worker::{PAUSE, TASKS_ON_THE_KEY};
use super::{INSTANCES, RATE, SETTLE, Section, begin, end, section};
use crate::subjects::BoxError;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/outage.svg");
const COMMAND: &str = "make plots";
/// In seconds: when Redis is killed, when it starts again, and the end.
const KILLED: u32 = 8;
const BACK: u32 = 20;
const END: u32 = 30;
const KEY: &str = "key";

const SIZE: (f64, f64) = (880.0, 300.0);
/// The margins: left, top, right and bottom.
const MARGIN: (f64, f64, f64, f64) = (48.0, 88.0, 22.0, 46.0);
const MOST: f64 = 75.0;
const COLORS: [&str; INSTANCES] = ["#1f5fa8", "#5e93cc", "#a9c8e8"];

pub(crate) async fn run() -> Result<ExitCode, BoxError> {
    let target = Target::start().await;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(Instance::start(&target.url())?);
    }
    // Uses up the burst, too.
    section(&mut instances, KEY, SETTLE).await?;
    let fault = async {
        sleep(Duration::from_secs(KILLED.into())).await;
        Fault::Killed.happen_to_redis(&target, Duration::from_secs((BACK - KILLED).into())).await;
    };
    let (seconds, ()) = tokio::join!(seconds(&mut instances), fault);
    let seconds = seconds?;
    for (second, section) in seconds.iter().enumerate() {
        let admitted: Vec<_> = section.reports.iter().map(|report| report.admitted).collect();
        println!("{second:>2} s: {} {admitted:?}", admitted.iter().sum::<u64>());
    }
    std::fs::write(FILE, draw(&seconds))?;
    println!("wrote {FILE}");
    Ok(ExitCode::SUCCESS)
}

async fn seconds(instances: &mut [Instance]) -> Result<Vec<Section>, BoxError> {
    let (mut seconds, mut tick) = (Vec::new(), interval(Duration::from_secs(1)));
    tick.tick().await;
    for _ in 0..END {
        let start = begin(instances, KEY).await?;
        tick.tick().await;
        seconds.push(end(instances, start).await?.exact);
    }
    Ok(seconds)
}

fn draw(seconds: &[Section]) -> String {
    let (from, to) = (MARGIN.0, SIZE.0 - MARGIN.2);
    let (high, low) = (MARGIN.1, SIZE.1 - MARGIN.3);
    let x = |second: u32| from + (to - from) * f64::from(second) / f64::from(END);
    let y = |permits: f64| low - (low - high) * permits / MOST;
    let mut svg = Svg::default();
    let title =
        format!("Admitted requests per second: three processes, one limit of {RATE} per second");
    svg.text((20.0, 26.0), r#"font-weight="600" font-size="14""#, &title);
    let demand = (INSTANCES as u64 * TASKS_ON_THE_KEY) as f64 / PAUSE.as_secs_f64();
    let note = format!("{COMMAND}: each color is a process; {demand} requests per second arrive");
    svg.text((20.0, 46.0), "", &note);

    let middle = (high + low) / 2.0;
    svg.line("#f1f1f1", low - high, &[(x(KILLED), middle), (x(BACK), middle)]);
    let killed = "Redis is killed: each process enforces its share";
    for (second, text) in [(KILLED, killed), (BACK, "Redis is back, and empty")] {
        svg.line("#888", 1.0, &[(x(second), high - 20.0), (x(second), low)]);
        svg.text((x(second) + 6.0, high - 9.0), "", text);
    }
    for permits in [0.0, 25.0, 50.0, 75.0] {
        svg.line("#ddd", 1.0, &[(from, y(permits)), (to, y(permits))]);
        svg.text((from - 8.0, y(permits) + 4.0), r#"text-anchor="end""#, &permits.to_string());
    }
    for (second, section) in (0..).zip(seconds) {
        let (middle, mut below) = ((x(second) + x(second + 1)) / 2.0, 0.0);
        for (report, color) in section.reports.iter().zip(COLORS) {
            let above = below + report.admitted as f64;
            svg.line(color, x(1) - x(0) - 4.0, &[(middle, y(below)), (middle, y(above))]);
            below = above;
        }
    }
    svg.line("#d1495b", 2.0, &[(from, y(RATE)), (to, y(RATE))]);
    svg.text((to, y(RATE) - 6.0), r##"text-anchor="end" fill="#d1495b""##, "limit");
    for second in (0..=END).step_by(5) {
        svg.text((x(second), low + 20.0), r#"text-anchor="middle""#, &format!("{second} s"));
    }
    svg.on_white(SIZE)
}
