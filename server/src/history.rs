//! The last 15 minutes, for somebody who opens the live page during an incident: what was decided, by what, and how long
//! it took, of all policies together.
//!
//! A check adds to counters without a lock. A task reads them once per second (for [`Degradation`]), and keeps a sample
//! every [`SECONDS`]. Only this task and the admin API take the lock of what is kept.
//!
//! A policy in shadow mode limits nothing, so what decides its checks does not count here: otherwise an outage in which
//! no limit fails to be enforced would be reported as one in which limits are.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleetlimit::Decision;
use serde::Serialize;
use tokio::time::Instant;

use crate::counts::{Counted, Counts};
use crate::degradation::{Degradation, Degraded};
use crate::durations::{Durations, Recorded};

const SECOND: Duration = Duration::from_secs(1);
/// The seconds between two samples.
pub(crate) const SECONDS: u32 = 5;
/// The samples of 15 minutes.
const SAMPLES: usize = 180;

/// The counters, and the samples of them.
#[derive(Debug, Default)]
pub(crate) struct History {
    counts: Counts,
    durations: Durations,
    kept: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    samples: VecDeque<Sample>,
    degradation: Degradation,
    /// The counts at the end of the last second.
    counted: Counted,
    sampled: Sampled,
}

/// The state at the time of the last sample.
#[derive(Debug, Default)]
struct Sampled {
    counted: Counted,
    recorded: Recorded,
    /// The time since then.
    elapsed: Duration,
    seconds: u32,
}

/// The checks of a few seconds. Times are in seconds, and `time` is that of the end, since 1970.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    time: f64,
    seconds: f64,
    #[serde(flatten)]
    counted: Counted,
    /// The time that half of the checks did not exceed.
    p50: Option<f64>,
    /// The time that 99% of the checks did not exceed.
    p99: Option<f64>,
}

impl History {
    pub(crate) fn add(&self, decision: &Decision, is_shadow: bool) {
        self.counts.add_outcome(decision);
        if !is_shadow {
            self.counts.add_source(decision);
        }
    }

    /// Counts a denial that needed no check.
    pub(crate) fn add_denial(&self) {
        self.counts.add_denial();
    }

    /// Counts a check without a decision.
    pub(crate) fn add_failure(&self) {
        self.counts.add_failure();
    }

    /// Records the duration of a check, with or without a decision.
    pub(crate) fn add_duration(&self, duration: Duration) {
        self.durations.record(duration);
    }

    /// Returns the samples, the oldest first.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.kept().samples.iter().cloned().collect()
    }

    /// Returns `None` if the store decides all checks.
    pub(crate) fn degraded(&self) -> Option<Degraded> {
        self.kept().degradation.get()
    }

    /// Runs until the process exits.
    pub(crate) async fn record(this: Arc<Self>) {
        let (mut start, mut before) = (now(), Instant::now());
        loop {
            tokio::time::sleep(SECOND).await;
            let elapsed = before.elapsed();
            before += elapsed;
            let end = now();
            this.end_second(start, end, elapsed);
            start = end;
        }
    }

    /// Ends a second. It has taken `elapsed`, which is longer if the process did not run for a while. The clock of
    /// `start` and `end` may have been set.
    fn end_second(&self, start: Duration, end: Duration, elapsed: Duration) {
        let counted = self.counts.get();
        let mut kept = self.kept();
        let Record { samples, degradation, counted: before, sampled } = &mut *kept;
        degradation.add(start, end, counted.since(*before));
        *before = counted;
        sampled.elapsed += elapsed;
        sampled.seconds += 1;
        if sampled.seconds < SECONDS {
            return;
        }
        let recorded = self.durations.get();
        let durations = recorded.since(&sampled.recorded);
        let percentile = |percent| Some(durations.percentile(percent)?.as_secs_f64());
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(Sample {
            time: end.as_secs_f64(),
            seconds: sampled.elapsed.as_secs_f64(),
            counted: counted.since(sampled.counted),
            p50: percentile(50),
            p99: percentile(99),
        });
        *sampled = Sampled { counted, recorded, ..Sampled::default() };
    }

    fn kept(&self) -> MutexGuard<'_, Record> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fleetlimit::Source;

    use super::*;

    fn run(history: &History, first: u64, seconds: u64) {
        for second in first..first + seconds {
            let [start, end] = [second, second + 1].map(Duration::from_secs);
            history.end_second(start, end, SECOND);
        }
    }

    #[test]
    fn a_sample_has_what_happened_since_the_last_one() {
        let history = History::default();
        let allowed = Decision::allowed(10, 3);
        history.add(&allowed, false);
        history.add_duration(Duration::from_millis(1));
        run(&history, 0, 5);
        history.add(&Decision::denied(10, SECOND).with_source(Source::Local), false);
        history.add(&allowed, false);
        history.add_denial();
        history.add_failure();
        run(&history, 5, 4);
        assert_eq!(history.samples().len(), 1, "not yet");
        history.end_second(Duration::from_secs(9), Duration::from_secs(30), 21 * SECOND);
        let samples = history.samples();
        let [first, second] = &samples[..] else { panic!("{samples:?}") };
        let expected = Counted { allowed: 1, store: 1, ..Counted::default() };
        assert_eq!((first.time, first.seconds, first.counted), (5.0, 5.0, expected));
        assert!(first.p50.is_some_and(|p50| (0.001..0.00125).contains(&p50)), "{first:?}");
        let expected =
            Counted { allowed: 1, denied: 2, store: 1, local: 1, failed: 1, ..Counted::default() };
        assert_eq!((second.time, second.seconds, second.counted), (30.0, 25.0, expected));
        assert_eq!((second.p50, second.p99), (None, None));
        assert!(history.degraded().is_some());
    }

    #[test]
    fn a_process_that_runs_for_hours_keeps_15_minutes() {
        let history = History::default();
        run(&history, 0, 10_000);
        let samples = history.samples();
        assert_eq!(samples.len(), SAMPLES);
        let span = samples[SAMPLES - 1].time - samples[0].time + samples[0].seconds;
        assert_eq!((samples[SAMPLES - 1].time, span), (10_000.0, 900.0));
    }

    #[test]
    fn what_decides_in_shadow_mode_is_no_degradation() {
        for source in [Source::Local, Source::FailureMode] {
            let history = History::default();
            let decision = Decision::allowed(10, 3).with_source(source);
            history.add(&decision, true);
            run(&history, 0, 5);
            assert!(history.degraded().is_none(), "{source:?}");
            assert_eq!(history.samples()[0].counted.allowed, 1);
            history.add(&decision, false);
            run(&history, 5, 1);
            assert!(history.degraded().is_some(), "{source:?}");
        }
    }
}
