//! The calls of a batch: as few as the scripts allow, or one for each key where a call can touch only one
//! slot. These go out in one pipeline.
//!
//! A call may contain keys of several policies. Then it has the numbers of the quota once per key instead of
//! once per call, which takes the server longer (`lua/many_policies.lua`), so a call for a single policy uses
//! a separate script.
//!
//! A call never names a bucket twice. The script reads all keys before it decides, so a second group of
//! checks on a bucket would not see what the first one charged. Two revisions of a policy, or checks with the
//! numbers of different customers, use the same buckets with different numbers. If they check the same key,
//! they may be in one batch, but go into separate calls, which run one after another (`Group::number`). →
//! `tests/it/queue.rs`
//!
//! A URL does not show whether it leads to a cluster behind one address. That is learned from a reply: such a
//! server refuses a call whose keys are in several slots (CROSSSLOT). Then `Flight::split` encodes the
//! refused groups again, with one key per call, and `ConnectionSet` remembers it. A proxy that routes by the
//! first key refuses nothing, so it has to be announced (`one_key_per_call`). → `tests/it/one_endpoint.rs`

use std::ptr;
use std::sync::Arc;

use redis::Cmd;

use super::batch::Group;
use crate::store::redis::cluster::{Call, Calls};

/// The calls for the groups of a batch. They name the script by its hash. A server that does
/// not know it replies NOSCRIPT. The first call is written into `spare`, a command that is not needed any more,
/// which saves its allocations.
pub(super) fn calls_of(groups: &[Group<'_>], one_per_key: bool, mut spare: Option<Cmd>) -> Calls {
    let share_a_call = |left: &Group<'_>, right: &Group<'_>| {
        !one_per_key
            && left.number == right.number
            && ptr::eq(left.policy.scripts, right.policy.scripts)
    };
    groups.chunk_by(share_a_call).filter_map(|groups| evalsha(groups, spare.take())).collect()
}

fn evalsha(groups: &[Group<'_>], spare: Option<Cmd>) -> Option<Call> {
    let first = groups.first()?;
    let (scripts, params) = (first.policy.scripts, &first.policy.params);
    let is_one_policy = groups.iter().all(|group| Arc::ptr_eq(group.policy, first.policy));
    let script = if is_one_policy { &scripts.one } else { &scripts.many };
    let keys = groups.len();
    let quotas = if is_one_policy { 1 } else { keys };
    let args = 3 + 2 * keys + quotas * params.len();
    let mut command = spare.unwrap_or_else(|| Cmd::with_capacity(args, 64 * (keys + 2)));
    command.clear();
    command.arg("EVALSHA").arg(&script.sha).arg(keys);
    for group in groups {
        command.arg(group.policy.encoder.name(group.key));
    }
    if is_one_policy {
        command.arg(params);
        if !groups.iter().all(|group| group.costs.is_one()) {
            groups.iter().for_each(|group| group.write_costs(&mut command));
        }
    } else {
        for group in groups {
            command.arg(&group.policy.params);
            group.write_costs(&mut command);
        }
    }
    let indices = groups.iter().map(|group| group.index).collect();
    Some(Call { slot: first.slot, groups: indices, script, command })
}
