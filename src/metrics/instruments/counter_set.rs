//! Counters that every check increments.
//!
//! A number that all threads write costs up to a tenth of a check in memory, and an atomic addition a
//! twentieth. So a thread has cells of its own, unless too many have some already, and a thread of this
//! module adds these up four times a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::instrument::Counter;
use super::shard;

const INTERVAL: Duration = Duration::from_millis(250);

/// After so many intervals, what has not changed is reported too. A recorder may remove what it does not hear
/// of, and what is added after that is lost.
const KEPT_ALIVE: u32 = 40;

/// Clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct CounterSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    counters: Vec<Counter>,
    /// Each made by the first thread that counts in it, so that what a thread writes of many sets is close
    /// together.
    shards: [OnceLock<Box<Cells>>; shard::COUNT],
    /// How much of each counter the recorder knows.
    reported: Mutex<Vec<u64>>,
    is_watched: Once,
}

/// What a thread reads and writes. The first counters are in the cache line of the flag.
///
/// Processors fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Cells {
    /// Whether the counters are watched, as far as the thread knows.
    is_watched: AtomicBool,
    counts: [AtomicU64; MAX_COUNTERS],
}

const MAX_COUNTERS: usize = 31;

impl CounterSet {
    pub(crate) fn new<const N: usize>(counters: [Counter; N]) -> Self {
        const { assert!(N <= MAX_COUNTERS) };
        let (counters, reported) = (counters.into(), Mutex::new(vec![0; N]));
        let (shards, is_watched) = (Default::default(), Once::new());
        Self(Arc::new(Inner { counters, shards, reported, is_watched }))
    }

    /// Returns whether the counters were registered by this call.
    #[inline]
    pub(crate) fn add(&self, counter: usize, count: u64) -> bool {
        let own = shard::own();
        let shard = &self.0.shards[own.unwrap_or(shard::SHARED)];
        let cells = shard.get().map_or_else(|| new_cells(shard), |cells| &**cells);
        let cell = &cells.counts[counter];
        match own {
            Some(_) => {
                cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
            }
            None => {
                cell.fetch_add(count, Ordering::Relaxed);
            }
        }
        !cells.is_watched.load(Ordering::Relaxed) && self.register(cells)
    }

    /// Registers all counters at once: what has not happened yet is reported as 0. Otherwise a rate would
    /// not notice the first time.
    #[cold]
    fn register(&self, cells: &Cells) -> bool {
        let mut is_first = false;
        if self.0.counters.iter().all(Counter::register) {
            cells.is_watched.store(true, Ordering::Relaxed);
            self.0.is_watched.call_once(|| {
                watch(&self.0);
                is_first = true;
            });
        }
        is_first
    }
}

#[cold]
fn new_cells(shard: &OnceLock<Box<Cells>>) -> &Cells {
    shard.get_or_init(Box::default)
}

impl Inner {
    /// Reports what has been counted since the last time, and 0 too with `keeps_alive`.
    fn flush(&self, keeps_alive: bool) {
        if !self.is_watched.is_completed() {
            return;
        }
        let used: Vec<_> = self.shards.iter().filter_map(OnceLock::get).collect();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, (counter, reported)) in self.counters.iter().zip(&mut *reported).enumerate() {
            let counts = used.iter().map(|cells| cells.counts[index].load(Ordering::Relaxed));
            let total = counts.fold(0, u64::wrapping_add);
            // Writing to all counters of many policies would push what checks need out of the caches.
            if keeps_alive || total != *reported {
                counter.add(total.wrapping_sub(*reported));
                *reported = total;
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.flush(false);
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
    for round in 1_u32.. {
        thread::sleep(INTERVAL);
        let sets: Vec<Arc<Inner>> = {
            let mut watched = watched();
            watched.retain(|inner| inner.strong_count() > 0);
            if watched.is_empty() {
                return;
            }
            watched.iter().filter_map(Weak::upgrade).collect()
        };
        let keeps_alive = round % KEPT_ALIVE == 0;
        sets.iter().for_each(|inner| inner.flush(keeps_alive));
    }
}

fn watched() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    // Nothing that panics runs under the lock.
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::array;
    use std::sync::Barrier;

    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
    use metrics_util::MetricKindMask;

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
        let set = CounterSet::new::<20>(array::from_fn(counter));
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
    /// An exporter with an idle timeout would remove the counter of a quiet policy, and what it counts later
    /// would be lost.
    #[test]
    fn a_counter_that_does_not_change_is_kept_by_its_recorder() {
        let idle = (MetricKindMask::COUNTER, Some(Duration::ZERO));
        let recorder = PrometheusBuilder::new().idle_timeout(idle.0, idle.1).build_recorder();
        let prometheus = recorder.handle();
        let set = CounterSet::new([Counter::new(&DECISIONS, &[])]);
        metrics::with_local_recorder(&recorder, || set.add(0, 1));
        for _ in 0..3 {
            set.0.flush(true);
            assert_eq!(total(&prometheus), 1);
        }
        let _ = set.add(0, 1);
        set.0.flush(false);
        assert_eq!(total(&prometheus), 2);
    }
}
