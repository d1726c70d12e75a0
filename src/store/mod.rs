//! The seam between policy and storage: a whole check goes in, a whole decision comes out.

mod memory;
pub(crate) mod redis;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::algorithm::TokenBucket;
use crate::{ConfigError, Decision, Error, ErrorKind, Key};

pub use memory::MemoryStore;
pub use redis::RedisStore;

/// Where buckets are kept: [`MemoryStore`] or [`RedisStore`].
///
/// Sealed: a store promises exactness that this trait alone cannot state, so the crate's own are
/// the only ones.
pub trait Store: sealed::Open + Debug + Send + Sync + 'static {}

/// A policy, checked and ready for a store.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) policy: Arc<str>,
    pub(crate) bucket: TokenBucket,
    /// How long a check may take, from the call to the answer.
    pub(crate) deadline: Duration,
}

pub(crate) mod sealed {
    use super::*;

    pub trait Open {
        /// The buckets of one policy.
        fn open(&self, plan: Plan) -> Result<Arc<dyn Buckets>, ConfigError>;
    }
}

/// The buckets of one policy in a store. Every answer comes within the plan's deadline.
pub trait Buckets: Debug + Send + Sync {
    /// Decides a check and charges it if it is admitted.
    fn check(&self, key: &Key, cost: u32) -> Answer;

    /// What a check of cost 1 would be told, with nothing charged.
    fn peek(&self, key: &Key) -> Answer;

    /// Makes the bucket full.
    fn reset(&self, key: &Key) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    /// Whether a check leaves the process, so that it pays to remember an answer.
    fn is_remote(&self) -> bool;
}

/// A store's answer to a check, there at once or to come.
#[derive(Debug)]
pub enum Answer {
    Ready(Result<Decision, Error>),
    Waiting(oneshot::Receiver<Result<Decision, Error>>),
}

impl Future for Answer {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Ready(answer) => Poll::Ready(answer.clone()),
            Self::Waiting(receiver) => {
                Poll::Ready(ready!(Pin::new(receiver).poll(cx)).unwrap_or_else(|_| {
                    Err(Error::new(
                        ErrorKind::Unavailable,
                        "the runtime that drove the check has shut down",
                    ))
                }))
            }
        }
    }
}
