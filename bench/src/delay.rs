//! Decisions per second and latency at a distance from Redis, below and above the capacity.

use std::process::ExitCode;
use std::time::Duration;

use ::fleetlimit::{Limiter, RedisStore};
use fleetlimit_plot::{Panel, Series};

use crate::distance::DistantServer;
use crate::load::{Load, Until};
use crate::paced::{self, Outcome, Window};
use crate::runs::median;
use crate::settings::Settings;
use crate::subjects::{BoxError, DirectCheck, fleetlimit};
use crate::table::thousands;
use crate::{load, scale};

const KEYS: u64 = 100_000;
const TIMEOUT: Duration = Duration::from_millis(50);

/// Round trip times in milliseconds, with the name and the colour of each in the plot.
const ROUND_TRIPS: [(u64, &str, &str); 4] = [
    (1, "round trip of 1 ms", "#1a5fb4"),
    (5, "5 ms", "#26a269"),
    (10, "10 ms", "#c64600"),
    (30, "30 ms", "#813d9c"),
];

/// Shares of the capacity.
const LOADS: [f64; 4] = [0.5, 0.9, 1.1, 2.0];

/// Numbers of pending checks with which the capacity is first looked for.
const PENDING: [u64; 8] = [128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];

const LEAD_IN: Duration = Duration::from_millis(500);

/// What was measured at one round trip time.
pub(crate) struct Distance {
    /// The most checks per second that were answered in time. The median of all measurements.
    pub(crate) capacity: f64,
    /// In the order of the loads.
    pub(crate) points: Vec<Point>,
}

/// Figures are per second, `p99` is in milliseconds. Each is the median of the rounds.
pub(crate) struct Point {
    pub(crate) load: f64,
    pub(crate) offered: f64,
    pub(crate) answered: f64,
    /// Of the load, or of the capacity if that is less.
    share: f64,
    p99: f64,
}

/// A load, and the capacity as it was immediately before.
struct Sample {
    capacity: f64,
    outcome: Outcome,
}

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let (rounds, slice) =
        (settings.rounds.unwrap_or(5), settings.slice.unwrap_or(Duration::from_secs(1)));
    let server = start().await?;
    println!(
        "Checks with a timeout of {TIMEOUT:?} on {KEYS} keys, at a fixed rate. Medians of {rounds} \
         rounds of {slice:?}. In time means within the timeout and 5 ms. The capacity is the most \
         that are answered in time. It is measured again before each load, because that of a shared \
         machine changes. p99 is of the checks that were answered.\n"
    );
    println!(
        "| round trip ms | capacity/s | load | offered/s | answered in time/s | of the load or the capacity | p99 ms |"
    );
    println!("|--:|{}", "--:|".repeat(6));
    let mut distances = Vec::new();
    for (millis, _, _) in ROUND_TRIPS {
        let distance = measure(&server, millis, &PENDING, &LOADS, rounds, slice).await?;
        print(millis, &distance);
        distances.push(distance);
    }
    scale::draw("delay.svg", &format!("{} delay", scale::COMMAND), &[panels(&distances)])?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a server that has all keys.
pub(crate) async fn start() -> Result<DistantServer, BoxError> {
    let server = DistantServer::start().await?;
    let limiter =
        fleetlimit::limiter(fleetlimit::redis_store(&server.server)?, fleetlimit::allow_all())?;
    let load = Load { tasks: 256, keys: KEYS, until: Until::AllKeys };
    load::run(DirectCheck(limiter), load).await?;
    Ok(server)
}

