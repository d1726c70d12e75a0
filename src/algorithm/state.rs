//! What a store keeps of a key.

use super::limit::{Limit, QuotaState};
use super::rate::{BucketState, Rate};

/// Identifies a quota among those of a policy, by a hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaId(u32);

/// The states of the quotas of a key. Revisions of a policy may have different quotas, so each is
/// stored with the identity of its quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A single token bucket, without the name of its quota.
    Lone(BucketState),
    Several(Box<[Entry]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) quota: QuotaId,
    pub(crate) state: QuotaState,
}

impl QuotaId {
    /// A [lone](State::Lone) token bucket.
    pub(crate) const LONE: Self = Self(0);

    /// The 32-bit FNV-1a hash of a name.
    pub(crate) fn of(name: &str) -> Self {
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        Self(name.bytes().fold(0x811c_9dc5, hash))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn from_u32(id: u32) -> Self {
        Self(id)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn to_u32(self) -> u32 {
        self.0
    }
}

impl State {
    /// Of a key that was never used.
    pub(crate) fn unused() -> Self {
        Self::Several(Box::default())
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let (lone, several) = match self {
            Self::Lone(state) => (Some(Entry::lone(*state)), &[][..]),
            Self::Several(entries) => (None, &**entries),
        };
        lone.into_iter().chain(several.iter().cloned())
    }

    /// The rate of a lone token bucket.
    pub(crate) fn lone_rate(&self) -> Option<Rate> {
        match self {
            Self::Lone(state) => Some(state.rate),
            Self::Several(entries) => entries.iter().find_map(|entry| match &entry.state {
                QuotaState::TokenBucket(state) if entry.quota == QuotaId::LONE => Some(state.rate),
                _ => None,
            }),
        }
    }

    /// The entry of a quota of this algorithm. `is_heir` says whether a lone token bucket belongs to it.
    pub(crate) fn find(
        &self,
        quota: QuotaId,
        limit: &Limit,
        is_heir: impl FnOnce(&Self) -> bool,
    ) -> Option<Entry> {
        match self {
            Self::Lone(state) => is_heir(self).then_some(Entry::lone(*state)),
            Self::Several(entries) => {
                let of = |id| {
                    let is_it =
                        move |entry: &&Entry| entry.quota == id && limit.reads(&entry.state);
                    entries.iter().find(is_it)
                };
                of(quota).or_else(|| of(QuotaId::LONE).filter(|_| is_heir(self))).cloned()
            }
        }
    }

    /// When all quotas are as if the key had never been used, in microseconds.
    pub(crate) fn until(&self) -> u64 {
        match self {
            Self::Lone(state) => state.until(),
            Self::Several(entries) => entries.iter().map(Entry::until).max().unwrap_or(0),
        }
    }
}

impl Entry {
    fn lone(state: BucketState) -> Self {
        Self { quota: QuotaId::LONE, state: QuotaState::TokenBucket(state) }
    }

    pub(crate) fn until(&self) -> u64 {
        self.state.until()
    }
}
