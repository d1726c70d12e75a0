//! The data that the instances of a fleet exchange through Redis.
//!
//! `membership` registers this instance, and `presence` notices that it was suspended. `repayment` charges what was
//! taken locally while Redis failed. `lease_returns` gives back what leases have not used. `blocks` reads and changes the list of blocked keys. `opened` warns of a second
//! store in the process, which would count as another instance.

mod blocks;
mod lease_returns;
mod membership;
mod opened;
mod presence;
mod repayment;

pub(super) use self::blocks::RedisBlocks;
pub(super) use self::lease_returns::LeaseReturns;
pub(super) use self::membership::Membership;
pub(super) use self::opened::Opened;
pub(super) use self::repayment::Repayment;

/// Parses what the scripts of this folder reply, for `fuzzing`.
#[cfg(fuzzing)]
pub(super) fn parse_replies(reply: &redis::Value) {
    let _ = (blocks::parse(reply), membership::parse(reply));
}
