//! Values of keys, which anyone with access to Redis can have written, and other versions have.

#![no_main]

mod policies;

use fleetlimit::internal::fuzzing;
use libfuzzer_sys::fuzz_target;

/// A time in 2286, in microseconds.
const LATEST: u64 = 10_000_000_000_000_000;

fuzz_target!(|input: (u8, u64, &[u8])| {
    let (policy, now, value) = input;
    fuzzing::stored_value(&policies::policy(policy), now % LATEST, value);
});
