//! The lifecycle of a connection: when it is used, made and replaced. It does no I/O and reads no clock.
//!
//! Checks wait for an attempt in flight, unless it takes too long, but not for the next one: between two
//! attempts they fail immediately. So no failure outlives the pause after it, and a burst after an idle time
//! in which the server was restarted waits for a new attempt.

use std::time::Instant;

use super::backoff::Backoff;
use crate::{Error, ErrorKind};

/// An established connection.
pub(crate) trait Established: Clone {
    /// Returns true if a good reply has ever arrived.
    fn is_proven(&self) -> bool;

    /// Returns true if it worked for so long that its end is no sign of a lasting fault.
    fn was_stable(&self, now: Instant) -> bool;

    /// Returns the reason for which it is of no use any more, if it is not.
    fn closed(&self) -> Option<Error>;
}

#[derive(Debug)]
pub(crate) struct Lifecycle<C> {
    phase: Phase<C>,
    /// Counts the attempts to connect.
    attempt: u64,
    backoff: Backoff,
    /// The reason for which there is no connection, for callers that do not wait for one.
    failure: Option<Error>,
}

#[derive(Debug)]
enum Phase<C> {
    Down,
    /// An attempt to connect is in flight. `is_slow` is true if checks do not wait for it any more.
    Connecting {
        is_slow: bool,
    },
    Up(C),
}

/// The next step of a caller who needs a connection.
#[derive(Debug)]
pub(crate) enum Step<C> {
    Use(C),
    Fail(Error),
    /// The caller waits until the attempt in flight has a result.
    Wait,
    /// The caller begins an attempt, and then waits for its result.
    Connect(u64),
}

impl<C> Default for Lifecycle<C> {
    fn default() -> Self {
        Self { phase: Phase::Down, attempt: 0, backoff: Backoff::default(), failure: None }
    }
}

