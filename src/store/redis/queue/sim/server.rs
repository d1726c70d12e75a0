//! The servers: they run the specification, one call after another, with a clock of their own.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use super::plan::{Micros, Plan, SECOND, SLOTS};
use crate::Quota;
use crate::algorithm::{BucketState, FullAt, Limit, Limits};
use crate::store::KeyState;
use crate::store::redis::script::{Found, Stored, pack, packed};
use crate::verdict::Verdict;

/// A check of the number `n` has the cost `UNIT + n`, so that the server knows whose cost it is.
pub(super) const UNIT: u64 = 1 << 24;

/// How far the servers' clocks are ahead of simulated time.
const CLOCK: u64 = 1 << 50;

/// The calls of a batch that are still to be answered, with the groups of each.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) slot: u16,
    pub(super) groups: Vec<Group>,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Its index in the batch.
    pub(super) index: usize,
    pub(super) bucket: (usize, u64),
    pub(super) costs: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Found(Vec<(usize, Found)>),
    ReadOnly,
    Moved(usize),
    Ask(usize),
    /// The connection was closed.
    Broken,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) connection: usize,
    pub(super) task: u64,
    pub(super) calls: Vec<Call>,
    pub(super) asking: bool,
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) pending: VecDeque<Request>,
    pub(super) busy_until: Micros,
    pub(super) frozen_until: Micros,
    pub(super) refuses_until: Micros,
    pub(super) is_slow_until: Micros,
    pub(super) read_only_until: Micros,
}

/// What all nodes know together. A slot takes its buckets along when it moves.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) nodes: Vec<Node>,
    pub(super) limits: Limits,
    pub(super) owners: Vec<usize>,
    /// The slots that are moving: the next owner, since when, and until when.
    pub(super) migrations: HashMap<u16, (usize, Micros, Micros)>,
    buckets: HashMap<(usize, u64), Bucket, RandomState>,
}

#[derive(Debug)]
struct Bucket {
    state: KeyState,
    /// A bucket of tokens, which is filled and emptied here without the specification.
    tokens: u128,
    changed: Micros,
}

/// A check that ran.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) cost: u64,
    pub(super) verdict: Verdict,
    /// Whether its key has been admitted more than the burst and the rate allow.
    pub(super) is_too_much: bool,
}

impl Servers {
    pub(super) fn new(plan: &Plan) -> Self {
        let quota = Quota::per_second(plan.rate * UNIT).burst(plan.burst * UNIT);
        Self {
            nodes: (0..plan.nodes).map(|_| Node::default()).collect(),
            limits: Limits::new(&quota.into(), 0).unwrap(),
            owners: (0..SLOTS).map(|slot| usize::from(slot) % plan.nodes).collect(),
            migrations: HashMap::new(),
            buckets: HashMap::default(),
        }
    }

    /// Runs a call on a node, and adds the checks that ran.
    pub(super) fn run(
        &mut self,
        node: usize,
        call: &Call,
        asking: bool,
        now: Micros,
        ran: &mut Vec<Ran>,
    ) -> Reply {
        if self.nodes[node].read_only_until > now {
            return Reply::ReadOnly;
        }
        let owner = self.owners[usize::from(call.slot)];
        let migration = self.migrations.get(&call.slot);
        let has_moved = |&(_, since, until): &(usize, Micros, Micros)| {
            // Keys move one after another.
            let key = call.groups.first().map_or(0, |group| group.bucket.1 % 16);
            now > since && (now - since) * 16 > (until - since) * key
        };
        match migration {
            Some(&(next, ..)) if node == owner && migration.is_some_and(has_moved) => {
                return Reply::Ask(next);
            }
            Some(&(next, ..)) if node == next && asking => {}
            _ if node != owner => return Reply::Moved(owner),
            _ => {}
        }
        let is_alone = call.groups.len() == 1;
        let groups = call.groups.iter().map(|group| self.run_group(group, is_alone, now, ran));
        Reply::Found(groups.collect())
    }

    fn run_group(
        &mut self,
        group: &Group,
        is_alone: bool,
        now: Micros,
        ran: &mut Vec<Ran>,
    ) -> (usize, Found) {
        let limits = &self.limits;
        let Some((_, Limit::TokenBucket(spec))) = limits.iter().next() else { unreachable!() };
        let full = u128::from(spec.refill_ticks());
        let state = self.buckets.entry(group.bucket).or_insert(Bucket {
            state: KeyState::unused(),
            tokens: full,
            changed: now,
        });
        let refilled = u128::from(now - state.changed) * u128::from(spec.rate().scale());
        state.tokens = full.min(state.tokens + refilled);
        state.changed = now;
        let stored = match &state.state {
            // As for values in the short form.
            KeyState::Unnamed(bucket) if is_alone && spec.rate().scale() == 1 => {
                Stored::Level(bucket.debt(CLOCK + now).ticks)
            }
            KeyState::Unnamed(BucketState { full_at: FullAt { micros, ticks }, .. }) => {
                let mut cells = pack(&[*micros as f64, *ticks as f64]);
                cells.truncate(if spec.rate().scale() == 1 { 8 } else { 16 });
                let written = pack(&[CLOCK as f64]);
                Stored::Value([packed::header(limits), written, cells].concat().into())
            }
            KeyState::Entries(_) => Stored::Nothing,
        };
        let mut standing = KeyState::standing(Some(&state.state), limits, CLOCK + now);
        for &cost in &group.costs {
            let verdict = limits.check(&mut standing, &cost);
            let price = u128::from(cost) * u128::from(spec.rate().permit());
            let is_too_much = verdict.is_allowed() && price > state.tokens;
            if verdict.is_allowed() {
                state.tokens = state.tokens.saturating_sub(price);
            }
            ran.push(Ran { cost, verdict, is_too_much });
        }
        state.state = KeyState::after(&standing, None, limits, CLOCK + now);
        let now = if matches!(stored, Stored::Level(_)) { 0 } else { CLOCK + now };
        (group.index, Found { now, stored })
    }
}

const _: () = assert!(CLOCK > SECOND);
