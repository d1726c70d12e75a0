//! The bucket of a check on its way through the queue.

use std::sync::Arc;

use crate::Key;
use crate::store::redis::script::RedisPolicy;

/// A bucket that a check is about: of a key under a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketRef<'a> {
    pub(super) policy: &'a Arc<RedisPolicy>,
    pub(super) key: &'a Key,
    /// The slot of the key on a cluster. 0 elsewhere.
    pub(super) slot: u16,
}

/// A bucket that outlives the check.
#[derive(Clone, Debug)]
pub(super) struct OwnedBucket {
    pub(super) policy: Arc<RedisPolicy>,
    pub(super) key: Key,
    pub(super) slot: u16,
}

impl BucketRef<'_> {
    pub(super) fn to_owned(self) -> OwnedBucket {
        let Self { policy, key, slot } = self;
        OwnedBucket { policy: policy.clone(), key: key.clone(), slot }
    }
}

impl OwnedBucket {
    pub(super) fn as_ref(&self) -> BucketRef<'_> {
        let Self { policy, key, slot } = self;
        BucketRef { policy, key, slot: *slot }
    }
}
