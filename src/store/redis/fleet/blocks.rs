//! The block list in Redis, which each process reads from time to time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use crate::error::with_causes;
use crate::store::blocks::{BlockChange, Blocks, Done, KnownBlocks, MAX_BLOCKED, Member, full};
use crate::store::redis::cluster::Topology;
use crate::store::redis::script::slot_of;
use crate::store::redis::sole_task::SoleTask;
use crate::{Error, ErrorKind};

const SCRIPT: &str = include_str!("../../../../lua/block_list.lua");

/// A block reaches all processes in this time.
const INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(1);

/// The hash tag of the key.
const TAG: &str = "blocked";

#[derive(Debug)]
pub(crate) struct RedisBlocks {
    topology: Topology,
    key: String,
    slot: u16,
    known: Arc<KnownBlocks>,
    /// The number of replies that have replaced the list.
    version: Mutex<u64>,
    following: Arc<SoleTask>,
    has_warned: AtomicBool,
    this: Weak<Self>,
}

impl RedisBlocks {
    pub(crate) fn new(topology: Topology, key_prefix: &str) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            topology,
            key: format!("{key_prefix}:{{{TAG}}}"),
            slot: slot_of(TAG),
            known: Arc::default(),
            version: Mutex::default(),
            following: Arc::default(),
            has_warned: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Calls the script, and remembers the list that it returns. Returns whether it did: not if another
    /// reply was remembered meanwhile, because that one may be newer.
    async fn call(&self, args: &[&[u8]]) -> Result<bool, Error> {
        let before = *self.version();
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SCRIPT).arg(1).arg(&self.key);
        for arg in args {
            command.arg(arg);
        }
        let deadline = Instant::now() + TIMEOUT;
        let reply = self.topology.call(self.slot, command, deadline).await;
        let reply = reply.map_err(|error| if is_full(&error) { full() } else { error })?;
        let blocked = parse(&reply)
            .ok_or_else(|| Error::new(ErrorKind::Server, "the reply is not a block list"))?;
        let mut version = self.version();
        let is_latest = *version == before;
        if is_latest {
            *version += 1;
            self.known.replace(blocked);
        }
        Ok(is_latest)
    }

    async fn read(&self) -> Result<(), Error> {
        while !self.call(&[b"list"]).await? {}
        Ok(())
    }

    fn version(&self) -> MutexGuard<'_, u64> {
        lock(&self.version)
    }

    /// Once, because it does not change unless someone changes the permissions.
    fn warn(&self, error: &Error) {
        if !error.is_transient() && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "fleetlimit", event = "block_list_unreadable", key = self.key,
                reason = with_causes(error),
                "this instance cannot read which keys are blocked"
            );
        }
    }
}

impl Blocks for RedisBlocks {
    fn known(&self) -> &Arc<KnownBlocks> {
        &self.known
    }

    fn change(&self, change: BlockChange) -> Done<'_> {
        Box::pin(async move {
            let is_known = match change {
                BlockChange::Block(member, time) => {
                    let (time, most) = (time.as_millis().to_string(), MAX_BLOCKED.to_string());
                    self.call(&[b"block", &member, time.as_bytes(), most.as_bytes()]).await?
                }
                BlockChange::Unblock(member) => self.call(&[b"unblock", &member]).await?,
            };
            if is_known { Ok(()) } else { self.read().await }
        })
    }

    fn refresh(&self) -> Done<'_> {
        Box::pin(self.read())
    }

    fn follow(&self) {
        self.known.set_followed();
        self.following.repeat(&self.this, TIMEOUT, |blocks| async move {
            // While Redis fails, the blocks that are known go on.
            if let Err(error) = blocks.read().await {
                blocks.warn(&error);
            }
            ControlFlow::Continue(INTERVAL)
        });
    }
}

fn is_full(error: &Error) -> bool {
    with_causes(error).contains("FLEETLIMIT_FULL")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reply is not trusted.
pub(super) fn parse(reply: &Value) -> Option<Vec<(Member, Duration)>> {
    let Value::Array(parts) = reply else { return None };
    let mut blocked = Vec::with_capacity(parts.len() / 2);
    for pair in parts.chunks(2).take(MAX_BLOCKED) {
        let [Value::BulkString(member), Value::BulkString(millis)] = pair else { return None };
        let millis: u64 = str::from_utf8(millis).ok()?.parse().ok()?;
        blocked.push((member.clone(), Duration::from_millis(millis.min(MAX_MILLIS))));
    }
    Some(blocked)
}

/// A thousand years, which can be added to any time.
const MAX_MILLIS: u64 = 1_000 * 365 * 24 * 60 * 60 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_not_a_list_changes_nothing() {
        let text = |text: &str| Value::BulkString(text.into());
        let good =
            Value::Array(vec![text("a"), text("1500"), text("b"), text("18446744073709551615")]);
        let blocked = parse(&good).unwrap();
        assert_eq!(blocked[0], (b"a".to_vec(), Duration::from_millis(1_500)));
        assert_eq!(blocked[1].1, Duration::from_millis(MAX_MILLIS));
        for garbage in [
            Value::Nil,
            Value::Array(vec![text("a")]),
            Value::Array(vec![text("a"), text("-5")]),
            Value::Array(vec![text("a"), Value::Int(5)]),
        ] {
            assert_eq!(parse(&garbage), None);
        }
    }
}
