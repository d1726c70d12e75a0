//! The keys of a store that are blocked for a time.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Error, ErrorKind};

/// The most keys that can be blocked at a time: each process reads all of them once a second.
pub(crate) const MAX_BLOCKED: usize = 1_000;

/// A policy and a key, as [`BlockList`](crate::BlockList) encodes them.
pub(crate) type Member = Vec<u8>;

pub(crate) type Done<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

#[derive(Clone, Debug)]
pub enum BlockChange {
    Block(Member, Duration),
    Unblock(Member),
}

/// The place where the block list of a store is kept.
pub trait Blocks: Debug + Send + Sync {
    /// Returns the part of the list that this process knows.
    fn known(&self) -> &Arc<KnownBlocks>;

    /// Changes the list. This process knows of it when the future is ready.
    fn change(&self, change: BlockChange) -> Done<'_>;

    /// Reads the list. When the future is ready, this process knows what others have changed.
    fn refresh(&self) -> Done<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Lets this process know from now on what others change.
    fn follow(&self) {}
}

/// The blocks that this process knows, until they end.
#[derive(Debug, Default)]
pub struct KnownBlocks {
    /// False if there are none. Read by each check, like `is_followed`.
    is_used: AtomicBool,
    /// True if others may change the list, and this process has to know.
    is_followed: AtomicBool,
    ends: RwLock<HashMap<Member, Instant>>,
}

impl KnownBlocks {
    /// False for most limiters: then a check need not look at the list.
    #[inline(always)]
    pub(crate) fn may_have_any(&self) -> bool {
        self.is_followed.load(Ordering::Relaxed) || !self.is_empty()
    }

    /// Makes checks look at the list from now on, so that one of them starts to follow it again if the runtime
    /// that did has ended.
    #[cfg(feature = "redis")]
    pub(super) fn set_followed(&self) {
        // Not written each time: checks on other threads read it.
        if !self.is_followed.load(Ordering::Relaxed) {
            self.is_followed.store(true, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed)
    }

    /// Returns the time for which a key is still blocked.
    pub(crate) fn remaining(&self, member: &[u8]) -> Option<Duration> {
        let ends = self.ends.read().unwrap_or_else(PoisonError::into_inner);
        remaining(*ends.get(member)?)
    }

    pub(crate) fn list(&self) -> Vec<(Member, Duration)> {
        let ends = self.ends.read().unwrap_or_else(PoisonError::into_inner);
        let blocked =
            ends.iter().filter_map(|(member, end)| Some((member.clone(), remaining(*end)?)));
        blocked.collect()
    }

    /// Replaces the list.
    #[cfg(feature = "redis")]
    pub(super) fn replace(&self, blocked: impl IntoIterator<Item = (Member, Duration)>) {
        let now = Instant::now();
        self.update(|ends| {
            *ends = blocked.into_iter().map(|(member, time)| (member, now + time)).collect();
        });
    }

    fn update<T>(&self, update: impl FnOnce(&mut HashMap<Member, Instant>) -> T) -> T {
        let mut ends = self.ends.write().unwrap_or_else(PoisonError::into_inner);
        let result = update(&mut ends);
        self.is_used.store(!ends.is_empty(), Ordering::Relaxed);
        result
    }
}

fn remaining(end: Instant) -> Option<Duration> {
    end.checked_duration_since(Instant::now()).filter(|remaining| !remaining.is_zero())
}

/// The block list of a process.
impl Blocks for Arc<KnownBlocks> {
    fn known(&self) -> &Arc<KnownBlocks> {
        self
    }

    fn change(&self, change: BlockChange) -> Done<'_> {
        let result = self.update(|ends| {
            let now = Instant::now();
            ends.retain(|_, end| *end > now);
            match change {
                BlockChange::Block(member, time) => {
                    if ends.len() >= MAX_BLOCKED && !ends.contains_key(&member) {
                        return Err(full());
                    }
                    ends.insert(member, now + time);
                }
                BlockChange::Unblock(member) => {
                    ends.remove(&member);
                }
            }
            Ok(())
        });
        Box::pin(std::future::ready(result))
    }
}

pub(super) fn full() -> Error {
    let message = format!("{MAX_BLOCKED} keys are blocked already: unblock some of them first");
    Error::new(ErrorKind::Rejected, message)
}
