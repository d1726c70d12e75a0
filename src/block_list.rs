use std::sync::Arc;
use std::time::Duration;

use crate::store::blocks::{BlockChange, Blocks, KnownBlocks, Member};
use crate::store::sealed::Open;
use crate::{Error, ErrorKind, Key, Store, cooperation};

/// The keys that an operator has blocked for a time, in all processes that share a store.
///
/// The list belongs to the store: on a [`RedisStore`](crate::RedisStore), to all stores with the same
/// key prefix on that server. At most 1,000 keys can be blocked at a time.
///
/// # Enforcement
///
/// Every limiter on the store denies a blocked key at once, before it looks at its quotas: the
/// [`source`](crate::Decision::source) of the decision is [`Source::Blocked`](crate::Source::Blocked), and
/// [`retry_after`](crate::Decision::retry_after) is the time until the block ends. So a
/// [`RateLimitLayer`](crate::RateLimitLayer) responds with 429 and `Retry-After`, and without `RateLimit`
/// fields. A block
///
/// - holds while Redis fails, as far as this process knows it, whatever the
///   [failure mode](crate::FailureMode);
/// - is enforced also where the [limit is not](crate::LimiterBuilder::enforce_for_percent);
/// - takes no permits, and a blocked key does not wait in [`acquire`](crate::Limiter::acquire). What already
///   waits proceeds;
/// - has no effect on charges, credits, resets and [`peek`](crate::Limiter::peek).
///
/// A process reads the list of a `RedisStore` about once a second, from the first time that it uses a
/// `BlockList` of the store. A process that has none enforces nothing, and needs no permissions for the
/// list. So call [`refresh`](Self::refresh) when a process starts: then the list applies to its first request.
///
/// ```
/// use std::time::Duration;
/// use fleetlimit::{BlockList, Limiter, MemoryStore, Quota, Source};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let limiter = Limiter::new(store.clone(), Quota::per_second(10))?;
/// let blocked = BlockList::new(&store);
/// blocked.refresh().await?;
///
/// blocked.block("default", "203.0.113.7", Duration::from_secs(3_600)).await?;
/// let decision = limiter.check("203.0.113.7").await?;
/// assert!(decision.is_denied() && decision.source() == Source::Blocked);
/// assert!(limiter.check("203.0.113.8").await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct BlockList(Arc<dyn Blocks>);

/// A key that is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedKey {
    /// The policy that it is blocked for.
    pub policy: String,
    /// The key.
    pub key: Key,
    /// The time until the block ends.
    pub remaining: Duration,
}

impl BlockList {
    /// Returns the block list of a store.
    pub fn new(store: &impl Store) -> Self {
        Self(Open::blocks(store))
    }

    /// Returns the list of a limiter, which follows it only once someone uses a list of the store, and the
    /// part of it that tells whether there is anything to look for.
    pub(crate) fn of_limiter(store: &impl Store) -> (Self, Arc<KnownBlocks>) {
        let blocks = Open::blocks(store);
        let known = blocks.known().clone();
        (Self(blocks), known)
    }

    /// Returns for how long a key is still blocked for a policy, as far as this process knows. It does no
    /// I/O, and works while Redis fails.
    ///
    /// The first call inside of a Tokio runtime starts the task that reads the list of a
    /// `RedisStore`, which ends with the last clone of the store, limiter on it, and list.
    #[inline]
    pub fn get(&self, policy: &str, key: &Key) -> Option<Duration> {
        self.0.follow();
        let known = self.0.known();
        if known.is_empty() { None } else { known.remaining(&member(policy, key)) }
    }

    /// Blocks a key for a policy, from now on for this time, which is 1 ms to a year. It replaces an
    /// earlier block. Other processes know it within about a second.
    ///
    /// # Errors
    ///
    /// If the time is outside of this range, if 1,000 keys are blocked already, or if the store fails:
    /// then the key may be blocked or not.
    pub async fn block(
        &self,
        policy: &str,
        key: impl Into<Key>,
        time: Duration,
    ) -> Result<(), Error> {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        if !(Duration::from_millis(1)..=YEAR).contains(&time) {
            let message = format!("a key can be blocked for 1 ms to 365 days, not for {time:?}");
            return Err(Error::new(ErrorKind::Rejected, message));
        }
        let change = BlockChange::Block(member(policy, &key.into()), time);
        cooperation::cooperate(self.0.change(change)).await
    }

    /// Ends a block. Other processes know it within about a second.
    ///
    /// # Errors
    ///
    /// If the store fails: then the key may be blocked or not.
    pub async fn unblock(&self, policy: &str, key: impl Into<Key>) -> Result<(), Error> {
        let change = BlockChange::Unblock(member(policy, &key.into()));
        cooperation::cooperate(self.0.change(change)).await
    }

    /// Reads the list now, instead of within the next second, and from now on about once a second as
    /// [`get`](Self::get) does.
    ///
    /// # Errors
    ///
    /// If the store fails, or does not reply within a second: what this process knows stays as it is.
    pub async fn refresh(&self) -> Result<(), Error> {
        self.0.follow();
        cooperation::cooperate(self.0.refresh()).await
    }

    /// The keys that are blocked, as far as this process knows, in no order.
    pub fn list(&self) -> Vec<BlockedKey> {
        self.0.follow();
        let blocked = self.0.known().list().into_iter();
        blocked.filter_map(|(member, remaining)| parse(&member, remaining)).collect()
    }
}

/// The policy, a byte that no policy's name has, whether the key is a digest, and the key.
fn member(policy: &str, key: &Key) -> Member {
    let kind = if key.is_digest() { b"\0d" } else { b"\0k" };
    [policy.as_bytes(), kind, key.as_bytes()].concat()
}

fn parse(member: &[u8], remaining: Duration) -> Option<BlockedKey> {
    let end = member.iter().position(|byte| *byte == 0)?;
    let policy = str::from_utf8(&member[..end]).ok()?.to_owned();
    let key = match member.get(end + 1)? {
        b'd' => Key::of_digest(&member[end + 2..]),
        _ => Key::from(&member[end + 2..]),
    };
    Some(BlockedKey { policy, key, remaining })
}
