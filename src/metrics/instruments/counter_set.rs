//! Counters that every check increments.
//!
//! A number that all threads write costs up to a tenth of a check in memory, and an atomic addition a
//! twentieth. So a thread has cells of its own, unless too many have some already, and a thread of this
//! module adds these up four times a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::instrument::Counter;
use super::shard;

const INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct CounterSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    counters: Vec<Counter>,
    shards: [Cells; shard::COUNT],
    /// How much of each counter the recorder knows.
    reported: Mutex<Vec<u64>>,
    is_watched: Once,
}

/// Processors fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cells([AtomicU64; MAX_COUNTERS]);

const MAX_COUNTERS: usize = 32;

impl CounterSet {
    /// Of at most 32 counters.
    pub(crate) fn new(counters: impl IntoIterator<Item = Counter>) -> Self {
        let counters: Vec<_> = counters.into_iter().take(MAX_COUNTERS).collect();
        let reported = Mutex::new(vec![0; counters.len()]);
        let (shards, is_watched) = (Default::default(), Once::new());
        Self(Arc::new(Inner { counters, shards, reported, is_watched }))
    }

    /// Returns whether the counters were registered by this call.
    #[inline]
    pub(crate) fn add(&self, counter: usize, count: u64) -> bool {
        match shard::own() {
            Some(shard) => {
                let cell = &self.0.shards[shard].0[counter];
                cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
            }
            None => {
                self.0.shards[shard::SHARED].0[counter].fetch_add(count, Ordering::Relaxed);
            }
        }
        !self.0.is_watched.is_completed() && self.register()
    }

    /// Registers all counters at once: what has not happened yet is reported as 0. Otherwise a rate would
    /// not notice the first time.
    #[cold]
    fn register(&self) -> bool {
        let mut is_first = false;
        if self.0.counters.iter().all(Counter::register) {
            self.0.is_watched.call_once(|| {
                watch(&self.0);
                is_first = true;
            });
        }
        is_first
    }
}

impl Inner {
    fn flush(&self) {
        if !self.is_watched.is_completed() {
            return;
        }
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, (counter, reported)) in self.counters.iter().zip(&mut *reported).enumerate() {
            let cells = self.shards.iter().map(|shard| shard.0[index].load(Ordering::Relaxed));
            let total = cells.fold(0, u64::wrapping_add);
            counter.add(total.wrapping_sub(*reported));
            *reported = total;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.flush();
    }
}

static WATCHED: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// Adds the cells up from now on. The thread ends when there is nothing left to watch.
fn watch(inner: &Arc<Inner>) {
    let mut watched = watched();
    watched.push(Arc::downgrade(inner));
    if watched.len() == 1
        && let Err(error) = thread::Builder::new().name("tollgate-metrics".into()).spawn(flush_all)
    {
        watched.clear();
        tracing::error!(target: "tollgate", %error, "no thread for metrics: decisions are not counted");
    }
}

fn flush_all() {
    loop {
        thread::sleep(INTERVAL);
        let sets: Vec<Arc<Inner>> = {
            let mut watched = watched();
            watched.retain(|inner| inner.strong_count() > 0);
            if watched.is_empty() {
                return;
            }
            watched.iter().filter_map(Weak::upgrade).collect()
        };
        sets.iter().for_each(|inner| inner.flush());
    }
}

fn watched() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    // Nothing that panics runs under the lock.
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

    use super::*;
    use crate::metrics::catalog::DECISIONS;

    fn total(prometheus: &PrometheusHandle) -> u64 {
        let text = prometheus.render();
        let lines = text.lines().filter(|line| line.starts_with("tollgate_decisions"));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    /// Some of them have no shard of their own.
    const THREADS: usize = shard::COUNT + 2;

    #[test]
    fn what_many_threads_count_adds_up() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        let counter = |n: usize| Counter::new(&DECISIONS, &[("n", &n.to_string())]);
        let set = CounterSet::new((0..20).map(counter));
        let all_have_counted = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    metrics::with_local_recorder(&recorder, || {
                        for n in 0..20_000 {
                            let _ = set.add(n % 20, 1);
                        }
                    });
                    all_have_counted.wait();
                });
            }
        });
        while total(&prometheus) < THREADS as u64 * 20_000 {
            thread::sleep(INTERVAL / 10);
        }
        let _ = set.add(7, 5);
        drop(set);
        assert_eq!(total(&prometheus), THREADS as u64 * 20_000 + 5, "nothing is lost at the end");
    }
}
