//! Checks that go out in one call, grouped by key, and in order of arrival for each key.

use std::fmt::Write;
use std::mem;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use redis::Cmd;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::algorithm::{Debt, TokenBucket};
use crate::decision::Verdict;
use crate::{Error, Key};

/// A check that waits for its verdict.
#[derive(Debug)]
pub(super) struct Check {
    /// The index of its key in the batch.
    key: usize,
    op: Op,
    deadline: Instant,
    reply_tx: Option<oneshot::Sender<Result<Verdict, Error>>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Acquire(u64),
    Peek,
}

impl Op {
    fn cost(self) -> u64 {
        match self {
            Self::Acquire(cost) => cost,
            Self::Peek => 0,
        }
    }

    fn decide(self, bucket: &TokenBucket, debt: &mut Debt) -> Verdict {
        match self {
            Self::Acquire(cost) => bucket.check(debt, cost),
            Self::Peek => bucket.peek(*debt),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    /// In order of arrival.
    keys: IndexMap<Key, KeyGroup, RandomState>,
    /// The index of the latest key. In a batch of one hot key it is the next one too.
    last: usize,
    /// In order of arrival, which is nearly that of their deadlines.
    checks: Vec<Check>,
    /// How many checks at the front are complete.
    completed: usize,
}

/// The checks of one key.
#[derive(Debug)]
pub(super) struct KeyGroup {
    /// The slot of its bucket on a cluster.
    pub(super) slot: u16,
    pub(super) costs: Costs,
}

/// The costs of a key's checks, as runs of (count, cost).
#[derive(Debug, Default)]
pub(super) struct Costs(SmallVec<[(u32, u64); 2]>);

impl Costs {
    fn push(&mut self, cost: u64) {
        match self.0.last_mut() {
            Some((count, last)) if *last == cost => *count += 1,
            _ => self.0.push((1, cost)),
        }
    }

    /// Whether this is a single check of cost 1, like nearly all.
    pub(super) fn is_one(&self) -> bool {
        *self.0 == [(1, 1)]
    }

    /// Writes them as an argument of the script.
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

    /// Adds a check of a key whose bucket is in this slot.
    pub(super) fn push(&mut self, key: &Key, slot: u16, check: Check) {
        if self.keys.get_index(self.last).is_none_or(|(last, _)| last != key) {
            self.last = self.keys.get_index_of(key).unwrap_or_else(|| {
                let group = KeyGroup { slot, costs: Costs::default() };
                self.keys.insert_full(key.clone(), group).0
            });
        }
        self.checks.push(Check { key: self.last, ..check });
    }

    /// Removes checks that were cancelled or are too late, and sums up the costs of the others.
    pub(super) fn freeze(mut self, now: Instant, timed_out: impl Fn(u16) -> Error) -> Self {
        self.expire(now, timed_out);
        if self.checks.iter().any(Check::is_cancelled) {
            let all = mem::take(&mut self);
            for check in all.checks {
                match all.keys.get_index(check.key) {
                    Some((key, group)) if !check.is_cancelled() => {
                        self.push(key, group.slot, check)
                    }
                    _ => {}
                }
            }
        }
        for check in &self.checks {
            self.keys[check.key].costs.push(check.op.cost());
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Whether it has more than one check.
    pub(super) fn is_shared(&self) -> bool {
        self.checks.len() > 1
    }

    /// The keys, in the order in which [`complete`](Self::complete) numbers them.
    pub(super) fn keys(&self) -> &IndexMap<Key, KeyGroup, RandomState> {
        &self.keys
    }

    /// When the next check is too late, if any is still pending.
    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        while let Some(check) = self.checks.get(self.completed) {
            if check.reply_tx.is_some() {
                return Some(check.deadline);
            }
            self.completed += 1;
        }
        None
    }

    /// Fails the checks whose deadline has passed. `timed_out` makes the error for a slot.
    pub(super) fn expire(&mut self, now: Instant, timed_out: impl Fn(u16) -> Error) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let slot = self.keys[self.checks[self.completed].key].slot;
            self.checks[self.completed].complete(Err(timed_out(slot)));
        }
    }

    /// Replays the checks of each key whose debt is known, and completes those that are pending with
    /// the verdict that the script reached. Each key is completed once.
    pub(super) fn complete(
        &mut self,
        mut keys: Vec<Option<Result<Debt, Error>>>,
        bucket: &TokenBucket,
    ) {
        for check in &mut self.checks {
            let answer = match &mut keys[check.key] {
                Some(Ok(debt)) => Ok(check.op.decide(bucket, debt)),
                Some(Err(error)) => Err(error.clone()),
                None => continue,
            };
            check.complete(answer);
        }
    }
}

impl Check {
    pub(super) fn new(
        op: Op,
        deadline: Instant,
        reply_tx: oneshot::Sender<Result<Verdict, Error>>,
    ) -> Self {
        Self { key: 0, op, deadline, reply_tx: Some(reply_tx) }
    }

    fn is_cancelled(&self) -> bool {
        self.reply_tx.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn complete(&mut self, answer: Result<Verdict, Error>) {
        if let Some(reply_tx) = self.reply_tx.take() {
            // An error means that the check was cancelled.
            let _ = reply_tx.send(answer);
        }
    }
}
