//! What the targets in `fuzz/` call, and `cargo fuzz` alone compiles: the parsers of what a server sends, and what has
//! to be true whatever the bytes are.

use smallvec::SmallVec;

use super::cluster::parse_view;
use super::fleet::parse_replies;
use super::script::reply::{self, Found, Stored};
use crate::Policy;
use crate::algorithm::Limits;
use crate::verdict::Verdict;

/// Parses a reply in the protocol of Redis, as every parser of replies would.
///
/// # Panics
///
/// If checks could take more from a key than its policy has.
pub fn replies(policy: &Policy, keys: usize, bytes: &[u8]) {
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    let limits = Limits::new(policy, 0).expect("the policy is valid");
    parse_replies(&value);
    parse_view(&value, None);
    parse_view(&value, str::from_utf8(bytes).ok());
    for found in reply::parse(value, keys).into_iter().flatten().flatten() {
        take_all(&limits, &found);
    }
}

/// Decodes what a key holds.
///
/// # Panics
///
/// As [`replies`].
pub fn stored_value(policy: &Policy, now: u64, value: &[u8]) {
    let limits = Limits::new(policy, now).expect("the policy is valid");
    take_all(&limits, &Found { now, stored: Stored::Value(SmallVec::from_slice(value)) });
}

fn take_all(limits: &Limits, found: &Found) {
    let Some(mut standing) = found.standing(limits) else { return };
    let capacity = (1_u64..).take_while(|cost| limits.exceeding_capacity(cost).is_none()).count();
    let checks = (0..=capacity).map(|_| limits.check(&mut standing, &1));
    let allowed = checks.take_while(Verdict::is_allowed).count();
    assert!(allowed <= capacity, "{allowed} permits of {capacity}: {found:?}");
}
