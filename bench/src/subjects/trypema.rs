//! trypema 2.2: sliding windows in Redis, or in the memory of each process, which tells Redis every 10 ms.
//! Without a layer, because it has none.

use std::sync::Arc;

use redis::Client;
use redis::aio::ConnectionManager;
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::redis::{RedisKey, RedisKeyRef, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::{BoxError, Bucket, Operation, address};
use crate::setup::with_nodelay;

/// One call of a script per check.
#[derive(Clone)]
pub(crate) struct Trypema(Arc<RedisRateLimiterProvider>, RateLimit);

impl Trypema {
    pub(crate) async fn new(url: &str, bucket: Bucket) -> Result<Self, BoxError> {
        let builder = RedisRateLimiterProvider::builder(connect(url).await?);
        Ok(Self(builder.window_size(window(bucket)?).build()?, rate(bucket)?))
    }
}

impl Operation for Trypema {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let key = RedisKey::new(address(key).to_string())?;
        Ok(is_allowed(&self.0.absolute().inc(&key, &self.1, 1).await?))
    }
}

/// Its hybrid mode, called as its documentation recommends for hot paths.
#[derive(Clone)]
pub(crate) struct TrypemaHybrid(Arc<HybridRateLimiterProvider>, RateLimit);

impl TrypemaHybrid {
    pub(crate) async fn new(url: &str, bucket: Bucket) -> Result<Self, BoxError> {
        let builder = HybridRateLimiterProvider::builder(connect(url).await?);
        Ok(Self(builder.window_size(window(bucket)?).build()?, rate(bucket)?))
    }
}

impl Operation for TrypemaHybrid {
    async fn execute(&mut self, key: u32) -> Result<bool, BoxError> {
        let (limiter, key) = (self.0.absolute(), address(key).to_string());
        if let Some(decision) = limiter.try_inc(RedisKeyRef::try_from(&*key)?, 1)? {
            return Ok(is_allowed(&decision));
        }
        Ok(is_allowed(&limiter.inc(&RedisKey::new(key)?, &self.1, 1).await?))
    }
}

async fn connect(url: &str) -> Result<ConnectionManager, BoxError> {
    Ok(Client::open(with_nodelay(url)?)?.get_connection_manager().await?)
}

/// A window holds as much as the bucket.
fn window(bucket: Bucket) -> Result<WindowSize, BoxError> {
    Ok(WindowSize::seconds(u64::from(bucket.burst / bucket.per_second))?)
}

fn rate(bucket: Bucket) -> Result<RateLimit, BoxError> {
    Ok(RateLimit::per_second(bucket.per_second.into())?)
}

fn is_allowed(decision: &RateLimitDecision) -> bool {
    matches!(decision, RateLimitDecision::Allowed)
}
