//! One turn of one subject: so many tasks, each asking again as soon as it has its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use tokio::task::{JoinSet, consume_budget};

use crate::subjects::{Fault, Subject};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) tasks: u64,
    pub(crate) keys: u64,
    pub(crate) until: Until,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Over(Duration),
    /// Every key has been asked for once.
    Filled,
}

/// What a turn came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slice {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) elapsed: Duration,
    /// Latencies in nanoseconds.
    pub(crate) p50: u32,
    pub(crate) p99: u32,
    /// CPU time of this process: the subject's, and that of the tasks which ask it.
    pub(crate) own_cpu: Duration,
    /// CPU time of Redis, all nodes together.
    pub(crate) redis_cpu: Duration,
}

impl Slice {
    pub(crate) fn decisions(&self) -> u64 {
        self.allowed + self.denied
    }
}

/// Runs a subject under a load. The first error ends it.
pub(crate) async fn run<S: Subject>(subject: S, load: Load) -> Result<Slice, Fault> {
    let stop = Arc::new(AtomicBool::new(false));
    let (begun, cpu) = (Instant::now(), ProcessTime::now());
    let mut tasks = JoinSet::new();
    let start = next_start();
    for task in 0..load.tasks {
        let walk = Walk::new(load.keys, start + task * load.keys / load.tasks);
        tasks.spawn(ask(subject.clone(), walk, load, stop.clone()));
    }
    if let Until::Over(time) = load.until {
        tokio::time::sleep(time).await;
        stop.store(true, Ordering::Relaxed);
    }
    let (mut slice, mut latencies) = (Slice::default(), Vec::new());
    while let Some(tally) = tasks.join_next().await {
        let tally = tally??;
        slice.allowed += tally.allowed;
        slice.denied += tally.denied;
        latencies.extend(tally.latencies);
    }
    // Including the last answers, which are counted.
    slice.elapsed = begun.elapsed();
    slice.own_cpu = cpu.elapsed();
    slice.p50 = quantile(&mut latencies, 0.50);
    slice.p99 = quantile(&mut latencies, 0.99);
    Ok(slice)
}

#[derive(Default)]
struct Tally {
    allowed: u64,
    denied: u64,
    latencies: Vec<u32>,
}

async fn ask<S: Subject>(
    mut subject: S,
    mut walk: Walk,
    load: Load,
    stop: Arc<AtomicBool>,
) -> Result<Tally, Fault> {
    // Reading the clock costs as much as a tenth of a decision in memory.
    let timed_each = if load.tasks == 1 { 1 } else { 8 };
    let mut left = match load.until {
        Until::Over(_) => u64::MAX,
        Until::Filled => load.keys.div_ceil(load.tasks),
    };
    let mut tally = Tally::default();
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let caller = walk.next();
        let begun = (left % timed_each == 0).then(Instant::now);
        match subject.decide(caller).await {
            Ok(true) => tally.allowed += 1,
            Ok(false) => tally.denied += 1,
            Err(fault) => {
                stop.store(true, Ordering::Relaxed);
                return Err(fault);
            }
        }
        if let Some(begun) = begun {
            tally.latencies.push(u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        left -= 1;
        // What answers without a pause would keep the other tasks from their turn.
        consume_budget().await;
    }
    Ok(tally)
}

/// The callers in a shuffled order, the same for all tasks, which start at different places in it.
struct Walk {
    keys: u64,
    step: u64,
    at: u64,
}

impl Walk {
    fn new(keys: u64, start: u64) -> Self {
        let step = (keys * 618 / 1000..).find(|step| gcd(*step, keys) == 1).unwrap_or(1);
        Self { keys, step, at: start % keys * step % keys }
    }

    fn next(&mut self) -> u32 {
        self.at = (self.at + self.step) % self.keys;
        self.at as u32
    }
}

/// Each turn begins somewhere else, so that with many keys it is not always the same ones' turn.
fn next_start() -> u64 {
    static TURN: AtomicU64 = AtomicU64::new(0);
    TURN.fetch_add(1, Ordering::Relaxed) * 7_919
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn quantile(latencies: &mut [u32], part: f64) -> u32 {
    if latencies.is_empty() {
        return 0;
    }
    let index = ((latencies.len() - 1) as f64 * part) as usize;
    *latencies.select_nth_unstable(index).1
}
