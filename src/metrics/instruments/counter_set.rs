//! Counters that every check increments.
//!
//! A number that all threads write costs up to a tenth of a check in memory. So threads are spread over
//! several sets of cells, and a thread of this module adds these up four times a second.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::instrument::Counter;

/// Threads that have the same number share their cells.
const SHARDS: usize = 8;

const INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct CounterSet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    counters: Vec<Counter>,
    lines: Box<[Line]>,
    is_watched: Once,
}

/// Of two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; CELLS]);

const CELLS: usize = 16;

impl CounterSet {
    pub(crate) fn new(counters: impl IntoIterator<Item = Counter>) -> Self {
        let counters: Vec<_> = counters.into_iter().collect();
        let lines = SHARDS * counters.len().div_ceil(CELLS);
        let lines = (0..lines).map(|_| Line::default()).collect();
        Self(Arc::new(Inner { counters, lines, is_watched: Once::new() }))
    }

    /// Returns whether the counters were registered by this call.
    #[inline]
    pub(crate) fn add(&self, counter: usize, count: u64) -> bool {
        self.0.cell(shard(), counter).fetch_add(count, Ordering::Relaxed);
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
    #[inline]
    fn cell(&self, shard: usize, counter: usize) -> &AtomicU64 {
        let lines = self.lines.len() / SHARDS;
        &self.lines[shard * lines + counter / CELLS].0[counter % CELLS]
    }

    fn flush(&self) {
        if !self.is_watched.is_completed() {
            return;
        }
        for (index, counter) in self.counters.iter().enumerate() {
            let cells = (0..SHARDS).map(|shard| self.cell(shard, index));
            let used = cells.filter(|cell| cell.load(Ordering::Relaxed) > 0);
            counter.add(used.map(|cell| cell.swap(0, Ordering::Relaxed)).sum());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.flush();
    }
}

#[inline]
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: Cell<usize> = const { Cell::new(usize::MAX) });
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
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
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

    use super::*;
    use crate::metrics::catalog::DECISIONS;

    fn total(prometheus: &PrometheusHandle) -> u64 {
        let text = prometheus.render();
        let lines = text.lines().filter(|line| line.starts_with("tollgate_decisions"));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    #[test]
    fn what_many_threads_count_adds_up() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        let counter = |n: usize| Counter::new(&DECISIONS, &[("n", &n.to_string())]);
        let set = CounterSet::new((0..20).map(counter));
        thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    metrics::with_local_recorder(&recorder, || {
                        for n in 0..20_000 {
                            let _ = set.add(n % 20, 1);
                        }
                    });
                });
            }
        });
        while total(&prometheus) < 2 * SHARDS as u64 * 20_000 {
            thread::sleep(INTERVAL / 10);
        }
        let _ = set.add(7, 5);
        drop(set);
        assert_eq!(
            total(&prometheus),
            2 * SHARDS as u64 * 20_000 + 5,
            "nothing is lost at the end"
        );
    }
}
