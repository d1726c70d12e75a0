//! What a decision costs as the keys grow from 1 to 1,000,000, and the tasks from 1 to 4,096.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::load::{Load, Slice, Until};
use crate::plot::{self, Panel, Series};
use crate::rows::{Contestant, names};
use crate::run::{self, Figure, Pace, median, per_second, redis_cpu};
use crate::settings::Settings;
use crate::stage::Stage;
use crate::subjects::{Fault, Floor, Shared, tollgate};

const KEYS: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
const TASKS: [u64; 7] = [1, 4, 16, 64, 256, 1_024, 4_096];
const COMMAND: &str = "cargo run --release --manifest-path bench/Cargo.toml -- scale";

/// What the lines stand for, and their colours.
const LINES: [(&str, &str, &str); 3] = [
    (names::REDIS, "tollgate, through its layer", "#1a5fb4"),
    (names::FLOOR, "EVALSHA \"return 1\" per check", "#6f6f6f"),
    (names::SHARED, "tollgate's script per check", "#c64600"),
];

/// A number of keys or tasks, and the turns of each line.
struct Point {
    at: u64,
    turns: Vec<Vec<Slice>>,
}

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, Fault> {
    let stage = Stage::set().await?;
    let pace = Pace {
        rounds: settings.rounds.unwrap_or(3),
        slice: settings.slice.unwrap_or(Duration::from_millis(500)),
    };
    let keys = sweep("keys", KEYS.map(|keys| (keys, 256, keys)), &stage, pace).await?;
    let many = sweep("tasks, 10,000 keys", TASKS.map(|n| (n, n, 10_000)), &stage, pace).await?;
    let one = sweep("tasks, 1 key", TASKS.map(|n| (n, n, 1)), &stage, pace).await?;

    let of_keys = [panels("256 tasks", "keys", &keys)];
    let of_tasks = [panels("10,000 keys", "tasks", &many), panels("one key", "tasks", &one)];
    draw("bench-keys.svg", &of_keys)?;
    draw("bench-tasks.svg", &of_tasks)?;
    Ok(ExitCode::SUCCESS)
}

/// Loads are (what grows, tasks, keys).
async fn sweep(
    what: &str,
    loads: [(u64, u64, u64); 7],
    stage: &Stage,
    pace: Pace,
) -> Result<Vec<Point>, Fault> {
    println!("\n| {what} | {} |", LINES.map(|(_, text, _)| format!("{text} | CPU µs")).join(" | "));
    println!("|--:|{}", "--:|".repeat(2 * LINES.len()));
    let mut points = Vec::new();
    for (at, tasks, keys) in loads {
        let point = Point { at, turns: turns(tasks, keys, stage, pace).await? };
        let cells = point.turns.iter().map(|turns| {
            let of = |figure| of(turns, figure);
            format!("{:.0} | {:.2}", of(per_second), of(redis_cpu))
        });
        println!("| {at} | {} |", cells.collect::<Vec<_>>().join(" | "));
        points.push(point);
    }
    Ok(points)
}

async fn turns(tasks: u64, keys: u64, stage: &Stage, pace: Pace) -> Result<Vec<Vec<Slice>>, Fault> {
    stage.server.command(&["FLUSHALL"]).await;
    let limiter = tollgate::limiter(tollgate::on(&stage.server)?, tollgate::open())?;
    let contestants = [
        Contestant::new(names::REDIS, tollgate::layered(limiter)),
        Contestant::new(names::FLOOR, Floor::return_one(stage).await?),
        Contestant::new(names::SHARED, Shared::new(stage).await?),
    ];
    // The script per check finds the same keys.
    contestants[0].run(Load { tasks: 256, keys, until: Until::Filled }).await?;
    let mut turns = vec![Vec::new(); contestants.len()];
    for _ in 0..pace.rounds {
        for (contestant, turns) in contestants.iter().zip(&mut turns) {
            let load = Load { tasks, keys, until: Until::Over(pace.slice) };
            turns.push(run::turn(contestant, load, stage, false).await?);
        }
    }
    Ok(turns)
}

fn of(turns: &[Slice], figure: Figure) -> f64 {
    median(turns.iter().map(figure).collect()).unwrap_or_default()
}

fn panels(title: &str, x: &'static str, points: &[Point]) -> [Panel; 2] {
    let panel = |y, figure: Figure| Panel {
        title: format!("{y}, {title}"),
        x,
        series: LINES
            .iter()
            .enumerate()
            .map(|(line, &(_, name, color))| Series {
                name,
                color,
                points: points.iter().map(|p| (p.at as f64, of(&p.turns[line], figure))).collect(),
            })
            .collect(),
    };
    [panel("decisions per second", per_second), panel("µs of Redis per decision", redis_cpu)]
}

fn draw(name: &str, panels: &[[Panel; 2]]) -> Result<(), Fault> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    std::fs::create_dir_all(&docs)?;
    std::fs::write(docs.join(name), plot::svg(COMMAND, panels))?;
    println!("\ndrew docs/{name}");
    Ok(())
}
