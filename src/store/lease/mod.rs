//! Leases: permits that a process takes from the store in advance, and from which it decides the next checks of a
//! key in memory. A lease is a number of checks made in advance.
//!
//! **A span admits what it admits without leases.** A permit is used at most a lease after it was charged,
//! because a lease ends on the clock of the process, counted from when its call was *sent*: the store can only
//! have charged it later. So what is used in a span was charged in that span or at most a lease before. The store
//! has a bucket that holds the rate times the lease less (`Limits::leased`), which is what it gains in that time.
//! Permits of windows and of refills at intervals are used in the window or interval in which they were charged
//! (`Limits::keeps`), so nothing is subtracted. What is given back counts as if it had never been charged, because
//! only what has not refilled since is given back (`part`). → `sim`
//!
//! **It denies little more.** A request asks for what the process expects to use, and at most for a part of what
//! was free at the last reply (`request`). So the leases of all instances together have at most half of what the
//! store's bucket holds, and shrink as it empties. Near the limit, every check goes to the store.
//!
//! **Nobody waits for a lease.** The check that crosses a mark asks for the next one ahead of need, once
//! (`KeyLease::check`), unless full batches wait already. It also asks when time runs out, not only when permits do, because a lease has a quarter
//! more than is expected to be used. What is left of an older part by then goes back with the same call.
//!
//! `key_lease` is the entry of one key in the [`StateCache`](super::StateCache): all that the process knows of the
//! key, under one lock. `part` is what one reply has leased, `demand` estimates what will be used, `request` is the
//! operation that asks for a lease, and `terms` are the settings. `leases` knows when leases end, and collects what
//! is to be given back. `redis/fleet/lease_returns.rs` gives it back.

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
pub(crate) use key_lease::{KeyLease, LeaseAnswer, LeaseReport};
pub(crate) use leases::{InFlight, Leases, Returned};
pub(crate) use part::Part;
pub(crate) use request::{LeaseOp, LeaseRequest};
pub(crate) use terms::LeaseTerms;
