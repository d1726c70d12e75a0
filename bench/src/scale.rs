//! The cost of a decision with 1 to 1,000,000 keys, and with 1 to 4,096 tasks.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fleetlimit_plot::{Panel, Series};

use crate::load::{Load, Measurement, Until};
use crate::rows::{Subject, names};
use crate::runs::{Figure, RunConfig, measure, median, per_second, redis_cpu};
use crate::settings::Settings;
use crate::setup::{Place, Setup};
use crate::subjects::{Baseline, BoxError, Shared, fleetlimit};

const KEYS: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
const TASKS: [u64; 7] = [1, 4, 16, 64, 256, 1_024, 4_096];
pub(crate) const COMMAND: &str = "cargo run --release --manifest-path bench/Cargo.toml --";

/// The legend and the colour of each subject.
const SERIES: [(&str, &str); 3] = [
    ("fleetlimit, through its layer", "#1a5fb4"),
    ("EVALSHA \"return 1\" per check", "#6f6f6f"),
    ("fleetlimit's script per check", "#c64600"),
];

/// A number of keys or tasks, and the measurements of each subject in the order of [`SERIES`].
struct Point {
    x: u64,
    measurements: Vec<Vec<Measurement>>,
}

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let setup = Setup::start().await?;
    let config = RunConfig {
        rounds: settings.rounds.unwrap_or(3),
        slice: settings.slice.unwrap_or(Duration::from_millis(500)),
    };
    let keys = sweep("keys", KEYS.map(|keys| (keys, 256, keys)), &setup, config).await?;
    let many_keys = TASKS.map(|tasks| (tasks, tasks, 10_000));
    let many_keys = sweep("tasks, 10,000 keys", many_keys, &setup, config).await?;
    let one_key = TASKS.map(|tasks| (tasks, tasks, 1));
    let one_key = sweep("tasks, 1 key", one_key, &setup, config).await?;

    let command = format!("{COMMAND} scale");
    draw("bench-keys.svg", &command, &[panels("256 tasks", "keys", &keys)])?;
    let many_keys = panels("10,000 keys", "tasks", &many_keys);
    let one_key = panels("one key", "tasks", &one_key);
    draw("bench-tasks.svg", &command, &[many_keys, one_key])?;
    Ok(ExitCode::SUCCESS)
}

/// Each load is `(x, tasks, keys)`.
async fn sweep(
    x_title: &str,
    loads: [(u64, u64, u64); 7],
    setup: &Setup,
    config: RunConfig,
) -> Result<Vec<Point>, BoxError> {
    let columns = SERIES.map(|(name, _)| format!("{name}: decisions/s | Redis CPU µs"));
    println!("\n| {x_title} | {} |", columns.join(" | "));
    println!("|--:|{}", "--:|".repeat(2 * SERIES.len()));
    let mut points = Vec::new();
    for (x, tasks, keys) in loads {
        let measurements = measure_subjects(tasks, keys, setup, config).await?;
        let cells = measurements.iter().map(|measurements| {
            let rate = median_of(measurements, per_second);
            format!("{rate:.0} | {:.2}", median_of(measurements, redis_cpu))
        });
        println!("| {x} | {} |", cells.collect::<Vec<_>>().join(" | "));
        points.push(Point { x, measurements });
    }
    Ok(points)
}

/// Returns the measurements of each subject, in the order of [`SERIES`].
async fn measure_subjects(
    tasks: u64,
    keys: u64,
    setup: &Setup,
    config: RunConfig,
) -> Result<Vec<Vec<Measurement>>, BoxError> {
    setup.server.command(&["FLUSHALL"]).await;
    let limiter =
        fleetlimit::limiter(fleetlimit::redis_store(&setup.server)?, fleetlimit::allow_all())?;
    let subjects = [
        Subject::new(names::REDIS, fleetlimit::layered(limiter)),
        Subject::new(names::BASELINE, Baseline::return_one(setup, Place::Local).await?),
        Subject::new(names::SHARED, Shared::new(setup).await?),
    ];
    // This creates the keys of the script per check too: both use the same ones.
    subjects[0].run(Load { tasks: 256, keys, until: Until::AllKeys }).await?;
    let mut measurements = vec![Vec::new(); subjects.len()];
    for _ in 0..config.rounds {
        for (subject, measurements) in subjects.iter().zip(&mut measurements) {
            let load = Load { tasks, keys, until: Until::Elapsed(config.slice) };
            measurements.push(measure(subject, load, setup, Place::Local).await?);
        }
    }
    Ok(measurements)
}

fn median_of(measurements: &[Measurement], figure: Figure) -> f64 {
    median(measurements.iter().map(figure).collect()).unwrap_or_default()
}

fn panels(title: &str, x: &'static str, points: &[Point]) -> [Panel; 2] {
    let panel = |y, figure: Figure| Panel {
        title: format!("{y}, {title}"),
        x,
        series: SERIES
            .iter()
            .enumerate()
            .map(|(n, &(name, color))| {
                let point = |p: &Point| (p.x as f64, median_of(&p.measurements[n], figure));
                Series { name, color, points: points.iter().map(point).collect() }
            })
            .collect(),
    };
    [panel("decisions per second", per_second), panel("Redis CPU µs per decision", redis_cpu)]
}

/// Writes a plot to `docs/`, with the command that draws it.
pub(crate) fn draw(name: &str, command: &str, panels: &[[Panel; 2]]) -> Result<(), BoxError> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    std::fs::create_dir_all(&docs)?;
    std::fs::write(docs.join(name), fleetlimit_plot::panels(command, panels))?;
    println!("\nwrote docs/{name}");
    Ok(())
}