pub(crate) async fn measure(
    server: &DistantServer,
    millis: u64,
    pending: &[u64],
    loads: &[f64],
    rounds: usize,
    slice: Duration,
) -> Result<Distance, BoxError> {
    server.round_trip(Duration::from_millis(millis));
    let window = Window {
        lead_in: LEAD_IN.min(slice),
        time: slice,
        max_latency: TIMEOUT + Duration::from_millis(5),
    };
    let mut best = (0.0, 0);
    for &pending in pending {
        let outcome = paced::closed_loop(&limiter(server)?, KEYS, pending, window).await?;
        let answered = per_second(outcome.answered, slice);
        if answered > best.0 {
            best = (answered, pending);
        }
    }
    let (mut capacity, pending) = best;
    loop {
        let last = capacity;
        capacity = measure_capacity(server, pending, last, window).await?;
        if capacity <= 1.05 * last {
            break;
        }
    }
    let mut samples: Vec<Vec<Sample>> = loads.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (load, samples) in loads.iter().zip(&mut samples) {
            capacity = measure_capacity(server, pending, capacity, window).await?;
            let rate = (load * capacity).max(100.0);
            let outcome = paced::open_loop(&limiter(server)?, KEYS, rate, window).await?;
            samples.push(Sample { capacity, outcome });
        }
    }
    let capacity = median_of(samples.iter().flatten(), |sample| sample.capacity);
    let points = loads.iter().zip(&samples).map(|(&load, samples)| Point {
        load,
        offered: median_of(samples, |sample| per_second(sample.outcome.offered, slice)),
        answered: median_of(samples, |sample| per_second(sample.outcome.answered, slice)),
        share: median_of(samples, |Sample { capacity, outcome }| {
            let most = per_second(outcome.offered, slice).min(*capacity);
            per_second(outcome.answered, slice) / most.max(1.0)
        }),
        p99: median_of(samples, |sample| f64::from(sample.outcome.p99) / 1e6),
    });
    Ok(Distance { capacity, points: points.collect() })
}

/// The most checks per second that are answered in time, in a closed loop with this many pending and
/// in open loops. A closed loop starts many checks at once, and so finds less of a distant server's
/// capacity. An open loop far above the capacity finds less than there is, because it takes the
/// client's CPU.
async fn measure_capacity(
    server: &DistantServer,
    pending: u64,
    last: f64,
    window: Window,
) -> Result<f64, BoxError> {
    let outcome = paced::closed_loop(&limiter(server)?, KEYS, pending, window).await?;
    let mut capacity = per_second(outcome.answered, window.time);
    for share in [1.0, 1.3] {
        let rate = (share * capacity.max(last)).max(100.0);
        let outcome = paced::open_loop(&limiter(server)?, KEYS, rate, window).await?;
        capacity = capacity.max(per_second(outcome.answered, window.time));
    }
    Ok(capacity)
}

/// On a store of its own: no measurement suffers from the one before.
fn limiter(server: &DistantServer) -> Result<Limiter, BoxError> {
    let store = RedisStore::open(server.url())?;
    fleetlimit::limiter_with_timeout(store, fleetlimit::allow_all(), TIMEOUT)
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

fn median_of<'a>(
    samples: impl IntoIterator<Item = &'a Sample>,
    figure: impl Fn(&Sample) -> f64,
) -> f64 {
    median(samples.into_iter().map(figure).collect()).unwrap_or_default()
}

fn print(millis: u64, distance: &Distance) {
    let mut first = format!("{millis} | {}", thousands(distance.capacity));
    for Point { load, offered, answered, share, p99 } in &distance.points {
        let rates = [offered, answered].map(|rate| thousands(*rate)).join(" | ");
        println!("| {first} | {load} | {rates} | {share:.3} | {p99:.1} |");
        first = " | ".into();
    }
}

fn panels(distances: &[Distance]) -> [Panel; 2] {
    let panel = |title: &str, figure: fn(&Point) -> Option<f64>| Panel {
        title: title.into(),
        x: "offered load, relative to the capacity",
        series: distances
            .iter()
            .zip(ROUND_TRIPS)
            .map(|(distance, (_, name, color))| {
                let point = |point: &Point| Some((point.load, figure(point)?));
                Series { name, color, points: distance.points.iter().filter_map(point).collect() }
            })
            .collect(),
    };
    [
        // The axis is logarithmic.
        panel("decisions in time per second", |point| Some(point.answered.max(1.0))),
        panel("p99 ms of decisions in time", |point| Some(point.p99).filter(|&p99| p99 > 0.0)),
    ]
}
