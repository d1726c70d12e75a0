//! An open loop of checks, and how many of them Redis decided.

use std::time::{Duration, Instant};

use fleetlimit::{Limiter, Source};
use tokio::time::interval;

use super::Stalls;

/// A machine that stalls is measured for longer, up to this many times as long.
const LONGEST: u32 = 10;

/// A check of [`load`].
pub(crate) struct Outcome {
    pub(crate) started: Instant,
    pub(crate) took: Duration,
    /// Whether Redis decided it.
    pub(crate) is_decided: bool,
}

/// Starts checks of distinct keys at this rate, whether or not the earlier ones have completed.
/// Without those during which the machine stalled: such time does not count.
pub(crate) async fn load(limiter: &Limiter, per_second: u32, duration: Duration) -> Vec<Outcome> {
    let (start, stalls) = (Instant::now(), Stalls::watch());
    let mut tick = interval(Duration::from_secs(1) / per_second);
    let mut checks = Vec::new();
    while start.elapsed() < (duration + stalls.lost()).min(duration * LONGEST) {
        tick.tick().await;
        let (limiter, number) = (limiter.clone(), checks.len() as u32);
        checks.push(tokio::spawn(async move {
            let started = Instant::now();
            let decision = limiter.check(number % 10_000).await.unwrap();
            let is_decided = decision.source() == Source::Store;
            Outcome { started, took: started.elapsed(), is_decided }
        }));
    }
    let mut outcomes = Vec::with_capacity(checks.len());
    for check in checks {
        outcomes.push(check.await.unwrap());
    }
    let stalls = stalls.end();
    outcomes.retain(|outcome| {
        let end = outcome.started + outcome.took;
        let is_during = |stall: &(Instant, Instant)| outcome.started <= stall.1 && stall.0 <= end;
        !stalls.iter().any(is_during)
    });
    let expected = duration.as_secs_f64() * f64::from(per_second);
    assert!(outcomes.len() as f64 >= expected / 2.0, "the machine is too busy: {stalls:?}");
    outcomes
}

/// The share of checks that Redis decided, of those that started from this time on.
pub(crate) fn decided(outcomes: &[Outcome], from: Instant) -> f64 {
    let later: Vec<_> = outcomes.iter().filter(|outcome| outcome.started >= from).collect();
    later.iter().filter(|outcome| outcome.is_decided).count() as f64 / later.len() as f64
}