impl<C: Established> Lifecycle<C> {
    /// The connection, whether it works or not.
    pub(crate) fn current(&self) -> Option<&C> {
        match &self.phase {
            Phase::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// The connection, if it has proven itself.
    pub(crate) fn established(&self) -> Option<&C> {
        let connection = self.current()?;
        (connection.is_proven() && connection.closed().is_none()).then_some(connection)
    }

    /// Returns the next step of a caller: it uses the connection, or waits for an attempt. It fails only
    /// between two attempts, so no failure outlives the backoff after it. `has_tried` is true for the
    /// caller that has begun the attempt. `jitter` is a random number from 0 to 1.
    pub(crate) fn step(&mut self, now: Instant, has_tried: bool, jitter: f64) -> Step<C> {
        if let Phase::Up(connection) = &self.phase {
            let Some(error) = connection.closed() else { return Step::Use(connection.clone()) };
            if connection.was_stable(now) {
                self.backoff.reset();
            }
            self.phase = Phase::Down;
            self.failure = Some(error);
        }
        match self.phase {
            Phase::Connecting { is_slow } if has_tried || !is_slow => Step::Wait,
            Phase::Down if !has_tried && self.backoff.may_try(now) => {
                self.attempt += 1;
                self.phase = Phase::Connecting { is_slow: false };
                self.backoff.tried(now, jitter);
                Step::Connect(self.attempt)
            }
            _ => Step::Fail(self.failure.clone().unwrap_or_else(closed)),
        }
    }

    /// An attempt takes so long that checks do not wait for it any more.
    pub(super) fn mark_slow(&mut self, attempt: u64, error: Error) {
        if self.attempt == attempt {
            self.phase = Phase::Connecting { is_slow: true };
            self.failure = Some(error);
        }
    }

    pub(crate) fn connected(&mut self, attempt: u64, connection: C) {
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

    pub(crate) fn failed(&mut self, attempt: u64, error: Error) {
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
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[derive(Clone, Debug, Default)]
    struct Fake(Rc<State>);

    #[derive(Debug, Default)]
    struct State {
        is_proven: Cell<bool>,
        was_stable: Cell<bool>,
        is_closed: Cell<bool>,
    }

    impl Established for Fake {
        fn is_proven(&self) -> bool {
            self.0.is_proven.get()
        }

        fn was_stable(&self, _: Instant) -> bool {
            self.0.was_stable.get()
        }

        fn closed(&self) -> Option<Error> {
            self.0.is_closed.get().then(|| error("closed"))
        }
    }

    fn error(text: &'static str) -> Error {
        Error::new(ErrorKind::Unavailable, text)
    }

    fn step(lifecycle: &mut Lifecycle<Fake>, now: Instant) -> Step<Fake> {
        lifecycle.step(now, false, 1.0)
    }

    fn connect(lifecycle: &mut Lifecycle<Fake>, now: Instant) -> u64 {
        match step(lifecycle, now) {
            Step::Connect(attempt) => attempt,
            step => panic!("{step:?}"),
        }
    }

    fn fails_with(step: Step<Fake>, text: &str) -> bool {
        matches!(&step, Step::Fail(error) if error.to_string() == text)
    }

    /// A stable connection ends, and the attempt to replace it at once fails. Then nobody needs one.
    fn idle_after_a_restart(start: Instant) -> Lifecycle<Fake> {
        let (mut lifecycle, connection) = (Lifecycle::default(), Fake::default());
        let attempt = connect(&mut lifecycle, start);
        lifecycle.connected(attempt, connection.clone());
        connection.0.was_stable.set(true);
        connection.0.is_closed.set(true);
        let attempt = connect(&mut lifecycle, start);
        lifecycle.failed(attempt, error("refused"));
        lifecycle
    }

    #[test]
    fn a_burst_after_a_restart_while_idle_waits_for_a_new_attempt() {
        for idle in [100 * MS, 60_000 * MS] {
            let start = Instant::now();
            let mut lifecycle = idle_after_a_restart(start);
            let now = start + idle;
            let attempt = connect(&mut lifecycle, now);
            for _ in 0..49 {
                assert!(matches!(step(&mut lifecycle, now), Step::Wait), "after {idle:?}");
            }
            lifecycle.connected(attempt, Fake::default());
            for _ in 0..50 {
                assert!(matches!(step(&mut lifecycle, now + MS), Step::Use(_)));
            }
        }
    }

    #[test]
    fn between_two_attempts_callers_fail_at_once_with_the_latest_reason() {
        let start = Instant::now();
        let mut lifecycle = idle_after_a_restart(start);
        for reason in ["first", "second"] {
            let now = start + 1_000 * MS;
            for _ in 0..2 {
                let attempt = connect(&mut lifecycle, now);
                lifecycle.failed(attempt, error(reason));
                assert!(fails_with(lifecycle.step(now, true, 1.0), reason), "who has begun it");
            }
            assert!(fails_with(step(&mut lifecycle, now + 49 * MS), reason));
            lifecycle.backoff.reset();
        }
    }

    #[test]
    fn nobody_else_waits_for_an_attempt_that_takes_long() {
        let (mut lifecycle, now) = (Lifecycle::<Fake>::default(), Instant::now());
        let attempt = connect(&mut lifecycle, now);
        lifecycle.mark_slow(attempt, error("slow"));
        assert!(fails_with(step(&mut lifecycle, now), "slow"));
        assert!(matches!(lifecycle.step(now, true, 1.0), Step::Wait));
        lifecycle.mark_slow(attempt - 1, error("an earlier attempt"));
        assert!(fails_with(step(&mut lifecycle, now), "slow"));
    }

    #[test]
    fn connections_that_never_work_are_not_replaced_at_once() {
        let (mut lifecycle, now) = (Lifecycle::default(), Instant::now());
        for _ in 0..2 {
            let connection = Fake::default();
            let attempt = connect(&mut lifecycle, now);
            lifecycle.connected(attempt, connection.clone());
            assert!(matches!(step(&mut lifecycle, now), Step::Use(_)));
            connection.0.is_closed.set(true);
        }
        assert!(fails_with(step(&mut lifecycle, now + 49 * MS), "closed"));
        connect(&mut lifecycle, now + 50 * MS);
    }

    fn proven() -> Fake {
        let connection = Fake::default();
        connection.0.is_proven.set(true);
        connection
    }

    fn is_established(lifecycle: &Lifecycle<Fake>, connection: &Fake) -> bool {
        lifecycle.established().is_some_and(|established| Rc::ptr_eq(&established.0, &connection.0))
    }

    #[test]
    fn a_connection_is_used_until_another_takes_its_place() {
        let (mut lifecycle, now) = (Lifecycle::default(), Instant::now());
        let attempt = connect(&mut lifecycle, now);
        let [old, new] = [proven(), proven()];
        lifecycle.connected(attempt, old.clone());
        assert!(is_established(&lifecycle, &old));
        assert!(lifecycle.replaced(attempt, new.clone()));
        assert!(is_established(&lifecycle, &new));
        assert!(
            matches!(step(&mut lifecycle, now), Step::Use(used) if Rc::ptr_eq(&used.0, &new.0))
        );
    }

    /// Its task has seen that, and connects again.
    #[test]
    fn a_connection_that_was_closed_meanwhile_is_not_replaced_twice() {
        let (mut lifecycle, now) = (Lifecycle::default(), Instant::now());
        let attempt = connect(&mut lifecycle, now);
        let [old, new] = [proven(), proven()];
        lifecycle.connected(attempt, old.clone());
        old.0.is_closed.set(true);
        assert!(!lifecycle.replaced(attempt, proven()));
        let next = connect(&mut lifecycle, now + 1_000 * MS);
        assert!(!lifecycle.replaced(attempt, proven()));
        lifecycle.connected(next, new.clone());
        assert!(!lifecycle.replaced(attempt, proven()));
        assert!(is_established(&lifecycle, &new));
    }
}
