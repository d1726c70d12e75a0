//! What each algorithm admits of the same requests, as a plot.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{Limiter, MemoryStore, Quota};
use fleetlimit_plot::Svg;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep_until};

use crate::subjects::BoxError;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/algorithms.svg");
const COMMAND: &str = "make plots";
const END: f64 = 20.0;
const PERIOD: f64 = 5.0;
const PERMITS: u64 = 10;
/// Of a panel.
const SIZE: (f64, f64) = (440.0, 190.0);
const HEADER: f64 = 74.0;
/// The margins of a panel: left, top, right and bottom.
const MARGIN: (f64, f64, f64, f64) = (40.0, 34.0, 18.0, 44.0);
const MOST: f64 = 24.0;

/// The time of a request, its cost, and when it was admitted.
type Outcome = (f64, u64, Option<f64>);

pub(crate) fn run() -> Result<ExitCode, BoxError> {
    let quota = Quota::new(PERMITS, Duration::from_secs_f64(PERIOD));
    let algorithms = [
        ("token bucket", quota),
        ("token bucket, borrowing up to 8", quota.borrow_up_to(8)),
        ("queue, at most 3 s", quota.queue(Duration::from_secs(3))),
        ("interval refill", quota.interval_refill()),
        ("fixed window", quota.fixed_window()),
        ("calendar window", quota.calendar()),
        ("approximate sliding window", quota.approximate_sliding_window()),
        ("sliding window, 10 segments", quota.sliding_window(10)),
    ];
    let rows = algorithms.len().div_ceil(2) as f64;
    let (width, height) = (2.0 * SIZE.0, HEADER + rows * SIZE.1);
    let mut svg = Svg::default();
    svg.text((20.0, 26.0), "", &format!("{COMMAND}: {quota}, the same requests for all"));
    let legend = "line: permits taken in the last 5 s; below: requests, dark if admitted, at the time \
                  at which they proceed; the longer ones cost 4";
    svg.text((20.0, 48.0), "", legend);
    for (index, (name, quota)) in algorithms.into_iter().enumerate() {
        let (left, top) = ((index % 2) as f64 * SIZE.0, HEADER + (index / 2) as f64 * SIZE.1);
        draw(&mut svg, name, &admit(quota)?, left, top);
    }
    std::fs::write(FILE, svg.on_white((width, height)))?;
    println!("wrote {FILE}");
    Ok(ExitCode::SUCCESS)
}

/// A burst, a steady load, a burst around the end of a window, and single requests that cost more.
fn requests() -> Vec<(f64, u64)> {
    let evenly = |from: f64, to: f64, count: u32| {
        (0..count).map(move |n| from + (to - from) * f64::from(n) / f64::from(count))
    };
    let mut requests: Vec<_> = evenly(0.2, 0.8, 16)
        .chain(evenly(2.5, 6.0, 10))
        .chain(evenly(8.6, 9.4, 14))
        .chain(evenly(10.1, 10.8, 14))
        .map(|at| (at, 1))
        .chain([14.0, 14.5, 15.0, 15.5, 17.0, 18.5].map(|at| (at, 4)))
        .collect();
    requests.sort_by(|a, b| a.0.total_cmp(&b.0));
    requests
}

fn admit(quota: Quota) -> Result<Vec<Outcome>, BoxError> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        // Windows on the clock start a second after the requests.
        let store = MemoryStore::starting_at(UNIX_EPOCH + Duration::from_secs(1_000_000_004));
        let (limiter, start) = (Limiter::new(store, quota)?, Instant::now());
        let is_queue = quota.to_string().contains("queue");
        let (mut outcomes, mut reservations) = (Vec::new(), Vec::new());
        for (at, cost) in requests() {
            sleep_until(start + Duration::from_secs_f64(at)).await;
            let admitted = if is_queue {
                let reservation = limiter.reserve("key", cost).await?;
                let proceeds = at + reservation.delay().as_secs_f64();
                let is_allowed = reservation.decision().is_allowed();
                reservations.push(reservation);
                is_allowed.then_some(proceeds)
            } else {
                limiter.check_cost("key", cost).await?.is_allowed().then_some(at)
            };
            outcomes.push((at, cost, admitted));
        }
        Ok(outcomes)
    })
}

fn draw(svg: &mut Svg, name: &str, outcomes: &[Outcome], left: f64, top: f64) {
    let (from, to) = (left + MARGIN.0, left + SIZE.0 - MARGIN.2);
    let (high, low) = (top + MARGIN.1, top + SIZE.1 - MARGIN.3);
    let x = |time: f64| from + (to - from) * time / END;
    let y = |permits: f64| low - (low - high) * permits / MOST;
    svg.text((from, high - 12.0), "font-weight=\"600\"", name);
    for permits in [0, PERMITS, 2 * PERMITS] {
        let at = y(permits as f64);
        svg.line("#ddd", 1.0, &[(from, at), (to, at)]);
        svg.text((from - 8.0, at + 4.0), "text-anchor=\"end\"", &permits.to_string());
    }
    for seconds in [0, 5, 10, 15, 20] {
        let at = x(f64::from(seconds));
        svg.text((at, low + 36.0), "text-anchor=\"middle\"", &format!("{seconds} s"));
    }
    for &(at, cost, admitted) in outcomes {
        let (color, at) = admitted.map_or(("#ccc", at), |at| ("#1f5fa8", at));
        let length = if cost > 1 { 16.0 } else { 9.0 };
        if at <= END {
            svg.line(color, 1.5, &[(x(at), low + 5.0), (x(at), low + 5.0 + length)]);
        }
    }
    let recent = |time: f64| -> f64 {
        let is_recent = |at: &f64| *at <= time && *at > time - PERIOD;
        let admitted = outcomes.iter().filter(|(_, _, at)| at.as_ref().is_some_and(is_recent));
        admitted.map(|(_, cost, _)| *cost as f64).sum()
    };
    // It changes when a request proceeds, and when that is a period ago.
    let proceed = outcomes.iter().filter_map(|(_, _, at)| *at);
    let mut changes: Vec<f64> = proceed.flat_map(|at| [at, at + PERIOD]).collect();
    changes.push(END);
    changes.retain(|at| *at <= END);
    changes.sort_by(f64::total_cmp);
    let (mut points, mut last) = (vec![(from, y(0.0))], y(0.0));
    for time in changes {
        points.push((x(time), last));
        last = y(recent(time));
        points.push((x(time), last));
    }
    svg.line("#d1495b", 1.5, &points);
}
