//! The stores of this process, to notice those that ought to be clones of one store.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::log_throttle::LogThrottle;

/// The least pause between two warnings about the same servers and key prefix. A store that is opened for each
/// request causes few lines.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

static STORES: LazyLock<Mutex<Stores>> = LazyLock::new(Mutex::default);

/// A store that is in use. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Opened(StoreId);

/// The servers of a store, and its key prefix.
type StoreId = (String, String);

#[derive(Debug, Default)]
struct Stores(HashMap<StoreId, Count>);

#[derive(Debug)]
struct Count {
    stores: usize,
    throttle: LogThrottle,
}

impl Opened {
    /// Counts a store. If there is another one for the same buckets, logs a warning.
    pub(crate) fn new(servers: String, server: &str, key_prefix: &str) -> Self {
        let id = (servers, key_prefix.to_owned());
        // Not logged under the lock, because a subscriber may open a store.
        let stores = stores().open(&id, Instant::now());
        if let Some(stores) = stores {
            tracing::warn!(
                target: "fleetlimit", event = "duplicate_store", server, key_prefix, stores,
                "this process has opened several stores for the same server and key prefix. Each has its own \
                 connections and batches, and counts as one more instance, so the share of each in an outage \
                 is smaller: open one store, and clone it"
            );
        }
        Self(id)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        stores().close(&self.0);
    }
}

fn stores() -> MutexGuard<'static, Stores> {
    // Nothing that panics runs under the lock.
    STORES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stores {
    /// Returns the number of stores if it is time for a warning.
    fn open(&mut self, id: &StoreId, now: Instant) -> Option<usize> {
        // A count of 0 is kept for a while, for the time of its next warning.
        self.0.retain(|_, count| count.stores > 0 || !count.throttle.is_due(now));
        let none = || Count { stores: 0, throttle: LogThrottle::new(WARNING_INTERVAL) };
        let count = self.0.entry(id.clone()).or_insert_with(none);
        count.stores += 1;
        let is_line = count.stores > 1 && count.throttle.occurred(now).is_some();
        is_line.then_some(count.stores)
    }

    fn close(&mut self, id: &StoreId) {
        if let Some(count) = self.0.get_mut(id) {
            count.stores -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key_prefix: &str) -> StoreId {
        ("redis:6379/0".to_owned(), key_prefix.to_owned())
    }

    #[test]
    fn a_store_that_is_opened_for_each_request_is_reported_once_a_minute() {
        let (mut stores, start) = (Stores::default(), Instant::now());
        let mut warnings = 0;
        for ms in (0..300_000).step_by(100) {
            let now = start + Duration::from_millis(ms);
            // Two requests at a time.
            warnings +=
                [stores.open(&id("a"), now), stores.open(&id("a"), now)].iter().flatten().count();
            stores.close(&id("a"));
            stores.close(&id("a"));
        }
        assert_eq!(warnings, 5);
    }

    #[test]
    fn a_store_that_replaces_a_dropped_one_is_not_reported() {
        let (mut stores, now) = (Stores::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(stores.open(&id("a"), now), None);
            assert_eq!(stores.open(&id("b"), now), None, "it shares nothing with the other");
            stores.close(&id("a"));
            stores.close(&id("b"));
        }
        assert_eq!(stores.open(&id("a"), now), None);
        assert_eq!(stores.open(&id("a"), now), Some(2));
    }

    #[test]
    fn stores_that_were_dropped_take_no_memory() {
        let (mut stores, start) = (Stores::default(), Instant::now());
        for number in 0..100 {
            let id = id(&number.to_string());
            stores.open(&id, start);
            stores.open(&id, start);
            stores.close(&id);
            stores.close(&id);
        }
        assert_eq!(stores.0.len(), 100);
        stores.open(&id("a"), start + WARNING_INTERVAL);
        assert_eq!(stores.0.len(), 1);
    }
}
