//! What a layer logs at intervals for each item, such as a key or a reason, although clients choose the items.

use std::borrow::Borrow;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::log_throttle::LogThrottle;

/// The items that a layer has logged recently: a line for each, at most once in ten minutes. While there are 16
/// items, it logs no others.
pub(super) struct Logged<T>(Mutex<Vec<(T, LogThrottle)>>);

const MOST: usize = 16;

const LOG_INTERVAL: Duration = Duration::from_secs(600);

impl<T> Logged<T> {
    /// Counts an occurrence of an item. Returns the number of occurrences since its last line if it is time for
    /// another one.
    pub(super) fn occurred<Q>(&self, item: &Q) -> Option<u64>
    where
        T: Borrow<Q>,
        Q: PartialEq + ToOwned<Owned = T> + ?Sized,
    {
        let now = Instant::now().into_std();
        // Nothing that panics leaves it half changed.
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, throttle)) = logged.iter().find(|(known, _)| known.borrow() == item) {
            return throttle.occurred(now);
        }
        if logged.len() >= MOST {
            logged.retain(|(_, throttle)| !throttle.is_due(now));
        }
        let throttle = LogThrottle::new(LOG_INTERVAL);
        let count = throttle.occurred(now);
        (logged.len() < MOST).then(|| logged.push((item.to_owned(), throttle))).and(count)
    }
}

impl<T> Default for Logged<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_can_neither_fill_the_log_nor_hide_what_happens_later() {
        let logged = Logged::<String>::default();
        let lines = |items: std::ops::Range<usize>| {
            items.filter(|item| logged.occurred(item.to_string().as_str()).is_some()).count()
        };
        assert_eq!((lines(0..100), lines(0..100)), (MOST, 0));
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(logged.occurred("0"), Some(2), "what was left out is counted");
        assert_eq!(lines(100..200), MOST - 1);
        assert_eq!(logged.0.lock().unwrap().len(), MOST);
    }
}
