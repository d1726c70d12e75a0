//! The data that a store keeps of a key: the states of its quotas, each with the identity of its quota, because
//! revisions of a policy may have different quotas. How the entries are encoded is a matter of the stores.

use super::limit::QuotaState;

/// The identity of a quota among those of a policy: a hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaId(u32);

/// The state of one quota of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuotaEntry {
    pub(crate) quota: QuotaId,
    pub(crate) state: QuotaState,
}

impl QuotaId {
    /// The 32-bit FNV-1a hash of a name. It is never 0, so that 0 is free for an entry without an identity.
    pub(crate) fn of(name: &str) -> Self {
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        Self(name.bytes().fold(0x811c_9dc5, hash).max(1))
    }

    pub(crate) const fn from_u32(id: u32) -> Self {
        Self(id)
    }

    pub(crate) fn to_u32(self) -> u32 {
        self.0
    }
}
