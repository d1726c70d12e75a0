//! throttlecrab 0.4: GCRA in the memory of the process. A limiter is for one thread, so it is behind a lock.
//! Without a layer, because it has none.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use super::{BoxError, Bucket, Operation, address};

#[derive(Clone)]
pub(crate) struct Throttlecrab(Arc<Mutex<RateLimiter<PeriodicStore>>>, Bucket);

impl Throttlecrab {
    pub(crate) fn new(bucket: Bucket) -> Self {
        Self(Arc::new(Mutex::new(RateLimiter::new(PeriodicStore::new()))), bucket)
    }
}

impl Operation for Throttlecrab {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let (key, Bucket { per_second, burst }) = (address(key).to_string(), self.1);
        let mut limiter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        let (is_allowed, _) =
            limiter.rate_limit(&key, burst.into(), per_second.into(), 1, 1, now)?;
        Ok(is_allowed)
    }
}
