//! Reports checks and charges that the store did not decide: one line per reason and interval, so that a
//! limit that is not enforced is always visible, and a long outage does not fill the log. Lines are collected
//! under a lock and written after it is released, because a `tracing` subscriber may use the same limiter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::FailureMode;
use crate::error::with_causes;
use crate::log_throttle::LogThrottle;
use crate::{Error, ErrorKind};

/// The consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    DecidesLocally,
    FailsOpen,
    FailsClosed,
    NotCharged,
    Forgives,
}

const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// A line so long after the last failure reports the past.
const LATE_AFTER: Duration = Duration::from_secs(1);

/// More reasons than these are counted together.
const MAX_REASONS: usize = 16;
const OTHERS: &str = "other reasons";

/// No failure is waiting to be reported.
const NEVER: u64 = u64::MAX;

pub(super) struct FailureLog {
    start: Instant,
    /// The time from which a success has something to report, in microseconds since the start.
    next_report: AtomicU64,
    reasons: Mutex<Vec<Reason>>,
}

struct Reason {
    effect: Effect,
    kind: ErrorKind,
    server: String,
    text: String,
    throttle: LogThrottle,
    latest: Instant,
}

/// A line to be logged. Not under the lock, because a subscriber may use the same limiter.
struct FailureLine {
    effect: Effect,
    server: String,
    reason: String,
    count: u64,
    /// The failures may have ended.
    is_late: bool,
}

impl Default for FailureLog {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            next_report: AtomicU64::new(NEVER),
            reasons: Mutex::default(),
        }
    }
}

impl FailureLog {
    pub(super) fn failed(&self, policy: &str, effect: impl Into<Effect>, error: &Error) {
        let (now, effect, text) = (Instant::now(), effect.into(), with_causes(error));
        let server = error.server().unwrap_or_default();
        let lines: Vec<FailureLine> = {
            let mut reasons = self.reasons();
            let is_same = |reason: &Reason| {
                (reason.effect, reason.kind) == (effect, error.kind())
                    && reason.server == server
                    && reason.text == text
            };
            let index = reasons.iter().position(is_same).unwrap_or_else(|| {
                if reasons.len() >= MAX_REASONS {
                    reasons.retain(|reason| !reason.is_over(now));
                }
                let named = reasons.iter().filter(|reason| !reason.is_of_others()).count();
                let (kind, throttle) = (error.kind(), LogThrottle::new(LOG_INTERVAL));
                let (server, text) = match named < MAX_REASONS {
                    true => (server.to_owned(), text),
                    false => (String::new(), OTHERS.to_owned()),
                };
                let is_of_others =
                    |reason: &Reason| reason.is_of_others() && reason.effect == effect;
                let others = reasons.iter().position(is_of_others);
                others.filter(|_| text == OTHERS).unwrap_or_else(|| {
                    reasons.push(Reason { effect, kind, server, text, throttle, latest: now });
                    reasons.len() - 1
                })
            });
            reasons[index].throttle.add();
            reasons[index].latest = now;
            let lines = reasons.iter().filter_map(|reason| reason.line(now)).collect();
            self.schedule(&reasons);
            lines
        };
        log(policy, lines);
    }

    /// Reports what was counted since the last line, and that the failures have ended.
    #[inline]
    pub(super) fn succeeded(&self, policy: &str) {
        let next_report = self.next_report.load(Ordering::Relaxed);
        if next_report != NEVER && self.micros(Instant::now()) >= next_report {
            self.report(policy);
        }
    }

    /// Reports what was counted since the last line, although it is not time for the next one.
    pub(super) fn report_all(&self, policy: &str) {
        let now = Instant::now();
        let lines = {
            let reasons = self.reasons();
            let lines = reasons.iter().filter_map(|reason| reason.next(now)).collect();
            self.schedule(&reasons);
            lines
        };
        log(policy, lines);
    }

    #[cold]
    fn report(&self, policy: &str) {
        let now = Instant::now();
        let (lines, has_ended): (Vec<FailureLine>, _) = {
            let mut reasons = self.reasons();
            let had_checks = reasons.iter().any(|reason| reason.effect.is_of_checks());
            reasons.retain(|reason| !reason.is_over(now));
            let lines = reasons.iter().filter_map(|reason| reason.line(now)).collect();
            self.schedule(&reasons);
            (lines, reasons.is_empty() && had_checks)
        };
        log(policy, lines);
        if has_ended {
            tracing::info!(
                target: "fleetlimit", event = "store_decides_again", policy,
                "rate limit enforced by the store again"
            );
        }
    }

    fn schedule(&self, reasons: &[Reason]) {
        let next_line = reasons.iter().filter_map(|reason| reason.throttle.next_line()).min();
        let next_report = next_line.map_or(NEVER, |next_line| self.micros(next_line.into()));
        self.next_report.store(next_report, Ordering::Relaxed);
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_micros() as u64
    }

    fn reasons(&self) -> MutexGuard<'_, Vec<Reason>> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reason {
    /// Returns true if it stands for those that are not named.
    fn is_of_others(&self) -> bool {
        self.text == OTHERS
    }

