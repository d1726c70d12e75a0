//! A call of a script.

use redis::{Arg, Cmd};
use smallvec::SmallVec;

use crate::store::redis::script::Script;

/// The calls of a batch. Most batches have one.
pub(crate) type Calls = SmallVec<[Call; 1]>;

/// A call of a script, as the command and the slot that it touches.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) slot: u16,
    /// The keys that it decides, as indices into what the caller asked for.
    pub(crate) groups: SmallVec<[usize; 1]>,
    pub(crate) script: &'static Script,
    pub(crate) command: Cmd,
}

impl Call {
    /// Returns this call with the source of the script.
    pub(crate) fn with_source(&self) -> Self {
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
