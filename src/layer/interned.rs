//! Header values and bodies that are shared without a reference count.
//!
//! The policy field is the same in every response of a policy, and the body in every denial. Cloning a
//! shared value writes its reference count, which every worker thread would do for every response, on
//! one cache line.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Values that are different from the first so many, in the whole process, are shared with a
/// reference count, because interned ones are never freed.
const MAX_VALUES: usize = 1_024;

static VALUES: Mutex<BTreeSet<&'static [u8]>> = Mutex::new(BTreeSet::new());

/// Returns the same bytes, interned if there is room.
pub(super) fn interned(value: Vec<u8>) -> Bytes {
    let mut values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
    match values.get(value.as_slice()) {
        Some(known) => Bytes::from_static(known),
        None if values.len() >= MAX_VALUES => value.into(),
        None => {
            let value = Vec::leak(value);
            values.insert(value);
            Bytes::from_static(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_without_end_do_not_leak_without_end() {
        for policy in 0..10 * MAX_VALUES {
            let value = format!("\"{policy}\";q=1").into_bytes();
            assert_eq!(interned(value.clone()), value);
        }
        assert!(VALUES.lock().unwrap().len() <= MAX_VALUES);
        let known = *VALUES.lock().unwrap().first().unwrap();
        assert_eq!(interned(known.to_vec()).as_ptr(), known.as_ptr());
    }
}
