//! When a connection is used, made and replaced. It does no I/O and reads no clock.

use std::time::Instant;

use super::backoff::Backoff;
use crate::{Error, ErrorKind};

/// An established connection.
pub(super) trait Established: Clone {
    /// Whether a good reply has arrived, ever.
    fn is_proven(&self) -> bool;

    /// Whether it worked for so long that its end is no sign of a lasting fault.
    fn was_stable(&self, now: Instant) -> bool;

    fn has_calls_in_flight(&self, now: Instant) -> bool;

    /// Why it is of no use any more, if it is not.
    fn closed(&self) -> Option<Error>;
}

#[derive(Debug)]
pub(super) struct Lifecycle<C> {
    phase: Phase<C>,
    /// Counts the attempts to connect.
    attempt: u64,
    backoff: Backoff,
    /// Why checks fail until a connection has proven itself.
    failure: Option<Error>,
}

#[derive(Debug)]
enum Phase<C> {
    Down,
    Connecting,
    Up(C),
}

/// What a caller does who needs a connection.
#[derive(Debug)]
pub(super) enum Step<C> {
    Use(C),
    Fail(Error),
    /// Until the attempt under way has a result.
    Wait,
    /// Begins an attempt, and then waits for its result.
    Connect(u64),
}

impl<C> Default for Lifecycle<C> {
    fn default() -> Self {
        Self { phase: Phase::Down, attempt: 0, backoff: Backoff::default(), failure: None }
    }
}

impl<C: Established> Lifecycle<C> {
    /// The connection, whether it works or not.
    pub(super) fn current(&self) -> Option<&C> {
        match &self.phase {
            Phase::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// The connection, if it has proven itself.
    pub(super) fn established(&self) -> Option<&C> {
        let connection = self.current()?;
        (connection.is_proven() && connection.closed().is_none()).then_some(connection)
    }

    /// What a caller does. Only one that has begun an attempt after a failure waits for it; the
    /// others fail immediately. `jitter` is a random number from 0 to 1.
    pub(super) fn step(&mut self, now: Instant, has_tried: bool, jitter: f64) -> Step<C> {
        if let Phase::Up(connection) = &self.phase {
            let connection = connection.clone();
            match connection.closed() {
                None if connection.is_proven() => {
                    self.failure = None;
                    return Step::Use(connection);
                }
                // After a failure, one call at a time tries the new connection.
                None if !connection.has_calls_in_flight(now) => return Step::Use(connection),
                None => {
                    return match &self.failure {
                        Some(failure) => Step::Fail(failure.clone()),
                        None => Step::Use(connection),
                    };
                }
                Some(error) => {
                    self.phase = Phase::Down;
                    if connection.was_stable(now) {
                        self.backoff.reset();
                        self.failure = None;
                    } else {
                        self.failure = Some(error);
                    }
                }
            }
        }
        match (&self.phase, &self.failure) {
            (Phase::Connecting, None) => Step::Wait,
            (Phase::Connecting, Some(_)) if has_tried => Step::Wait,
            (Phase::Down, Some(failure)) if has_tried => Step::Fail(failure.clone()),
            (Phase::Down, _) if self.backoff.may_try(now) => {
                self.attempt += 1;
                self.phase = Phase::Connecting;
                self.backoff.tried(now, jitter);
                Step::Connect(self.attempt)
            }
            (_, Some(failure)) => Step::Fail(failure.clone()),
            (_, None) => Step::Fail(closed()),
        }
    }

    /// An attempt takes so long that checks do not wait for it any more.
    pub(super) fn mark_slow(&mut self, attempt: u64, error: Error) {
        if self.attempt == attempt {
            self.failure = Some(error);
        }
    }

    pub(super) fn connected(&mut self, attempt: u64, connection: C) {
        if self.attempt == attempt {
            self.phase = Phase::Up(connection);
        }
    }

    /// Puts another connection in the place of the current one. Returns false if that is not of this
    /// attempt any more, or is of no use: then there will be a new attempt.
    pub(super) fn replaced(&mut self, attempt: u64, connection: C) -> bool {
        let replaces = self.attempt == attempt
            && matches!(&self.phase, Phase::Up(current) if current.closed().is_none());
        if replaces {
            self.phase = Phase::Up(connection);
        }
        replaces
    }

    pub(super) fn failed(&mut self, attempt: u64, error: Error) {
        if self.attempt == attempt {
            self.phase = Phase::Down;
            self.failure = Some(error);
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to Redis was closed")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A connection that has proven itself.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Fake {
        name: &'static str,
        is_closed: bool,
    }

    impl Established for Fake {
        fn is_proven(&self) -> bool {
            true
        }

        fn was_stable(&self, _: Instant) -> bool {
            true
        }

        fn has_calls_in_flight(&self, _: Instant) -> bool {
            false
        }

        fn closed(&self) -> Option<Error> {
            self.is_closed.then(closed)
        }
    }

    fn open(name: &'static str) -> Fake {
        Fake { name, is_closed: false }
    }

    fn connected(connection: Fake, now: Instant) -> (Lifecycle<Fake>, u64) {
        let mut lifecycle = Lifecycle::default();
        let Step::Connect(attempt) = lifecycle.step(now, false, 0.0) else { panic!() };
        lifecycle.connected(attempt, connection);
        (lifecycle, attempt)
    }

    #[test]
    fn a_connection_is_used_until_another_takes_its_place() {
        let now = Instant::now();
        let (mut lifecycle, attempt) = connected(open("old"), now);
        assert_eq!(lifecycle.established(), Some(&open("old")));
        assert!(lifecycle.replaced(attempt, open("new")));
        assert_eq!(lifecycle.established(), Some(&open("new")));
        assert!(matches!(lifecycle.step(now, false, 0.0), Step::Use(used) if used == open("new")));
    }

    /// Its task has seen that, and connects again.
    #[test]
    fn a_connection_that_was_closed_meanwhile_is_not_replaced_twice() {
        let now = Instant::now();
        let (mut lifecycle, attempt) = connected(Fake { name: "old", is_closed: true }, now);
        assert!(!lifecycle.replaced(attempt, open("late")));
        let later = now + Duration::from_secs(1);
        let Step::Connect(next) = lifecycle.step(later, false, 0.0) else { panic!() };
        assert!(!lifecycle.replaced(attempt, open("late")));
        lifecycle.connected(next, open("new"));
        assert!(!lifecycle.replaced(attempt, open("late")));
        assert_eq!(lifecycle.established(), Some(&open("new")));
    }
}
