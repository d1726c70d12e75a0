//! Counts by the values of descriptors, for `detailed_metric` and `value_to_metric`.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

const DESCRIPTORS: &str = "fleetlimit.server.descriptors";
/// Each series takes memory, here and in Prometheus, and clients choose the values.
const MAX_SERIES: usize = 1_000;
/// The label of all further values.
const OTHER: &str = "other";
/// A longer label is cut.
const MAX_LEN: usize = 256;

/// The values that have a series of their own.
#[derive(Debug, Default)]
pub(super) struct Details(Mutex<HashSet<String>>);

impl Details {
    pub(super) fn count(&self, policy: &str, descriptor: &str, is_allowed: bool) {
        let outcome = if is_allowed { "allowed" } else { "denied" };
        let labels = [
            ("policy", policy.to_owned()),
            ("descriptor", self.label(descriptor)),
            ("outcome", outcome.to_owned()),
        ];
        metrics::counter!(DESCRIPTORS, &labels).increment(1);
    }

    fn label(&self, descriptor: &str) -> String {
        let label: String = descriptor.chars().take(MAX_LEN).collect();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.contains(&label) {
            if seen.len() >= MAX_SERIES {
                return OTHER.to_owned();
            }
            seen.insert(label.clone());
        }
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_add_series_without_a_bound() {
        let details = Details::default();
        let label = |value: usize| details.label(&format!("path_{value}"));
        let labels: HashSet<_> = (0..3 * MAX_SERIES).map(label).collect();
        assert_eq!(labels.len(), MAX_SERIES + 1);
        assert!(labels.contains("path_7") && labels.contains(OTHER));
        assert_eq!(label(7), "path_7");
    }
}
