use std::sync::Arc;
use std::time::Duration;

use crate::store::blocks::{BlockChange, Blocks, Member};
use crate::store::sealed::Open;
use crate::{Error, ErrorKind, Key, Store, cooperation};

/// The keys that an operator has blocked for a time, in all processes that share a store.
///
/// The list belongs to the store: on a [`RedisStore`](crate::RedisStore), to all stores with the same
/// key prefix on that server. Each process reads it about once a second, so [`get`](Self::get) does
/// no I/O, and works while Redis fails. A process that starts calls [`refresh`](Self::refresh), so that
/// the list applies to its first request. At most 1,000 keys can be blocked at a time.
///
/// A limiter does not look at the list. Ask it before a check, for example in a
/// [resolver](crate::KeyResolver):
///
/// ```
/// use std::time::Duration;
/// use http::request::Parts;
/// use fleetlimit::resolve::PeerIp;
/// use fleetlimit::{BlockList, KeyResolver, MemoryStore, Rejection, Resolution};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let blocked = BlockList::new(&MemoryStore::new());
/// blocked.block("api", "203.0.113.7", Duration::from_secs(3_600)).await?;
/// assert!(blocked.get("api", &"203.0.113.7".into()).is_some());
/// assert!(blocked.get("api", &"203.0.113.8".into()).is_none());
///
/// let resolver = move |parts: &Parts| match PeerIp::new().resolve(parts) {
///     Resolution::Key(key) if blocked.get("api", &key).is_some() => {
///         Resolution::Reject(Rejection::forbidden("blocked"))
///     }
///     resolution => resolution,
/// };
/// # let _ = resolver;
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
    /// For how long it still is.
    pub remaining: Duration,
}

impl BlockList {
    /// The block list of a store.
    pub fn new(store: &impl Store) -> Self {
        Self(Open::blocks(store))
    }

    /// For how long a key is still blocked for a policy, as far as this process knows.
    ///
    /// The first call inside of a Tokio runtime starts the task that reads the list of a
    /// `RedisStore`, which ends with the last clone of the store and this list.
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
