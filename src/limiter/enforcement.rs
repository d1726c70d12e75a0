//! The keys for which a limiter denies: all of them, or a percentage.

use crate::{ConfigError, Key};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enforcement {
    All,
    /// Only the keys whose hash is below this number.
    Below(u64),
}

impl Enforcement {
    pub(super) fn percent(percent: f64) -> Result<Self, ConfigError> {
        if !(0.0..=100.0).contains(&percent) {
            return Err(ConfigError::new(format!(
                "{percent} is not a percentage of keys: use a number from 0 to 100"
            )));
        }
        Ok(match percent {
            100.0 => Self::All,
            percent => Self::Below((percent / 100.0 * 2f64.powi(64)) as u64),
        })
    }

    #[inline]
    pub(super) fn applies_to(self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Below(end) => spread(key.stable_hash()) < end,
        }
    }
}

/// The hash is for tables: the upper bits of short keys are alike. This is the finalizer of
/// MurmurHash3.
fn spread(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_percentage_adds_keys_and_removes_none() {
        let keys: Vec<Key> = (0..10_000u32).map(Key::from).collect();
        let mut before = 0;
        for percent in [0.0, 1.0, 10.0, 50.0, 99.0, 100.0] {
            let enforcement = Enforcement::percent(percent).unwrap();
            let count = keys.iter().filter(|key| enforcement.applies_to(key)).count();
            let expected = percent * 100.0;
            assert!((count as f64 - expected).abs() <= 150.0, "{percent}%: {count}");
            let smaller = Enforcement::percent(percent / 2.0).unwrap();
            assert!(keys.iter().all(|key| enforcement.applies_to(key) || !smaller.applies_to(key)));
            assert!(count >= before);
            before = count;
        }
        assert_eq!(before, keys.len());
    }

    /// All processes of a fleet must choose the same keys, whatever they were built with.
    #[test]
    fn the_choice_of_keys_never_changes() {
        let half = Enforcement::percent(50.0).unwrap();
        let chosen =
            ["a", "b", "c", "user:7", "203.0.113.7"].map(|key| half.applies_to(&key.into()));
        assert_eq!(chosen, CHOSEN);
    }

    #[test]
    fn what_is_no_percentage_is_an_error() {
        for percent in [-1.0, 100.1, f64::NAN, f64::INFINITY] {
            let error = Enforcement::percent(percent).unwrap_err().to_string();
            assert!(error.contains("use a number from 0 to 100"), "{error}");
        }
    }

    const CHOSEN: [bool; 5] = [false, true, true, false, false];
}
