//! The interface between policy and storage: a complete check goes in, a complete verdict comes out.

// What only a remote store needs.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod registry;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::algorithm::TokenBucket;
use crate::decision::Verdict;
use crate::{ConfigError, Error, ErrorKind, Key};

pub use memory::MemoryStore;
#[cfg(feature = "redis")]
pub use redis::RedisStore;
pub(crate) use registry::{Registry, Subscriber};

/// Where buckets are kept: a [`MemoryStore`] or a `RedisStore`.
///
/// The trait is sealed. A store promises exactness, which the signature of a trait cannot express,
/// so only the stores of this crate implement it.
pub trait Store: sealed::Open + Debug + Send + Sync + 'static {}

/// A validated policy, ready for a store.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    pub(crate) name: Arc<str>,
    pub(crate) bucket: TokenBucket,
    /// The longest that a check may take.
    pub(crate) timeout: Duration,
}

pub(crate) mod sealed {
    use super::*;

    pub trait Open {
        /// The buckets of one policy.
        fn open(&self, spec: PolicySpec) -> Result<Arc<dyn Backend>, ConfigError>;

        /// The policies in use on this store, and the part of the store that this handle uses.
        fn registry(&self) -> (&Registry, &str);
    }
}

/// The buckets of one policy in a store. Every check completes within the policy's timeout.
pub trait Backend: Debug + Send + Sync {
    /// Decides a check, and charges it if it is allowed.
    fn check(&self, key: &Key, cost: u64) -> VerdictFuture;

    /// The verdict on a check of cost 1, without charging it.
    fn peek(&self, key: &Key) -> VerdictFuture;

    /// Fills the bucket.
    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    /// Whether a check leaves the process, so that caching denials pays.
    fn is_remote(&self) -> bool;
}

/// A store's verdict on a check, now or later.
#[derive(Debug)]
pub enum VerdictFuture {
    Ready(Result<Verdict, Error>),
    Pending(oneshot::Receiver<Result<Verdict, Error>>),
}

impl Future for VerdictFuture {
    type Output = Result<Verdict, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Ready(verdict) => Poll::Ready(verdict.clone()),
            Self::Pending(receiver) => Pin::new(receiver).poll(cx).map(|verdict| {
                verdict.unwrap_or_else(|_| {
                    Err(Error::new(
                        ErrorKind::Unavailable,
                        "the Tokio runtime that ran the check has shut down",
                    ))
                })
            }),
        }
    }
}
