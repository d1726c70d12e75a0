//! The calls of a batch: as few as the scripts allow, or one for each key on a cluster, where a
//! call can touch only one slot.

use std::ptr;
use std::sync::Arc;

use redis::Cmd;

use super::batch::Group;
use crate::store::redis::cluster::Call;

/// The calls for the groups of a batch. They name the script by its hash. A server that does
/// not know it replies NOSCRIPT.
pub(super) fn calls_of(groups: &[Group<'_>], one_per_key: bool) -> Vec<Call> {
    let share_a_call = |left: &Group<'_>, right: &Group<'_>| {
        !one_per_key
            && left.number == right.number
            && ptr::eq(left.policy.scripts, right.policy.scripts)
    };
    groups.chunk_by(share_a_call).filter_map(evalsha).collect()
}

fn evalsha(groups: &[Group<'_>]) -> Option<Call> {
    let first = groups.first()?;
    let (scripts, params) = (first.policy.scripts, &first.policy.params);
    let is_one_policy = groups.iter().all(|group| Arc::ptr_eq(group.policy, first.policy));
    let script = if is_one_policy { &scripts.one } else { &scripts.many };
    let keys = groups.len();
    let quotas = if is_one_policy { 1 } else { keys };
    let args = 3 + 2 * keys + quotas * params.len();
    let mut command = Cmd::with_capacity(args, 64 * (keys + 2));
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
