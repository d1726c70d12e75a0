//! What leases admit near the limit, and how many checks do not wait for Redis, as a plot.
//!
//! Three instances check one key on a real Redis. The limiters with and without leases get the same requests at the
//! same times, and so does a bucket in memory, with which they are compared: it is exact. Requests come at random
//! times, either evenly or only in every other second. Above the limit, even demand always finds the bucket empty, so
//! only bursts show that a bucket with leases holds less.

use std::array::from_fn;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fleetlimit::{Decision, Limiter, MemoryStore, Policy, Quota, RedisStore, Source};
use fleetlimit_plot::Svg;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::common::Server;
use crate::subjects::BoxError;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/leases.svg");
const COMMAND: &str = "make plots";
const INSTANCES: usize = 3;
/// Permits per second. The burst is the same number.
const RATE: u64 = 1_000;
const QUOTA: Quota = Quota::per_second(RATE);

/// The lengths of leases in milliseconds, with the name and the color of each.
const LEASES: [(u64, &str, &str); 4] = [
    (0, "no lease", "#888888"),
    (50, "50 ms", "#1a5fb4"),
    (100, "100 ms", "#26a269"),
    (250, "250 ms", "#c64600"),
];

/// Mean demand, as a share of the rate.
const DEMANDS: [f64; 12] = [0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0];

/// The shapes of demand. In bursts, all requests come in every other second, at twice the mean rate.
const SHAPES: [(&str, Shape); 2] = [("Even demand", Shape::Even), ("Bursts", Shape::Bursts)];

/// First the bucket is emptied, so that its burst is not a part of what is counted.
const EMPTYING: (f64, Duration) = (4.0, Duration::from_millis(800));
/// Then the demand begins, and is counted after this time.
const SETTLE: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_secs(6);
/// So that a stall of the machine fails no check.
const TIMEOUT: Duration = Duration::from_secs(2);

const PANEL: (f64, f64) = (440.0, 240.0);
const HEADER: f64 = 86.0;
/// The margins of a panel: left, top, right and bottom.
const MARGIN: (f64, f64, f64, f64) = (52.0, 36.0, 20.0, 34.0);

#[derive(Clone, Copy)]
enum Shape {
    Even,
    Bursts,
}

/// An instance's limiters, in the order of the leases.
type Limiters = Arc<[Limiter; LEASES.len()]>;

/// What a demand came to.
#[derive(Default)]
struct Counts {
    checks: AtomicU64,
    /// What the exact bucket has admitted.
    exact: AtomicU64,
    admitted: [AtomicU64; LEASES.len()],
    without_wait: [AtomicU64; LEASES.len()],
}

/// The results at a demand, in the order of the leases.
struct Point {
    demand: f64,
    /// As a share of what the exact bucket admits.
    admitted: [f64; LEASES.len()],
    /// Of the checks, those that did not wait for Redis.
    without_wait: [f64; LEASES.len()],
}

pub(crate) async fn run() -> Result<ExitCode, BoxError> {
    let server = Server::start().await;
    let instances = (0..INSTANCES).map(|_| instance(&server)).collect::<Result<Vec<_>, _>>()?;
    let exact = Limiter::new(MemoryStore::new(), QUOTA)?;
    println!("demand, then admitted and without a wait for {:?}", LEASES.map(|(_, name, _)| name));
    let (mut rows, mut key) = (Vec::new(), 0);
    for (name, shape) in SHAPES {
        println!("{name}");
        let mut points = Vec::new();
        for demand in DEMANDS {
            // A bucket of its own.
            key += 1;
            let point = measure(&instances, &exact, key, shape, demand).await?;
            println!("{demand}: {:.3?} {:.3?}", point.admitted, point.without_wait);
            points.push(point);
        }
        rows.push((name, points));
    }
    std::fs::write(FILE, draw(&rows))?;
    println!("wrote {FILE}");
    Ok(ExitCode::SUCCESS)
}

fn instance(server: &Server) -> Result<Limiters, BoxError> {
    let instances = INSTANCES.try_into()?;
    let store = RedisStore::open(server.url())?.instances(instances);
    let limiter = |(millis, ..): (u64, &str, &str)| {
        let policy = Policy::new(format!("lease-{millis}")).quota("rate", QUOTA);
        let builder = Limiter::builder(store.clone(), policy).timeout(TIMEOUT);
        builder.lease(Duration::from_millis(millis)).build()
    };
    let limiters = LEASES.into_iter().map(limiter).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(limiters.try_into().map_err(|_| "not a limiter for each lease")?))
}

async fn measure(
    instances: &[Limiters],
    exact: &Limiter,
    key: u64,
    shape: Shape,
    demand: f64,
) -> Result<Point, BoxError> {
    let (start, ignored) = (Instant::now(), Arc::default());
    let requests = async |shape, demand, times, counts: &Arc<Counts>| {
        requests(instances, exact, key, shape, demand, times, counts).await
    };
    let (rate, time) = EMPTYING;
    let (emptied, settled) = (start + time, start + time + SETTLE);
    requests(Shape::Even, rate, start..emptied, &ignored).await?;
    requests(shape, demand, emptied..settled, &ignored).await?;
    let counts = Arc::default();
    requests(shape, demand, settled..settled + COUNTED, &counts).await?;
    let share = |part: &AtomicU64, whole: &AtomicU64| {
        part.load(Ordering::Relaxed) as f64 / whole.load(Ordering::Relaxed) as f64
    };
    let Counts { checks, exact, admitted, without_wait } = &*counts;
    Ok(Point {
        demand,
        admitted: from_fn(|lease| share(&admitted[lease], exact)),
        without_wait: from_fn(|lease| share(&without_wait[lease], checks)),
    })
}

