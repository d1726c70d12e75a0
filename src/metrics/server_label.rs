//! The labels of servers. A recorder never removes a label, and a cluster can report ever new addresses, so
//! the number of labels is bounded.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The most servers that have a label. Redis recommends at most 1,000 nodes.
const MOST: usize = 2_000;

/// Returns the address of a server, or `other`.
pub(super) fn server_label(server: &str) -> &str {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // Nothing that panics runs under the lock.
    label(&mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner), server)
}

fn label<'a>(known: &mut BTreeSet<String>, server: &'a str) -> &'a str {
    if known.len() < MOST {
        known.insert(server.to_owned());
    }
    if known.contains(server) { server } else { "other" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ever_more_addresses_do_not_make_ever_more_series() {
        let mut known = BTreeSet::new();
        let labels: BTreeSet<String> =
            (0..2 * MOST).map(|n| label(&mut known, &format!("10.0.0.1:{n}")).to_owned()).collect();
        assert_eq!(labels.len(), MOST + 1);
        assert_eq!(label(&mut known, "10.0.0.1:0"), "10.0.0.1:0");
        assert_eq!(label(&mut known, "10.0.0.1:3999"), "other");
    }
}
