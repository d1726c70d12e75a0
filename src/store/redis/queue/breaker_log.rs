//! Reports when the circuit breakers of a server open and close. A server that fails again and again
//! causes few lines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::breaker::{Faults, Probed};
use crate::Error;
use crate::log_throttle::LogThrottle;

/// The least time from one pair of lines to the next.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// One for all queues of a server, each of which has a breaker.
#[derive(Debug, Default)]
pub(super) struct BreakerLog(Mutex<OpenBreakers>);

#[derive(Debug)]
struct OpenBreakers {
    throttle: LogThrottle,
    /// The number of breakers that are open.
    open: usize,
    /// True if a line has been logged about the breakers that are open.
    is_reported: bool,
    /// The number of breakers that have opened since the last pair of lines.
    opened: u64,
    faults: Faults,
    refused: u64,
    since: Option<Instant>,
}

/// A line to be logged. Not under the lock, because a subscriber may use the same limiter.
enum BreakerLine {
    Opened { opened: u64, faults: Faults },
    Closed { since: Instant, refused: u64 },
}

impl BreakerLog {
    /// A probe of one of the breakers has ended.
    pub(super) fn probed(
        &self,
        server: &Arc<str>,
        probed: &Probed,
        error: Option<&Error>,
        now: Instant,
    ) {
        let line = self.state().line(probed, now);
        match line {
            Some(BreakerLine::Opened { opened, faults: Faults { failed, late } }) => {
                let reason =
                    error.map(|error| crate::error::with_causes(error)).unwrap_or_default();
                tracing::warn!(
                    target: "fleetlimit", event = "breaker_opened", server = &**server, reason, failed,
                    late, opened,
                    "circuit breaker open: checks are not sent to this server until it works"
                );
            }
            Some(BreakerLine::Closed { since, refused }) => {
                let open_ms = now.saturating_duration_since(since).as_millis() as u64;
                tracing::info!(
                    target: "fleetlimit", event = "breaker_closed", server = &**server, open_ms, refused,
                    "circuit breaker closed: the server works"
                );
            }
            None => {}
        }
    }

    /// A breaker has ended while it was open, because no check needs its server any more.
    pub(super) fn ended(&self, server: &Arc<str>, now: Instant) {
        if let Some(BreakerLine::Closed { since, refused }) =
            self.state().line(&Probed::Closes { refused: 0 }, now)
        {
            let open_ms = now.saturating_duration_since(since).as_millis() as u64;
            tracing::info!(
                target: "fleetlimit", event = "breaker_ended", server = &**server, open_ms, refused,
                "circuit breaker ended: this server is no longer used"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, OpenBreakers> {
        // Nothing that panics runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for OpenBreakers {
    fn default() -> Self {
        Self {
            throttle: LogThrottle::new(LOG_INTERVAL),
            open: 0,
            is_reported: false,
            opened: 0,
            faults: Faults::default(),
            refused: 0,
            since: None,
        }
    }
}

impl OpenBreakers {
    fn line(&mut self, probed: &Probed, now: Instant) -> Option<BreakerLine> {
        match probed {
            Probed::Works => return None,
            Probed::Opens { faults, .. } => {
                self.open += 1;
                self.opened += 1;
                self.faults.failed += faults.failed;
                self.faults.late += faults.late;
                self.since.get_or_insert(now);
            }
            Probed::StaysOpen { .. } => {}
            Probed::Closes { refused } => {
                self.open = self.open.saturating_sub(1);
                self.refused += refused;
            }
        }
        match (self.open > 0, self.is_reported) {
            (true, false) if self.throttle.occurred(now).is_some() => {
                self.is_reported = true;
                let (opened, faults) = (self.opened, self.faults);
                Some(BreakerLine::Opened { opened, faults })
            }
            (false, true) => {
                let (since, refused) = (self.since.unwrap_or(now), self.refused);
                (self.is_reported, self.opened, self.refused) = (false, 0, 0);
                (self.faults, self.since) = (Faults::default(), None);
                // The pause begins with the second line of a pair.
                self.throttle.restart(now);
                Some(BreakerLine::Closed { since, refused })
            }
            (false, false) => {
                // It was too short to be reported. The next line counts it.
                self.since = None;
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn opens(now: Instant) -> Probed {
        Probed::Opens { faults: Faults { failed: 1, late: 2 }, next: now }
    }

    fn closes() -> Probed {
        Probed::Closes { refused: 7 }
    }

    fn lines(state: &mut OpenBreakers, probed: &Probed, now: Instant) -> &'static str {
        match state.line(probed, now) {
            None => "",
            Some(BreakerLine::Opened { .. }) => "opened",
            Some(BreakerLine::Closed { .. }) => "closed",
        }
    }

    #[test]
    fn an_outage_is_reported_once_however_many_breakers_it_opens() {
        let (mut state, now) = (OpenBreakers::default(), Instant::now());
        let outcomes =
            [opens(now), opens(now), Probed::StaysOpen { next: now }, closes(), closes()];
        let reported = outcomes.map(|probed| lines(&mut state, &probed, now));
        assert_eq!(reported, ["opened", "", "", "", "closed"]);
    }

    #[test]
    fn a_server_that_fails_ten_times_a_second_does_not_fill_the_log() {
        let (mut state, start) = (OpenBreakers::default(), Instant::now());
        let mut reported = 0;
        for ms in (0..60_000).step_by(100) {
            let now = start + ms * MS;
            let outcomes = [opens(now), closes()].map(|probed| lines(&mut state, &probed, now));
            reported += outcomes.iter().filter(|line| !line.is_empty()).count();
        }
        assert!((2..=24).contains(&reported), "{reported} lines in a minute");
    }

    /// Also after a long outage.
    #[test]
    fn an_outage_soon_after_another_is_reported_late_but_not_never() {
        let (mut state, opened) = (OpenBreakers::default(), Instant::now());
        let start = opened + 2 * LOG_INTERVAL;
        lines(&mut state, &opens(opened), opened);
        lines(&mut state, &closes(), start);
        let again = start + 100 * MS;
        assert_eq!(lines(&mut state, &opens(again), again), "");
        let later = start + LOG_INTERVAL;
        let Some(BreakerLine::Opened { opened, .. }) =
            state.line(&Probed::StaysOpen { next: later }, later)
        else {
            panic!("it has to be reported by now")
        };
        assert_eq!(opened, 1);
    }
}
