//! The calls of a batch: as few as the scripts allow, or one for each key on a cluster, where a
//! call can touch only one slot.

use std::ptr;
use std::sync::Arc;

use redis::{Arg, Cmd};
use smallvec::SmallVec;

use super::batch::Group;
use super::script::Script;

/// A command and the slot that it touches.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) slot: u16,
    /// The indices of the groups in its batch that it decides.
    pub(super) groups: SmallVec<[usize; 1]>,
    pub(super) script: &'static Script,
    pub(super) command: Cmd,
}

impl Call {
    /// The calls for the groups of a batch. They name the script by its hash. A server that does
    /// not know it replies NOSCRIPT.
    pub(super) fn of_batch(groups: &[Group<'_>], one_per_key: bool) -> Vec<Self> {
        let share_a_call = |left: &Group<'_>, right: &Group<'_>| {
            !one_per_key
                && left.number == right.number
                && ptr::eq(left.policy.scripts, right.policy.scripts)
        };
        groups.chunk_by(share_a_call).filter_map(Self::evalsha).collect()
    }

    fn evalsha(groups: &[Group<'_>]) -> Option<Self> {
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
        Some(Self { slot: first.slot, groups: indices, script, command })
    }

    /// The same call with the source of the script.
    pub(super) fn with_source(&self) -> Self {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.source);
        for arg in self.command.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        Self { slot: self.slot, groups: self.groups.clone(), script: self.script, command }
    }
}
