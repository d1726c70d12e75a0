//! The circuit breaker of a queue, which decides when a server is not asked any more. It does no I/O and reads
//! no clock.
//!
//! A late reply or a failed call proves little: a worker was blocked, a connection was lost, a key has the
//! wrong type. So it starts a probe, which is a call that no check waits for: at most one at a time and, while
//! probes succeed, one per `REST`. If that fails too, and no check has had a good reply meanwhile, the breaker
//! opens. Then checks that were not sent fail with the error of the probe, and so do new ones, without a call.
//! Probes go on, and the first good one closes the breaker. Errors of single keys never open it.
//!
//! A runtime that is only polled for checks that fail at once does not run probes. If the prober is overdue, a
//! check is sent instead from time to time: this check is called a trial, and a good reply to it closes the
//! breaker.
//!
//! `node_queue` decides which calls are late or failed, and `InFlightWindow::probe_timeout` how long the first probe
//! may take. `sim/probe.rs` imitates what `node_queue` and `probe` do with a breaker.
//!
//! Each queue has a breaker, because only its own timeout says what is late: a limiter with a timeout below the
//! round trip does not affect its neighbors. The log has one pair of lines per server, whatever the number of
//! breakers (`breaker_log`). → `tests/it/timing/breaker.rs`

use std::time::{Duration, Instant};

use crate::Error;

/// Between a probe that has succeeded and the next suspicion. Errors of single keys, which are no
/// fault of the server, cost a call per period.
const REST: Duration = Duration::from_millis(100);

const FIRST_INTERVAL: Duration = Duration::from_millis(25);

/// Short enough that checks are decided again within a second after an outage.
const LONGEST_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Breaker {
    /// The timeout of checks, and of probes.
    timeout: Duration,
    open: Option<OpenState>,
    /// The time from which the prober is overdue. `None` if there is no prober.
    prober: Option<Instant>,
    rests_until: Option<Instant>,
    faults: Faults,
}

/// The state of a breaker that is open.
#[derive(Debug)]
struct OpenState {
    error: Error,
    /// The checks that were not sent.
    refused: u64,
    interval: Duration,
    /// The time at which the latest trial was sent.
    trial: Option<Instant>,
}

/// The calls that have failed since the last good reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// The number of calls with an error, or without any reply.
    pub(super) failed: u64,
    /// The number of calls without a reply in time.
    pub(super) late: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Failed,
    Late,
}

/// The result of a probe, or of any reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Probed {
    Works,
    Opens { faults: Faults, next: Instant },
    StaysOpen { next: Instant },
    Closes { refused: u64 },
}

impl Breaker {
    pub(super) fn new(timeout: Duration) -> Self {
        let faults = Faults::default();
        Self { timeout, open: None, prober: None, rests_until: None, faults }
    }

    /// A good reply arrived in time to a call that was sent at `sent`. Returns `Closes` if that closes the
    /// breaker.
    pub(super) fn succeeded(&mut self, sent: Instant) -> Probed {
        self.faults = Faults::default();
        match self.open.take_if(|open| open.trial.is_some_and(|trial| trial <= sent)) {
            None => Probed::Works,
            Some(OpenState { refused, .. }) => Probed::Closes { refused },
        }
    }

    /// A call has failed. Returns whether a probe starts.
    pub(super) fn failed(&mut self, fault: Fault, now: Instant) -> bool {
        match fault {
            Fault::Failed => self.faults.failed += 1,
            Fault::Late => self.faults.late += 1,
        }
        let rests = self.rests_until.is_some_and(|until| now < until);
        let starts = match self.open {
            Some(_) => self.prober.is_none(),
            None => !rests && self.prober.is_none_or(|overdue| overdue <= now),
        };
        if starts {
            self.prober = Some(self.overdue_after(now));
        }
        starts
    }

    /// Returns true if a check, or another probe, is sent although the breaker is open, because the prober is
    /// overdue. If so, it counts as sent.
    pub(super) fn starts_trial(&mut self, now: Instant) -> bool {
        let starts = self.is_trial_due(now);
        if starts && let Some(open) = &mut self.open {
            open.trial = Some(now);
            self.prober = Some(self.overdue_after(now));
        }
        starts
    }

    /// Returns the error of the last probe if the breaker is open, and counts a check that is not sent.
    pub(super) fn refuse(&mut self) -> Option<Error> {
        let open = self.open.as_mut()?;
        open.refused += 1;
        Some(open.error.clone())
    }

