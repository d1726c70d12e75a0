//! Leases: permits that a process takes from the store in advance, to decide the next checks of a key in memory.
//!
//! **Over any span, a key gets at most as many permits as without leases.** A permit is used at most the length of a
//! lease after the store has charged it: the process measures the lease from the time at which it *sent* the call, and
//! the store charges the permit later than that. So each permit that is used in a span was charged in that span, or
//! before it by at most the length of a lease. In that time, a token bucket gains the rate times the lease. So the
//! bucket of the store is smaller by that amount (`Limits::leased`). For windows and refills at intervals, nothing is
//! subtracted, because permits are used in the window or interval in which they were charged (`Limits::keeps`).
//! Permits are only given back if they have not refilled since, so they count as if they had never been charged. In a
//! token bucket, what refills after the length of a lease is subtracted in addition, because others may have given
//! back since (`part`). The simulation in `sim` tests this bound.
//!
//! **Few checks are denied that would be allowed without leases.** A request asks for the permits that the process
//! expects to use, but at most for a fraction of those that were free at the last reply (`request`). So the leases of
//! all instances together have at most half of what the store's bucket holds, and shrink as it empties. Near the
//! limit, every check goes to the store.
//!
//! **No check waits for a lease.** A check asks for the next lease before the current one runs out of permits or of
//! time (`KeyLease::check`), unless full batches wait already. A lease has a quarter more permits than the process
//! expects to use, so it often runs out of time first. Permits of an older lease that are not needed any more are given
//! back with the same call.
//!
//! `key_lease` is the entry of one key in the [`StateCache`](super::StateCache): everything that the process knows
//! about the key, under one lock. `part` has the permits that one reply has leased, `demand` estimates the permits
//! that will be used, `request` is the operation that asks for a lease, and `terms` are the settings. `leases` knows
//! when leases end, and collects unused permits. `redis/fleet/lease_returns.rs` gives them back.

mod demand;
mod key_lease;
mod leases;
mod part;
mod request;
#[cfg(all(test, feature = "redis"))]
mod sim;
mod terms;

#[cfg(feature = "redis")]
pub(crate) use key_lease::Leased;
pub(crate) use key_lease::{KeyLease, LeaseDecision, LeaseReport};
pub(crate) use leases::{Leases, RequestGuard, Returned};
pub(crate) use part::Part;
pub(crate) use request::LeaseOp;
pub(crate) use terms::LeaseTerms;
