//! What the process remembers of the store's denials.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::algorithm::TokenBucket;
use crate::decision::Source;
use crate::{Decision, Key};

/// How many callers are remembered, in about 150 bytes each. The cache keeps those that ask again
/// over those that do not, so that a flood of fresh keys does not push out one that is hammered.
const CALLERS: usize = 65_536;

/// The callers that were denied last.
///
/// A bucket's debt shrinks with time and by nothing else but a reset or other numbers, so a denial
/// bounds what the store would say later: denied, for as long as the debt is too large.
#[derive(Debug)]
pub(super) struct Denied {
    callers: Cache<Key, Denial>,
    longest: Duration,
    start: Instant,
    /// Until when any denial answers, in microseconds since the start: as long as nobody is denied,
    /// nobody is looked up.
    latest: AtomicU64,
    /// Counts the resets, so that an answer from before one is not remembered after it.
    epoch: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Denial {
    /// Until when it answers at all.
    until: Instant,
    /// The bucket is not full before this: counted from before the check was sent.
    full_from: Instant,
    /// The bucket is full by this, if nobody is admitted: counted from after the answer came, so
    /// that a client that waits as told is never early.
    full_by: Instant,
}

/// When a check went out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    at: Instant,
    epoch: u64,
}

impl Denied {
    pub(super) const DEFAULT_LONGEST: Duration = Duration::from_secs(1);

    pub(super) fn new(longest: Duration) -> Self {
        Self {
            callers: Cache::new(CALLERS),
            longest,
            start: Instant::now(),
            latest: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    /// The denial that the store would answer, or when the check goes out to it.
    pub(super) fn recall(
        &self,
        key: &Key,
        cost: u32,
        bucket: &TokenBucket,
    ) -> Result<Decision, Sent> {
        let now = Instant::now();
        let sent = Sent { at: now, epoch: self.epoch.load(Ordering::Acquire) };
        if self.micros(now) >= self.latest.load(Ordering::Relaxed) {
            return Err(sent);
        }
        let denial = self.callers.get(key).filter(|denial| now < denial.until).ok_or(sent)?;
        let check = |full: Instant| {
            let left = full.saturating_duration_since(now).as_micros() as u64;
            bucket.check(&mut bucket.debt_of(left), cost)
        };
        if check(denial.full_from).is_allowed() {
            return Err(sent);
        }
        Ok(Decision { source: Source::Remembered, ..check(denial.full_by) })
    }

    /// Remembers a decision if it is a denial.
    pub(super) fn learn(&self, key: &Key, decision: &Decision, sent: Sent) {
        if decision.is_allowed() || sent.epoch != self.epoch.load(Ordering::Acquire) {
            return;
        }
        // The store rounded up to the next microsecond.
        let left = decision.reset_after().saturating_sub(Duration::from_micros(1));
        let denial = Denial {
            until: sent.at + self.longest,
            full_from: sent.at + left,
            full_by: Instant::now() + decision.reset_after(),
        };
        self.callers.insert(key.clone(), denial);
        self.latest.fetch_max(self.micros(denial.until), Ordering::Relaxed);
        // A reset that came between the look and the insertion.
        if sent.epoch != self.epoch.load(Ordering::Acquire) {
            self.callers.remove(key);
        }
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_micros() as u64
    }

    pub(super) fn forget(&self, key: &Key) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.callers.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;
    use std::time::Duration;
    use tokio::time::advance;

    fn bucket() -> TokenBucket {
        TokenBucket::new("", &Quota::per_second(10)).unwrap()
    }

    fn denial(bucket: &TokenBucket) -> Decision {
        bucket.check(&mut bucket.capacity(), 1)
    }

    fn sent(denied: &Denied) -> Sent {
        denied.recall(&"nobody".into(), 1, &bucket()).unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn no_client_is_denied_longer_or_told_less_than_by_the_store() {
        let (denied, bucket, key) = (Denied::new(Duration::from_secs(9)), bucket(), Key::from("a"));
        let sent = sent(&denied);
        advance(Duration::from_millis(7)).await;
        denied.learn(&key, &denial(&bucket), sent);

        let told = denied.recall(&key, 1, &bucket).unwrap();
        assert_eq!(told.retry_after(), Duration::from_millis(100));
        assert_eq!(told.source(), Source::Remembered);
        // Ten cost all that the bucket holds: the wait is for them, not for the one denied.
        assert_eq!(denied.recall(&key, 10, &bucket).unwrap().retry_after(), Duration::from_secs(1));

        // The store may have decided as early as the check was sent.
        advance(Duration::from_millis(93)).await;
        assert!(denied.recall(&key, 1, &bucket).is_err());
        assert!(!denied.recall(&key, 2, &bucket).unwrap().is_allowed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_is_remembered_no_longer_than_set() {
        let (denied, key) = (Denied::new(Duration::from_millis(30)), Key::from("a"));
        denied.learn(&key, &denial(&bucket()), sent(&denied));
        advance(Duration::from_millis(29)).await;
        assert!(denied.recall(&key, 1, &bucket()).is_ok());
        advance(Duration::from_millis(1)).await;
        assert!(denied.recall(&key, 1, &bucket()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_from_before_a_reset_is_not_remembered_after_it() {
        let (denied, key) = (Denied::new(Duration::from_secs(1)), Key::from("a"));
        let sent = sent(&denied);
        denied.forget(&key);
        denied.learn(&key, &denial(&bucket()), sent);
        assert!(denied.recall(&key, 1, &bucket()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_other_keys_does_not_wash_out_a_hammered_one() {
        let (denied, bucket, key) =
            (Denied::new(Duration::from_secs(1)), bucket(), Key::from("hammered"));
        let sent = sent(&denied);
        denied.learn(&key, &denial(&bucket), sent);
        for other in 0..20 * CALLERS {
            denied.learn(&Key::from(other), &denial(&bucket), sent);
            if other % 64 == 0 {
                assert!(denied.recall(&key, 1, &bucket).is_ok(), "after {other} others");
            }
        }
        assert!(denied.callers.len() <= CALLERS);
    }
}