    /// Returns true if it has been reported, and has not occurred since for an interval.
    fn is_over(&self, now: Instant) -> bool {
        self.throttle.left_out() == 0 && self.throttle.is_due(now.into_std())
    }

    /// The next line, if it is time for one and there is something to report.
    fn line(&self, now: Instant) -> Option<FailureLine> {
        Some(self.log(self.throttle.line(now.into_std())?, now))
    }

    /// The next line, if there is something to report.
    fn next(&self, now: Instant) -> Option<FailureLine> {
        Some(self.log(self.throttle.line_now(now.into_std())?, now))
    }

    fn log(&self, count: u64, now: Instant) -> FailureLine {
        let is_late = now > self.latest + LATE_AFTER;
        let (effect, server, reason) = (self.effect, self.server.clone(), self.text.clone());
        FailureLine { effect, server, reason, count, is_late }
    }
}

fn log(policy: &str, lines: Vec<FailureLine>) {
    for FailureLine { effect, server, reason, count, is_late } in lines {
        let message = match (effect, is_late) {
            (Effect::DecidesLocally, false) => {
                "rate limit enforced locally, by this instance's share"
            }
            (Effect::DecidesLocally, true) => {
                "rate limit was enforced locally, by this instance's share"
            }
            (Effect::FailsOpen, false) => "rate limit not enforced, failing open",
            (Effect::FailsOpen, true) => "rate limit was not enforced, failed open",
            (Effect::FailsClosed, false) => "rate limit unavailable, failing closed",
            (Effect::FailsClosed, true) => "rate limit was unavailable, failed closed",
            (Effect::NotCharged, false) => "permits are not charged or given back afterwards",
            (Effect::NotCharged, true) => "permits were not charged or given back afterwards",
            (Effect::Forgives, false) => "permits are not charged",
            (Effect::Forgives, true) => "permits were not charged",
        };
        let event =
            if effect.is_of_checks() { "failure_mode_decides" } else { "permits_not_charged" };
        if is_late {
            tracing::info!(target: "fleetlimit", event, policy, server, reason, count, "{message}");
        } else {
            tracing::warn!(target: "fleetlimit", event, policy, server, reason, count, "{message}");
        }
    }
}

impl Effect {
    /// Returns true if it says how checks are decided.
    fn is_of_checks(self) -> bool {
        !matches!(self, Self::NotCharged | Self::Forgives)
    }
}

impl From<FailureMode> for Effect {
    fn from(mode: FailureMode) -> Self {
        match mode {
            FailureMode::Local => Self::DecidesLocally,
            FailureMode::Open => Self::FailsOpen,
            FailureMode::Closed => Self::FailsClosed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only some keys are enforced, and the others are allowed in the failure mode `Closed`.
    #[tokio::test(start_paused = true)]
    async fn what_is_let_through_is_counted_apart_from_what_is_not() {
        let log = FailureLog::default();
        let error = Error::new(ErrorKind::Unavailable, "gone");
        for mode in [FailureMode::Closed, FailureMode::Open, FailureMode::Closed] {
            log.failed("policy", mode, &error);
        }
        let counts = |effect| {
            let reasons = log.reasons();
            let of_effect = reasons.iter().filter(|reason| reason.effect == effect);
            // The first of each is in a line already.
            of_effect.map(|reason| reason.throttle.left_out()).collect::<Vec<_>>()
        };
        assert_eq!((counts(Effect::FailsClosed), counts(Effect::FailsOpen)), (vec![1], vec![0]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_reported_early_is_reported_once() {
        let log = FailureLog::default();
        let fail = || log.failed("policy", FailureMode::Open, &Error::new(ErrorKind::Timeout, "t"));
        let count = || log.reasons()[0].throttle.left_out();
        (0..5).for_each(|_| fail());
        assert_eq!(count(), 4, "the first is in a line");
        log.report_all("policy");
        assert_eq!(count(), 0);
        // An outage goes on, and its lines do not come more often.
        fail();
        assert_eq!(count(), 1);
        tokio::time::advance(LOG_INTERVAL).await;
        fail();
        assert_eq!(count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_is_named_although_there_were_many_others_before() {
        let log = FailureLog::default();
        let fail = |text: &str| {
            log.failed(
                "policy",
                FailureMode::Local,
                &Error::new(ErrorKind::Unavailable, text.to_owned()),
            );
        };
        for n in 0..MAX_REASONS + 5 {
            fail(&n.to_string());
        }
        assert_eq!(log.reasons().len(), MAX_REASONS + 1);
        tokio::time::advance(LOG_INTERVAL / 2).await;
        // All but one happen again.
        for n in 1..=MAX_REASONS {
            fail(&n.to_string());
        }
        tokio::time::advance(LOG_INTERVAL / 2).await;
        fail("NOAUTH");
        let count = |text| log.reasons().iter().filter(|reason| reason.text.contains(text)).count();
        assert_eq!((count("NOAUTH"), count(OTHERS)), (1, 1));
    }
}
