//! When a server is not asked any more, because it fails. It does no I/O and reads no clock.
//!
//! A call that fails or is late may mean little: a worker was blocked, or a connection was lost. So it
//! starts a probe, which is a call that no check waits for. If that fails too, and no check has had a good
//! reply meanwhile, the breaker opens. Then checks fail at once, until a probe succeeds. If the runtime gives
//! the probes no time, one check after another is sent instead.

use std::time::{Duration, Instant};

use crate::Error;

/// Between a probe that has succeeded and the next suspicion. Errors of single keys, which are no
/// fault of the server, cost a call per period.
const REST: Duration = Duration::from_millis(100);

const FIRST_INTERVAL: Duration = Duration::from_millis(25);

/// Short enough that checks are decided again within a second after an outage.
const LONGEST_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    open: Option<Open>,
    is_probing: bool,
    rests_until: Option<Instant>,
    faults: Faults,
}

#[derive(Debug)]
struct Open {
    error: Error,
    /// The checks that were not sent.
    refused: u64,
    interval: Duration,
    /// When the next probe starts.
    next: Instant,
    /// Whether a check was sent, because the probe is overdue.
    has_trial: bool,
}

/// The calls that have failed since the last good reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// With an error, or without any reply.
    pub(super) failed: u64,
    /// Without a reply in time.
    pub(super) late: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Failed,
    Late,
}

/// What a probe has shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Probed {
    Works,
    Opens { faults: Faults, next: Instant },
    StaysOpen { next: Instant },
    Closes { refused: u64 },
}

impl Breaker {
    /// A good reply arrived in time. `Closes` if that closes the breaker.
    pub(super) fn succeeded(&mut self) -> Probed {
        self.faults = Faults::default();
        match self.open.take_if(|open| open.has_trial) {
            None => Probed::Works,
            Some(Open { refused, .. }) => Probed::Closes { refused },
        }
    }

    /// A call has failed. Returns whether a probe starts.
    pub(super) fn failed(&mut self, fault: Fault, now: Instant) -> bool {
        match fault {
            Fault::Failed => self.faults.failed += 1,
            Fault::Late => self.faults.late += 1,
        }
        let rests = self.rests_until.is_some_and(|until| now < until);
        let starts = !self.is_probing && (self.open.is_some() || !rests);
        self.is_probing |= starts;
        starts
    }

    /// Why a check is not sent, if it is not: the error of the last probe. A probe takes at most
    /// `timeout`.
    pub(super) fn refuse(&mut self, now: Instant, timeout: Duration) -> Option<Error> {
        let open = self.open.as_mut()?;
        if now.saturating_duration_since(open.next) > timeout + LONGEST_INTERVAL {
            open.next = now;
            open.has_trial = true;
            return None;
        }
        open.refused += 1;
        Some(open.error.clone())
    }

    /// Why checks are not sent, if they are not.
    pub(super) fn open_error(&self) -> Option<&Error> {
        self.open.as_ref().map(|open| &open.error)
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
                self.is_probing = false;
                self.rests_until = Some(now + REST);
                self.faults = Faults::default();
                match open {
                    None => Probed::Works,
                    Some(Open { refused, .. }) => Probed::Closes { refused },
                }
            }
            // A check has had a good reply since the probe began, perhaps on another connection.
            (Err(_), None) if self.faults == Faults::default() => {
                self.is_probing = false;
                Probed::Works
            }
            (Err(error), None) => {
                let interval = FIRST_INTERVAL;
                let next = next(interval);
                self.open = Some(Open { error, refused: 0, interval, next, has_trial: false });
                Probed::Opens { faults: self.faults, next }
            }
            (Err(error), Some(open)) => {
                open.error = error;
                open.interval = (open.interval * 2).min(LONGEST_INTERVAL);
                open.next = next(open.interval);
                Probed::StaysOpen { next: open.next }
            }
        }
    }

    /// A probe will have no result, because its runtime has shut down. The next check starts another.
    pub(super) fn abandoned(&mut self) {
        self.is_probing = false;
    }

    /// Nobody probes any more, and checks are sent again. Returns whether it was open.
    pub(super) fn end(&mut self) -> bool {
        self.is_probing = false;
        self.open.take().is_some()
    }

    /// Whether a probe has to start, because the last one was abandoned. If so, it starts.
    pub(super) fn resume(&mut self) -> bool {
        self.open.is_some() && !std::mem::replace(&mut self.is_probing, true)
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
        let mut breaker = Breaker::default();
        assert!(breaker.failed(Fault::Late, now));
        assert!(matches!(breaker.probed(Err(error()), now, 0.5), Probed::Opens { .. }));
        breaker
    }

    #[test]
    fn a_fault_that_a_probe_does_not_confirm_changes_nothing() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        assert!(breaker.failed(Fault::Failed, start));
        assert!(!breaker.failed(Fault::Failed, start + MS), "one probe at a time");
        assert!(breaker.refuse(start + MS, TIMEOUT).is_none());
        assert_eq!(breaker.probed(Ok(()), start + 2 * MS, 0.5), Probed::Works);
        assert!(breaker.refuse(start + 2 * MS, TIMEOUT).is_none());
    }

    #[test]
    fn a_good_reply_during_a_probe_outweighs_its_failure() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        assert!(breaker.failed(Fault::Failed, start));
        // The check was sent on another connection than the probe.
        breaker.succeeded();
        assert_eq!(breaker.probed(Err(error()), start + MS, 0.5), Probed::Works);
        assert!(breaker.refuse(start + MS, TIMEOUT).is_none());
        assert!(
            breaker.failed(Fault::Failed, start + 2 * MS),
            "the next fault starts another probe"
        );
    }

    #[test]
    fn faults_that_are_none_of_the_server_cost_few_probes() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
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
            assert_eq!(breaker.refuse(start + MS, TIMEOUT).unwrap().to_string(), "late");
        }
        assert_eq!(breaker.succeeded(), Probed::Works, "sent before it opened");
        assert!(breaker.refuse(start + 6 * MS, TIMEOUT).is_some());
        let closes = Probed::Closes { refused: 4 };
        assert_eq!(breaker.probed(Ok(()), start + 7 * MS, 0.5), closes);
        assert!(breaker.refuse(start + 7 * MS, TIMEOUT).is_none());
    }

    #[test]
    fn if_probes_get_no_time_a_check_shows_that_the_server_works() {
        let start = Instant::now();
        let mut breaker = opened(start);
        let is_sent =
            |breaker: &mut Breaker, ms| breaker.refuse(start + ms * MS, TIMEOUT).is_none();
        let sent: Vec<_> = (0..1_000).filter(|&ms| is_sent(&mut breaker, ms)).collect();
        assert_eq!(sent, [319, 620, 921]);
        breaker.failed(Fault::Late, start + 972 * MS);
        assert!(!is_sent(&mut breaker, 1_000));
        assert_eq!(breaker.succeeded(), Probed::Closes { refused: 998 });
        assert!(is_sent(&mut breaker, 1_001));
        assert_eq!(breaker.probed(Ok(()), start + 2_000 * MS, 0.5), Probed::Works, "much later");
    }

    #[test]
    fn only_faults_since_the_last_good_reply_count() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        breaker.failed(Fault::Failed, now);
        breaker.succeeded();
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
        let mut breaker = opened(Instant::now());
        assert!(!breaker.resume(), "it is still probing");
        breaker.abandoned();
        assert!(breaker.resume() && !breaker.resume());
        let mut closed = Breaker::default();
        assert!(!closed.resume());
    }
}
