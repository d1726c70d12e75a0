//! Counters that every check increments.
//!
//! A number that all threads write costs up to a tenth of a check in memory, and an atomic addition a
//! twentieth. So a thread has cells of its own, unless too many have some already, and a thread of this
//! module adds these up four times a second.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::cells::{AtomicRowIndex, COUNTERS, Row, RowIndex};
use super::instrument::{self, Counter};

const INTERVAL: Duration = Duration::from_millis(250);

/// After so many intervals, what has not changed is reported too. A recorder may remove what it does not hear
/// of, and what is added after that is lost.
const KEPT_ALIVE: u32 = 40;

/// Clones share the counters.
#[derive(Debug)]
pub(crate) struct CounterSet {
    /// None until this clone knows that the counters are registered.
    row: AtomicRowIndex,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Made and registered by the first check of a thread that has a recorder.
    counters: OnceLock<Vec<Counter>>,
    /// `None` if there are too many sets: then what is counted is reported at once.
    row: Option<Row>,
    /// The totals of which the recorder knows. Between two reports each grows by less than 2^32.
    reported: Mutex<[u32; COUNTERS]>,
}

impl CounterSet {
    pub(crate) fn new() -> Self {
        Self::with_row(Row::take())
    }

    fn with_row(row: Option<Row>) -> Self {
        let reported = Mutex::new(row.as_ref().map_or([0; COUNTERS], Row::totals));
        Self {
            row: AtomicRowIndex::new(RowIndex::NONE),
            inner: Arc::new(Inner { counters: OnceLock::new(), row, reported }),
        }
    }

    /// The first call with a recorder makes and registers the counters, and returns `true`.
    #[inline(always)]
    pub(crate) fn add<const N: usize>(
        &self,
        counter: usize,
        count: u32,
        make: impl FnOnce() -> [Counter; N],
    ) -> bool {
        const { assert!(N <= COUNTERS) };
        !self.row.load().add(counter, count)
            && self.add_and_register(counter, count, || make().into())
    }

    /// Reports what has been counted, instead of within the next interval.
    pub(crate) fn report(&self) {
        self.inner.flush(false);
    }

    /// Registers all counters at once: what has not happened yet is reported as 0. Otherwise a rate would
    /// not notice the first time.
    #[cold]
    #[inline(never)]
    fn add_and_register(
        &self,
        counter: usize,
        count: u32,
        make: impl FnOnce() -> Vec<Counter>,
    ) -> bool {
        let (row, counters) = (self.inner.row_index(), &self.inner.counters);
        let is_counted = row.add(counter, count);
        let mut is_first = false;
        if counters.get().is_none() && instrument::has_recorder() {
            let made = make();
            made.iter().for_each(Counter::register);
            is_first = counters.set(made).is_ok();
        }
        if is_first {
            watch(&self.inner);
        }
        let Some(counters) = counters.get() else { return false };
        if !is_counted {
            counters[counter].add(count.into());
        }
        self.row.store(row);
        is_first
    }
}

impl Clone for CounterSet {
    fn clone(&self) -> Self {
        Self { row: AtomicRowIndex::new(self.row.load()), inner: self.inner.clone() }
    }
}

impl Inner {
    fn row_index(&self) -> RowIndex {
        self.row.as_ref().map_or(RowIndex::NONE, Row::index)
    }

    /// Reports what has been counted since the last time, and 0 too with `keeps_alive`.
    fn flush(&self, keeps_alive: bool) {
        // A recorder may panic. The thread that reports must not end with it.
        let _ = catch_unwind(AssertUnwindSafe(|| self.report(keeps_alive)));
    }

