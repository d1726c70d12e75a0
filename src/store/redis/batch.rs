//! Checks that go out in one call: grouped by key, those of a key in the order of their arrival.

use std::fmt::Write;
use std::mem;

use ahash::RandomState;
use indexmap::IndexMap;
use redis::Cmd;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::algorithm::{Debt, TokenBucket};
use crate::{Decision, Error, ErrorKind, Key};

/// One caller's check, waiting for its decision.
#[derive(Debug)]
pub(super) struct Check {
    /// The index of its key in the batch.
    key: usize,
    ask: Ask,
    deadline: Instant,
    caller: Option<oneshot::Sender<Result<Decision, Error>>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Take(u32),
    Peek,
}

impl Ask {
    fn cost(self) -> u32 {
        match self {
            Self::Take(cost) => cost,
            Self::Peek => 0,
        }
    }

    fn decide(self, bucket: &TokenBucket, debt: &mut Debt) -> Decision {
        match self {
            Self::Take(cost) => bucket.check(debt, cost),
            Self::Peek => bucket.peek(*debt),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    /// In the order of their arrival.
    keys: IndexMap<Key, Group, RandomState>,
    /// The index of the key that came last: in a batch of one hot key it is the next one too.
    last: usize,
    /// In the order of arrival, which is that of their deadlines but for moments.
    checks: Vec<Check>,
    /// How many of the checks, from the first, wait no more.
    answered: usize,
}

/// What is asked of one key.
#[derive(Debug)]
pub(super) struct Group {
    /// The slot of its bucket on a cluster.
    pub(super) slot: u16,
    pub(super) costs: Costs,
}

/// The costs of a key's checks, as runs of (count, cost).
#[derive(Debug, Default)]
pub(super) struct Costs(SmallVec<[(u32, u32); 2]>);

impl Costs {
    fn push(&mut self, cost: u32) {
        match self.0.last_mut() {
            Some((count, last)) if *last == cost => *count += 1,
            _ => self.0.push((1, cost)),
        }
    }

    /// Whether they are one check of cost 1, as nearly all are.
    pub(super) fn is_one(&self) -> bool {
        *self.0 == [(1, 1)]
    }

    /// As the script's argument.
    pub(super) fn write(&self, call: &mut Cmd) {
        match self.0.as_slice() {
            [(1, cost)] => {
                call.arg(cost);
            }
            runs => {
                let mut text = String::with_capacity(8 * runs.len());
                for (count, cost) in runs {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{count}:{cost},");
                }
                call.arg(text);
            }
        }
    }
}

impl Batch {
    pub(super) const MAX_KEYS: usize = 128;
    pub(super) const MAX_CHECKS: usize = 1_024;

    /// Whether there is room for a check of this key.
    pub(super) fn has_room_for(&self, key: &Key) -> bool {
        self.checks.len() < Self::MAX_CHECKS
            && (self.keys.len() < Self::MAX_KEYS || self.keys.contains_key(key))
    }

    /// Adds a check of this key, whose bucket is in this slot.
    pub(super) fn push(&mut self, key: &Key, slot: u16, check: Check) {
        if self.keys.get_index(self.last).is_none_or(|(last, _)| last != key) {
            self.last = self.keys.get_index_of(key).unwrap_or_else(|| {
                let group = Group { slot, costs: Costs::default() };
                self.keys.insert_full(key.clone(), group).0
            });
        }
        self.checks.push(Check { key: self.last, ..check });
    }

    /// Leaves out the callers that have gone and those whose deadline has come, and sums up what the
    /// others ask.
    pub(super) fn seal(mut self, now: Instant) -> Self {
        self.expire(now);
        if self.checks.iter().any(Check::is_gone) {
            let gone = mem::take(&mut self);
            for check in gone.checks {
                match gone.keys.get_index(check.key) {
                    Some((key, group)) if !check.is_gone() => self.push(key, group.slot, check),
                    _ => {}
                }
            }
        }
        for check in &self.checks {
            self.keys[check.key].costs.push(check.ask.cost());
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Whether more than one check is in it.
    pub(super) fn is_shared(&self) -> bool {
        self.checks.len() > 1
    }

    /// The keys, in the order in which [`settle`](Self::settle) numbers them.
    pub(super) fn keys(&self) -> &IndexMap<Key, Group, RandomState> {
        &self.keys
    }

    /// When the next caller stops waiting, if any still waits.
    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        while let Some(check) = self.checks.get(self.answered) {
            if check.caller.is_some() {
                return Some(check.deadline);
            }
            self.answered += 1;
        }
        None
    }

    /// Tells the callers whose deadline has come.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let timeout = Error::new(ErrorKind::Timeout, "the store did not answer in time");
            self.checks[self.answered].answer(Err(timeout));
        }
    }

    /// Replays the checks of each key that something is known of, and gives everybody still
    /// waiting the decision that the script made. Each key is settled once.
    pub(super) fn settle(
        &mut self,
        mut keys: Vec<Option<Result<Debt, Error>>>,
        bucket: &TokenBucket,
    ) {
        for check in &mut self.checks {
            let answer = match &mut keys[check.key] {
                Some(Ok(debt)) => Ok(check.ask.decide(bucket, debt)),
                Some(Err(error)) => Err(error.clone()),
                None => continue,
            };
            check.answer(answer);
        }
    }
}

impl Check {
    pub(super) fn new(
        ask: Ask,
        deadline: Instant,
        caller: oneshot::Sender<Result<Decision, Error>>,
    ) -> Self {
        Self { key: 0, ask, deadline, caller: Some(caller) }
    }

    fn is_gone(&self) -> bool {
        self.caller.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn answer(&mut self, answer: Result<Decision, Error>) {
        if let Some(caller) = self.caller.take() {
            // A caller that has gone does not hear it.
            let _ = caller.send(answer);
        }
    }
}