/// Checks at random times, of which there are as many per second as the demand says.
async fn requests(
    instances: &[Limiters],
    exact: &Limiter,
    key: u64,
    shape: Shape,
    demand: f64,
    times: Range<Instant>,
    counts: &Arc<Counts>,
) -> Result<(), BoxError> {
    // The time in which requests come, in seconds.
    let (mut active, mut random, mut checks) = (0.0, key, JoinSet::new());
    let rate = match shape {
        Shape::Even => demand * RATE as f64,
        Shape::Bursts => 2.0 * demand * RATE as f64,
    };
    loop {
        // SplitMix64, the same numbers in each run.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 11;
        let unit = (mixed as f64 + 1.0) / (1u64 << 53) as f64;
        active -= unit.ln() / rate;
        let passed = match shape {
            Shape::Even => active,
            Shape::Bursts => active + active.floor(),
        };
        let at = times.start + Duration::from_secs_f64(passed);
        if at >= times.end {
            break;
        }
        sleep_until(at).await;
        counts.checks.fetch_add(1, Ordering::Relaxed);
        let is_allowed = exact.check(key).await?.is_allowed();
        counts.exact.fetch_add(is_allowed.into(), Ordering::Relaxed);
        for lease in 0..LEASES.len() {
            let instance = instances[mixed as usize % INSTANCES].clone();
            let counts = counts.clone();
            checks.spawn(async move {
                let decision = instance[lease].check(key).await?;
                counts.count(lease, &decision)
            });
        }
    }
    sleep_until(times.end).await;
    while let Some(check) = checks.join_next().await {
        check??;
    }
    Ok(())
}

impl Counts {
    fn count(&self, lease: usize, decision: &Decision) -> Result<(), BoxError> {
        let is_without_wait = match decision.source() {
            Source::Store => false,
            Source::Lease | Source::Cached => true,
            source => return Err(format!("Redis did not decide, but {source:?}").into()),
        };
        self.admitted[lease].fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
        self.without_wait[lease].fetch_add(is_without_wait.into(), Ordering::Relaxed);
        Ok(())
    }
}

fn draw(rows: &[(&str, Vec<Point>)]) -> String {
    let mut svg = Svg::default();
    let title = format!(
        "Leases: {INSTANCES} instances and one key, {RATE} per second, burst {}",
        QUOTA.capacity()
    );
    svg.text((20.0, 26.0), r#"font-weight="600" font-size="14""#, &title);
    let note =
        "by mean demand, relative to the rate; in bursts, all requests come in every other second";
    let note = format!("{COMMAND}: {note}");
    svg.text((20.0, 46.0), "", &note);
    let mut x = 20.0;
    for (_, name, color) in LEASES {
        svg.line(color, 2.5, &[(x, 66.0), (x + 22.0, 66.0)]);
        svg.text((x + 28.0, 70.0), "", name);
        x += 60.0 + 6.6 * name.len() as f64;
    }
    let admitted = |point: &Point| point.admitted;
    let without_wait = |point: &Point| point.without_wait;
    for (row, (name, points)) in rows.iter().enumerate() {
        let top = HEADER + row as f64 * PANEL.1;
        let title = format!("{name}: admitted, of what an exact bucket admits");
        panel(&mut svg, (0.0, top), &title, [0.8, 0.85, 0.9, 0.95, 1.0], points, admitted);
        let title = format!("{name}: checks that do not wait for Redis");
        panel(&mut svg, (PANEL.0, top), &title, [0.0, 0.25, 0.5, 0.75, 1.0], points, without_wait);
    }
    svg.on_white((2.0 * PANEL.0, HEADER + rows.len() as f64 * PANEL.1))
}

fn panel(
    svg: &mut Svg,
    (left, top): (f64, f64),
    title: &str,
    ticks: [f64; 5],
    points: &[Point],
    of: impl Fn(&Point) -> [f64; LEASES.len()],
) {
    let (from, to) = (left + MARGIN.0, left + PANEL.0 - MARGIN.2);
    let (high, low) = (top + MARGIN.1, top + PANEL.1 - MARGIN.3);
    let x = |demand: f64| from + (to - from) * demand / 2.0;
    let y = |share: f64| low - (low - high) * (share - ticks[0]) / (ticks[4] - ticks[0]);
    svg.text((from, high - 14.0), r#"font-weight="600""#, title);
    for tick in ticks {
        svg.line("#ddd", 1.0, &[(from, y(tick)), (to, y(tick))]);
        let percent = format!("{:.0}%", 100.0 * tick);
        svg.text((from - 8.0, y(tick) + 4.0), r#"text-anchor="end""#, &percent);
    }
    svg.line("#bbb", 1.0, &[(x(1.0), high), (x(1.0), low)]);
    for demand in [0.0, 0.5, 1.0, 1.5, 2.0] {
        svg.text((x(demand), low + 19.0), r#"text-anchor="middle""#, &demand.to_string());
    }
    for (lease, (_, _, color)) in LEASES.into_iter().enumerate() {
        let line: Vec<_> =
            points.iter().map(|point| (x(point.demand), y(of(point)[lease]))).collect();
        svg.line(color, 2.0, &line);
        line.into_iter().for_each(|dot| svg.dot(color, dot));
    }
}