    /// The error of the next check, if it will not be sent.
    pub(super) fn refusal(&self, now: Instant) -> Option<&Error> {
        self.open_error().filter(|_| !self.is_trial_due(now))
    }

    pub(super) fn open_error(&self) -> Option<&Error> {
        self.open.as_ref().map(|open| &open.error)
    }

    fn is_trial_due(&self, now: Instant) -> bool {
        self.open.is_some() && self.prober.is_some_and(|overdue| overdue <= now)
    }

    /// A probe that starts at this time has ended by then, if its runtime runs it: after a timeout to connect,
    /// and one for its call.
    fn overdue_after(&self, start: Instant) -> Instant {
        start + 2 * self.timeout + LONGEST_INTERVAL
    }

    /// A probe has ended. `jitter` is a random number from 0 to 1, so that the processes of a fleet do
    /// not all probe at the same times.
    pub(super) fn probed(
        &mut self,
        result: Result<(), Error>,
        now: Instant,
        jitter: f64,
    ) -> Probed {
        let next = |interval: Duration| now + interval.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0));
        match (result, &mut self.open) {
            (Ok(()), open) => {
                let open = open.take();
                self.prober = None;
                self.rests_until = Some(now + REST);
                self.faults = Faults::default();
                match open {
                    None => Probed::Works,
                    Some(OpenState { refused, .. }) => Probed::Closes { refused },
                }
            }
            // A check has had a good reply since the probe began, perhaps on another connection.
            (Err(_), None) if self.faults == Faults::default() => {
                self.prober = None;
                self.rests_until = Some(now + REST);
                Probed::Works
            }
            (Err(error), None) => {
                let interval = FIRST_INTERVAL;
                let next = next(interval);
                self.open = Some(OpenState { error, refused: 0, interval, trial: None });
                self.prober = Some(self.overdue_after(next));
                Probed::Opens { faults: self.faults, next }
            }
            (Err(error), Some(open)) => {
                open.error = error;
                open.interval = (open.interval * 2).min(LONGEST_INTERVAL);
                let next = next(open.interval);
                self.prober = Some(self.overdue_after(next));
                Probed::StaysOpen { next }
            }
        }
    }

    /// A probe will have no result, because its runtime has shut down. The next check starts another.
    pub(super) fn abandoned(&mut self) {
        self.prober = None;
    }

    /// Nobody probes any more, and checks are sent again. Returns whether it was open.
    pub(super) fn end(&mut self) -> bool {
        self.prober = None;
        self.open.take().is_some()
    }

    /// Returns true if a probe has to start because the last one was abandoned. If so, it counts as started.
    pub(super) fn resume(&mut self, now: Instant) -> bool {
        let starts = self.open.is_some() && self.prober.is_none();
        if starts {
            self.prober = Some(self.overdue_after(now));
        }
        starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TIMEOUT: Duration = Duration::from_millis(50);

    fn error() -> Error {
        Error::new(crate::ErrorKind::Timeout, "late")
    }

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(TIMEOUT);
        assert!(breaker.failed(Fault::Late, now));
        assert!(matches!(breaker.probed(Err(error()), now, 0.5), Probed::Opens { .. }));
        breaker
    }

    #[test]
    fn a_fault_that_a_probe_does_not_confirm_changes_nothing() {
        let (mut breaker, start) = (Breaker::new(TIMEOUT), Instant::now());
        assert!(breaker.failed(Fault::Failed, start));
        assert!(!breaker.failed(Fault::Failed, start + MS), "one probe at a time");
        assert!(breaker.refuse().is_none());
        assert_eq!(breaker.probed(Ok(()), start + 2 * MS, 0.5), Probed::Works);
        assert!(breaker.refuse().is_none());
    }

    #[test]
    fn a_good_reply_during_a_probe_outweighs_its_failure() {
        let (mut breaker, start) = (Breaker::new(TIMEOUT), Instant::now());
        assert!(breaker.failed(Fault::Failed, start));
        // The check was sent on another connection than the probe.
        breaker.succeeded(start);
        assert_eq!(breaker.probed(Err(error()), start + MS, 0.5), Probed::Works);
        assert!(breaker.refuse().is_none());
        // A server that refuses to write, and replies to checks that only read, costs few probes.
        assert!(!breaker.failed(Fault::Failed, start + 2 * MS));
        assert!(
            breaker.failed(Fault::Failed, start + MS + REST),
            "the next fault starts another probe"
        );
    }

    #[test]
    fn faults_that_are_none_of_the_server_cost_few_probes() {
        let (mut breaker, start) = (Breaker::new(TIMEOUT), Instant::now());
        let mut probes = 0;
        for ms in 0..1_000 {
            if breaker.failed(Fault::Failed, start + ms * MS) {
                probes += 1;
                breaker.probed(Ok(()), start + ms * MS, 0.5);
            }
        }
        assert_eq!(probes, 10);
    }

    #[test]
    fn checks_fail_with_the_cause_until_a_probe_succeeds() {
        let start = Instant::now();
        let mut breaker = opened(start);
        for _ in 0..3 {
            assert_eq!(breaker.refuse().unwrap().to_string(), "late");
        }
        assert_eq!(breaker.succeeded(start), Probed::Works, "sent before it opened");
        assert!(breaker.refuse().is_some());
        let closes = Probed::Closes { refused: 4 };
        assert_eq!(breaker.probed(Ok(()), start + 7 * MS, 0.5), closes);
        assert!(breaker.refuse().is_none());
    }

    #[test]
    fn if_probes_get_no_time_a_check_shows_that_the_server_works() {
        let start = Instant::now();
        let mut breaker = opened(start);
        let tried: Vec<_> =
            (0..1_000).filter(|&ms| breaker.starts_trial(start + ms * MS)).collect();
        assert_eq!(tried, [369, 719]);
        assert!(breaker.refusal(start + 1_068 * MS).is_some());
        assert!(
            breaker.refusal(start + 1_069 * MS).is_none(),
            "what goes with a trial is sent, too"
        );
        assert!(!breaker.failed(Fault::Late, start + 969 * MS), "there is a prober");
        assert_eq!(breaker.succeeded(start + 318 * MS), Probed::Works, "sent before the trial");
        assert!(breaker.open_error().is_some());
        assert_eq!(breaker.succeeded(start + 919 * MS), Probed::Closes { refused: 0 });
        assert!(!breaker.starts_trial(start + 2_000 * MS));
        // Its task has got no time yet. Another runtime may need the server.
        assert!(breaker.failed(Fault::Late, start + 2_000 * MS), "another prober");
        breaker.succeeded(start + 2_000 * MS);
        assert_eq!(breaker.probed(Err(error()), start + 2_001 * MS, 0.5), Probed::Works);
    }

    #[test]
    fn a_prober_that_runs_in_time_is_no_reason_for_a_trial() {
        for jitter in [0.0, 0.5, 1.0] {
            let start = Instant::now();
            let mut breaker = opened(start);
            let mut now = start;
            for _ in 0..10 {
                let Probed::StaysOpen { next } = breaker.probed(Err(error()), now, jitter) else {
                    panic!()
                };
                assert!(!breaker.starts_trial(next + 2 * TIMEOUT));
                now = next + 2 * TIMEOUT;
            }
        }
    }

    #[test]
    fn only_faults_since_the_last_good_reply_count() {
        let (mut breaker, now) = (Breaker::new(TIMEOUT), Instant::now());
        breaker.failed(Fault::Failed, now);
        breaker.succeeded(now);
        breaker.failed(Fault::Late, now);
        breaker.failed(Fault::Late, now);
        let Probed::Opens { faults, .. } = breaker.probed(Err(error()), now, 0.5) else { panic!() };
        assert_eq!(faults, Faults { failed: 0, late: 2 });
    }

    #[test]
    fn an_open_breaker_probes_several_times_a_second_and_no_more() {
        for jitter in [0.0, 0.5, 1.0] {
            let start = Instant::now();
            let mut breaker = opened(start);
            let (mut now, mut probes) = (start, 0);
            while now < start + 60_000 * MS {
                let Probed::StaysOpen { next } = breaker.probed(Err(error()), now, jitter) else {
                    panic!()
                };
                assert!(next <= now + LONGEST_INTERVAL);
                (now, probes) = (next, probes + 1);
            }
            assert!((240..=485).contains(&probes), "{probes} probes in a minute");
        }
    }

    #[test]
    fn a_probe_that_ended_with_its_runtime_is_replaced() {
        let start = Instant::now();
        let mut breaker = opened(start);
        assert!(!breaker.resume(start), "it is still probing");
        breaker.abandoned();
        assert!(breaker.resume(start) && !breaker.resume(start));
        assert!(!breaker.starts_trial(start + TIMEOUT), "it has only just begun");
        let mut closed = Breaker::new(TIMEOUT);
        assert!(!closed.resume(start));
    }
}
