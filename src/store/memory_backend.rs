//! The buckets of a policy in the memory of this process, for the stores that have no server: a [`MemoryStore`]
//! enforces the limits, and a [`DividedStore`] the share of its instance.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;

use super::blocks::Blocks;
use super::divided::{decide, share_of};
use super::fleet::Share;
use super::sealed::Open;
use super::shards::PolicyIndex;
use super::{
    Backend, DividedStore, KeyState, MemoryStore, Op, PendingVerdict, PolicySpec, Registry,
};
use crate::algorithm::Limits;
use crate::verdict::Verdict;
use crate::{ConfigError, Error, Key};

struct MemoryBackend {
    memory: MemoryStore,
    policy: PolicyIndex,
    spec: PolicySpec,
    /// The share of this instance, if a fleet divides the limits.
    share: Option<Arc<ArcSwap<Share>>>,
}

impl Open for MemoryStore {
    fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError> {
        Ok(Arc::new(MemoryBackend::new(self, spec, None)))
    }

    fn clock(&self) -> u64 {
        self.shared.now()
    }

    fn registry(&self) -> (&Registry, &str) {
        (&self.shared.registry, "")
    }

    fn blocks(&self) -> Arc<dyn Blocks> {
        Arc::new(self.shared.blocks.clone())
    }
}

impl Open for DividedStore {
    fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError> {
        Ok(Arc::new(MemoryBackend::new(&self.memory, spec, Some(self.share.clone()))))
    }

    fn clock(&self) -> u64 {
        self.memory.clock()
    }

    fn registry(&self) -> (&Registry, &str) {
        self.memory.registry()
    }

    fn blocks(&self) -> Arc<dyn Blocks> {
        self.memory.blocks()
    }
}

impl MemoryBackend {
    fn new(memory: &MemoryStore, spec: PolicySpec, share: Option<Arc<ArcSwap<Share>>>) -> Self {
        Self { memory: memory.clone(), policy: memory.buckets(&spec.name), spec, share }
    }

    #[inline]
    fn verdict(&self, key: &Key, op: &Op) -> Verdict {
        let Self { memory, policy, spec, share } = self;
        match share {
            None => {
                let unknown = None::<fn(u64) -> Option<KeyState>>;
                memory.verdict(*policy, &spec.limits, key, op, unknown)
            }
            Some(share) => {
                decide(memory, *policy, &spec.limits, &share.load(), (key, op), |_, _| None)
            }
        }
    }
}

impl Backend for MemoryBackend {
    fn decide(&self, key: &Key, op: &Op) -> Option<Result<Verdict, Error>> {
        Some(Ok(self.verdict(key, op)))
    }

    fn poll_check(
        &self,
        key: &Key,
        op: &Op,
        _: &mut PendingVerdict,
        _: &mut Context<'_>,
    ) -> Poll<Result<Verdict, Error>> {
        Poll::Ready(Ok(self.verdict(key, op)))
    }

    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        let limits = &self.spec.limits;
        match limits.has_holds() {
            // What is held is still held, and given back later.
            true => drop(self.verdict(key, &Op::Adjust(limits.refill()))),
            false => self.memory.fill(self.policy, key),
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn held_by(&self, holder: u64, lifetime: u64) -> Arc<dyn Backend> {
        let Self { memory, policy, spec, share } = self;
        let limits = spec.limits.held_by(holder, lifetime);
        let spec = PolicySpec { limits, ..spec.clone() };
        Arc::new(Self { memory: memory.clone(), policy: *policy, spec, share: share.clone() })
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn share(&self, key: &Key) -> Option<Limits> {
        share_of(&self.spec.limits, &self.share.as_ref()?.load(), key)
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").field("spec", &self.spec).finish_non_exhaustive()
    }
}
