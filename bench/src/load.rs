//! One run of one operation, as a closed loop: each task starts the next operation when the
//! previous one has completed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use tokio::task::{JoinSet, consume_budget};

use crate::subjects::{BoxError, Operation};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) tasks: u64,
    pub(crate) keys: u64,
    pub(crate) until: Until,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Elapsed(Duration),
    /// Each key has been used at least once.
    AllKeys,
}

/// The result of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) elapsed: Duration,
    /// Latencies in nanoseconds.
    pub(crate) p50: u32,
    pub(crate) p99: u32,
    /// CPU time of this process, including the tasks that generate the load.
    pub(crate) client_cpu: Duration,
    /// CPU time of Redis, the sum of all nodes.
    pub(crate) redis_cpu: Duration,
}

impl Measurement {
    pub(crate) fn decisions(&self) -> u64 {
        self.allowed + self.denied
    }
}

/// Runs an operation under a load. The first error ends the run.
pub(crate) async fn run<O: Operation>(operation: O, load: Load) -> Result<Measurement, BoxError> {
    let stop = Arc::new(AtomicBool::new(false));
    let (started, cpu) = (Instant::now(), ProcessTime::now());
    let mut tasks = JoinSet::new();
    let start = next_start();
    for task in 0..load.tasks {
        let keys = KeySequence::new(load.keys, start + task * load.keys / load.tasks);
        tasks.spawn(run_task(operation.clone(), keys, load, stop.clone()));
    }
    if let Until::Elapsed(time) = load.until {
        tokio::time::sleep(time).await;
        stop.store(true, Ordering::Relaxed);
    }
    let (mut measurement, mut latencies) = (Measurement::default(), Vec::new());
    while let Some(result) = tasks.join_next().await {
        let task = result??;
        measurement.allowed += task.allowed;
        measurement.denied += task.denied;
        latencies.extend(task.latencies);
    }
    // Operations that were in flight at the stop are counted, so their time is included.
    measurement.elapsed = started.elapsed();
    measurement.client_cpu = cpu.elapsed();
    measurement.p50 = quantile(&mut latencies, 0.50);
    measurement.p99 = quantile(&mut latencies, 0.99);
    Ok(measurement)
}

#[derive(Default)]
struct TaskResult {
    allowed: u64,
    denied: u64,
    latencies: Vec<u32>,
}

async fn run_task<O: Operation>(
    mut operation: O,
    mut keys: KeySequence,
    load: Load,
    stop: Arc<AtomicBool>,
) -> Result<TaskResult, BoxError> {
    // Reading the clock takes up to a tenth of the time of a decision in memory.
    let sample_interval = if load.tasks == 1 { 1 } else { 8 };
    let mut remaining = match load.until {
        Until::Elapsed(_) => u64::MAX,
        Until::AllKeys => load.keys.div_ceil(load.tasks),
    };
    let mut result = TaskResult::default();
    while remaining > 0 {
        let key = keys.next();
        let started = (remaining % sample_interval == 0).then(Instant::now);
        match operation.execute(key).await {
            Ok(true) => result.allowed += 1,
            Ok(false) => result.denied += 1,
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        if let Some(started) = started {
            result.latencies.push(u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        remaining -= 1;
        // Not before the first decision: on a busy machine the time may be over when a task starts.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // An operation that never returns `Pending` would starve the other tasks.
        consume_budget().await;
    }
    Ok(result)
}

/// A fixed permutation of the keys. Each task starts at a different position.
pub(crate) struct KeySequence {
    keys: u64,
    step: u64,
    current: u64,
}

impl KeySequence {
    pub(crate) fn new(keys: u64, start: u64) -> Self {
        let step = (keys * 618 / 1000..).find(|step| gcd(*step, keys) == 1).unwrap_or(1);
        Self { keys, step, current: start % keys * step % keys }
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.current = (self.current + self.step) % self.keys;
        self.current as u32
    }
}

/// Each run starts at a different position: with many keys, a run does not reach all of them.
pub(crate) fn next_start() -> u64 {
    static RUN: AtomicU64 = AtomicU64::new(0);
    RUN.fetch_add(1, Ordering::Relaxed) * 7_919
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(crate) fn quantile(latencies: &mut [u32], fraction: f64) -> u32 {
    if latencies.is_empty() {
        return 0;
    }
    let index = ((latencies.len() - 1) as f64 * fraction) as usize;
    *latencies.select_nth_unstable(index).1
}
