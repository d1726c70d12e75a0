//! What the Redis store computes once for a policy.

use std::ptr;
use std::time::Duration;

use super::key_encoder::KeyEncoder;
use super::script::{Params, Scripts};
use crate::ConfigError;
use crate::algorithm::TokenBucket;
use crate::store::PolicySpec;

#[derive(Debug)]
pub(super) struct RedisPolicy {
    pub(super) bucket: TokenBucket,
    /// The longest that a check may take.
    pub(super) timeout: Duration,
    pub(super) encoder: KeyEncoder,
    pub(super) scripts: &'static Scripts,
    pub(super) params: Params,
}

impl RedisPolicy {
    pub(super) fn new(spec: &PolicySpec, key_prefix: &str) -> Result<Self, ConfigError> {
        let (scripts, params) = Scripts::of(&spec.bucket);
        Ok(Self {
            bucket: spec.bucket,
            timeout: spec.timeout,
            encoder: KeyEncoder::new(key_prefix, &spec.name)?,
            scripts,
            params,
        })
    }

    /// Whether checks under both policies have the same bucket and the same numbers.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        ptr::eq(self, other)
            || self.encoder == other.encoder
                && ptr::eq(self.scripts, other.scripts)
                && self.params == other.params
    }
}

#[cfg(test)]
impl RedisPolicy {
    pub(super) fn for_tests(timeout: Duration) -> std::sync::Arc<Self> {
        let bucket = TokenBucket::new("quota", &crate::Quota::per_second(1)).unwrap();
        let spec = PolicySpec { name: "policy".into(), bucket, timeout };
        Self::new(&spec, "tests").unwrap().into()
    }
}
