//! Holds that clients identify by a token: what they hold is taken from the limiter, and lasts for a time.
//!
//! A `token` is the record of a hold, signed, so that any instance can continue it and no client can change it. The
//! store does not know tokens. So `ended` remembers which holds have ended, until their tokens are too old, and
//! nothing is given back twice. `in_flight` counts the permits for operators.

mod ended;
mod in_flight;
mod token;

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use fleetlimit::Policy;

pub(crate) use ended::{ENDED_HOLDS, End, EndedHolds};
pub(crate) use in_flight::InFlight;
pub(crate) use token::{HoldToken, Invalid, TokenKey};

/// The range of seconds for which a hold lasts.
pub(crate) const SECONDS: RangeInclusive<u64> = 1..=3_600;
/// The seconds of a hold that names none.
pub(crate) const DEFAULT_SECONDS: u64 = 60;

/// Returns true if permits of the policy have to be given back.
pub(crate) fn are_in(policy: &Policy) -> bool {
    policy.quotas().any(|(_, quota)| quota.is_concurrent())
}

/// Returns the error of a gateway that uses a policy whose permits have to be given back.
pub(crate) fn unreleased(policy: &str) -> String {
    format!(
        "the policy `{policy}` limits requests in flight, but gateways do not report when a request has ended: only \
         /v1/hold can use it"
    )
}

/// Returns the milliseconds since 1970.
pub(crate) fn unix_millis() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
