//! The text of a quota: a valid one is the same quota after it was written and read again.

#![no_main]

use fleetlimit::{Limiter, MemoryStore, Quota};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(quota) = text.parse::<Quota>() else { return };
    let written = quota.to_string();
    assert_eq!(written.parse::<Quota>().as_ref(), Ok(&quota), "{text:?} is {written:?}");
    let _ = Limiter::new(MemoryStore::new(), quota);
});
