//! Loads on a limiter that may fall behind: an open loop, which starts checks at a fixed rate however
//! many are pending, and a closed loop, which keeps a fixed number of checks pending.

use std::time::{Duration, Instant};

use fleetlimit::{Limiter, Source};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::task::{JoinSet, consume_budget};
use tokio::time::{MissedTickBehavior, interval};

use crate::load::{KeySequence, next_start, quantile};
use crate::subjects::{BoxError, address};

/// Tasks that start checks. A few are enough, and each starts many checks per tick.
const GENERATORS: u64 = 4;

const TICK: Duration = Duration::from_millis(1);

/// One of so many checks has its latency measured.
const SAMPLE_INTERVAL: u64 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// What starts before is not counted.
    pub(crate) lead_in: Duration,
    pub(crate) time: Duration,
    /// A decision that takes longer has failed.
    pub(crate) max_latency: Duration,
}

/// The checks that started in the time of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) offered: u64,
    /// Redis decided them in time.
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// The latency of those that were answered, in nanoseconds.
    pub(crate) p99: u32,
}

/// Starts this many checks per second.
pub(crate) async fn open_loop(
    limiter: &Limiter,
    keys: u64,
    per_second: f64,
    window: Window,
) -> Result<Outcome, BoxError> {
    let rate = per_second / GENERATORS as f64;
    run(keys, |sequence| generate(limiter.clone(), sequence, rate, window)).await
}

/// Keeps this many checks pending.
pub(crate) async fn closed_loop(
    limiter: &Limiter,
    keys: u64,
    pending: u64,
    window: Window,
) -> Result<Outcome, BoxError> {
    let pending = pending.div_ceil(GENERATORS);
    run(keys, |sequence| saturate(limiter.clone(), sequence, pending, window)).await
}

async fn run<F>(keys: u64, generator: impl Fn(KeySequence) -> F) -> Result<Outcome, BoxError>
where
    F: Future<Output = Count> + Send + 'static,
{
    let mut generators = JoinSet::new();
    let start = next_start();
    for n in 0..GENERATORS {
        generators.spawn(generator(KeySequence::new(keys, start + n * keys / GENERATORS)));
    }
    let (mut outcome, mut latencies) = (Outcome::default(), Vec::new());
    while let Some(count) = generators.join_next().await {
        let count = count?;
        outcome.offered += count.offered;
        outcome.answered += count.answered;
        outcome.failed += count.offered - count.answered;
        latencies.extend(count.latencies);
    }
    outcome.p99 = quantile(&mut latencies, 0.99);
    Ok(outcome)
}

async fn generate(limiter: Limiter, mut keys: KeySequence, rate: f64, window: Window) -> Count {
    let (mut count, mut pending) = (Count::default(), FuturesUnordered::new());
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (started, mut number) = (Instant::now(), 0);
    loop {
        tokio::select! {
            biased;
            _ = tick.tick() => {
                let now = Instant::now();
                let elapsed = now - started;
                if elapsed >= window.lead_in + window.time {
                    break;
                }
                let due = (elapsed.as_secs_f64() * rate) as u64;
                let is_counted = elapsed >= window.lead_in;
                for number in number..due {
                    let is_sample = number.is_multiple_of(SAMPLE_INTERVAL);
                    let kind = Kind { is_counted, is_sample, max_latency: window.max_latency };
                    pending.push(check(&limiter, keys.next(), now, kind));
                }
                number = due;
            }
            Some(check) = pending.next() => count.add(check),
        }
        // Cheaper than a `select!` per check.
        while let Some(Some(check)) = pending.next().now_or_never() {
            count.add(check);
        }
    }
    while let Some(check) = pending.next().await {
        count.add(check);
    }
    count
}

async fn saturate(limiter: Limiter, mut keys: KeySequence, pending: u64, window: Window) -> Count {
    let mut count = Count::default();
    let started = Instant::now();
    let mut next = || {
        let now = Instant::now();
        let kind = Kind {
            is_counted: now - started >= window.lead_in,
            is_sample: false,
            max_latency: window.max_latency,
        };
        check(&limiter, keys.next(), now, kind)
    };
    let mut checks: FuturesUnordered<_> = (0..pending).map(|_| next()).collect();
    while started.elapsed() < window.lead_in + window.time
        && let Some(check) = checks.next().await
    {
        count.add(check);
        checks.push(next());
        // Checks that fail at once would starve the other tasks.
        consume_budget().await;
    }
    while let Some(check) = checks.next().await {
        count.add(check);
    }
    count
}

struct Check {
    is_counted: bool,
    is_answered: bool,
    latency: Option<Duration>,
}

#[derive(Clone, Copy)]
struct Kind {
    is_counted: bool,
    is_sample: bool,
    max_latency: Duration,
}

async fn check(limiter: &Limiter, key: u32, started: Instant, kind: Kind) -> Check {
    let decision = limiter.check(address(key)).await;
    let is_decided = decision.is_ok_and(|decision| decision.source() == Source::Store);
    let latency = started.elapsed();
    let is_answered = is_decided && latency <= kind.max_latency;
    let is_sample = kind.is_counted && kind.is_sample && is_answered;
    Check { is_counted: kind.is_counted, is_answered, latency: is_sample.then_some(latency) }
}

#[derive(Default)]
struct Count {
    offered: u64,
    answered: u64,
    latencies: Vec<u32>,
}

impl Count {
    fn add(&mut self, check: Check) {
        self.offered += u64::from(check.is_counted);
        self.answered += u64::from(check.is_counted && check.is_answered);
        let nanos = |latency: Duration| u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX);
        self.latencies.extend(check.latency.map(nanos));
    }
}