    fn report(&self, keeps_alive: bool) {
        let Some(counters) = self.counters.get() else { return };
        let Some(row) = &self.row else {
            if keeps_alive {
                counters.iter().for_each(|counter| counter.add(0));
            }
            return;
        };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        for ((counter, reported), total) in counters.iter().zip(&mut *reported).zip(row.totals()) {
            // Writing to all counters of many policies would push what checks need out of the caches.
            if keeps_alive || total != *reported {
                counter.add(total.wrapping_sub(*reported).into());
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
    let is_alone = {
        let mut watched = watched();
        watched.push(Arc::downgrade(inner));
        watched.len() == 1
    };
    if is_alone
        && let Err(error) =
            thread::Builder::new().name("fleetlimit-metrics".into()).spawn(flush_all)
    {
        watched().clear();
        tracing::error!(target: "fleetlimit", %error, "no thread for metrics: decisions are not counted");
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
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    use metrics::{CounterFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
    use metrics_util::MetricKindMask;

    use super::*;
    use crate::metrics::catalog::DECISIONS;
    use crate::metrics::instruments::shard;

    fn total(prometheus: &PrometheusHandle) -> u64 {
        let text = prometheus.render();
        let lines = text.lines().filter(|line| line.starts_with("fleetlimit_decisions"));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    fn one() -> [Counter; 1] {
        [Counter::new(&DECISIONS, &[])]
    }

    fn await_reports(have_arrived: impl Fn() -> bool) {
        let deadline = Instant::now() + 40 * INTERVAL;
        while !have_arrived() {
            assert!(Instant::now() < deadline, "nothing is reported");
            thread::sleep(INTERVAL / 10);
        }
    }

    /// Some of them have no shard of their own.
    const THREADS: usize = shard::COUNT + 2;

    #[test]
    fn what_many_threads_count_adds_up() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        let counter = |n: usize| Counter::new(&DECISIONS, &[("n", n.to_string().into())]);
        let set = CounterSet::new();
        let all_have_counted = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    metrics::with_local_recorder(&recorder, || {
                        for n in 0..20_000 {
                            let _ = set.add::<20>(n % 20, 1, || array::from_fn(counter));
                        }
                    });
                    all_have_counted.wait();
                });
            }
        });
        await_reports(|| total(&prometheus) >= THREADS as u64 * 20_000);
        let _ = set.add(7, 5, one);
        // Its thread may keep it a bit longer.
        set.inner.flush(false);
        drop(set);
        assert_eq!(total(&prometheus), THREADS as u64 * 20_000 + 5, "nothing is lost at the end");
    }

    #[test]
    fn a_set_does_not_report_what_was_counted_in_its_row_before() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        let row = Row::take().unwrap();
        assert!(row.index().add(0, u32::MAX - row.totals()[0]));
        let set = CounterSet::with_row(Some(row));
        metrics::with_local_recorder(&recorder, || set.add(0, 1, one));
        set.inner.flush(false);
        assert_eq!(total(&prometheus), 1);
    }

    #[test]
    fn without_a_recorder_no_counters_are_made() {
        let set = CounterSet::new();
        assert!(!set.add(0, 1, || -> [Counter; 1] { panic!("nobody wants them") }));
    }

    /// Its first increment panics.
    #[derive(Default)]
    struct Fragile {
        has_panicked: AtomicBool,
        count: AtomicU64,
    }

    impl CounterFn for Fragile {
        fn increment(&self, count: u64) {
            assert!(self.has_panicked.swap(true, Ordering::Relaxed), "for the test");
            self.count.fetch_add(count, Ordering::Relaxed);
        }

        fn absolute(&self, _: u64) {}
    }

    struct OfFragile(Arc<Fragile>);

    impl Recorder for OfFragile {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> metrics::Counter {
            metrics::Counter::from_arc(self.0.clone())
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> metrics::Gauge {
            metrics::Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> metrics::Histogram {
            metrics::Histogram::noop()
        }
    }

    #[test]
    fn a_recorder_that_panics_does_not_end_the_reports() {
        let counter = Arc::new(Fragile::default());
        let set = CounterSet::new();
        metrics::with_local_recorder(&OfFragile(counter.clone()), || set.add(0, 3, one));
        await_reports(|| counter.count.load(Ordering::Relaxed) >= 3);
    }

    #[test]
    fn a_set_for_which_there_is_no_row_counts_too() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        let set = CounterSet::with_row(None);
        metrics::with_local_recorder(&recorder, || set.add(0, 6, one));
        assert_eq!(total(&prometheus), 6);
    }

    /// An exporter with an idle timeout would remove the counter of a quiet policy, and what it counts later
    /// would be lost.
    #[test]
    fn a_counter_that_does_not_change_is_kept_by_its_recorder() {
        for row in [Row::take(), None] {
            let recorder = PrometheusBuilder::new()
                .idle_timeout(MetricKindMask::COUNTER, Some(Duration::ZERO))
                .build_recorder();
            let prometheus = recorder.handle();
            let set = CounterSet::with_row(row);
            metrics::with_local_recorder(&recorder, || set.add(0, 1, one));
            for _ in 0..3 {
                set.inner.flush(true);
                assert_eq!(total(&prometheus), 1);
            }
            let _ = set.add(0, 1, one);
            set.inner.flush(false);
            assert_eq!(total(&prometheus), 2);
        }
    }
}
