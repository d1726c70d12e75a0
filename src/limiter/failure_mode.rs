//! The failure modes, and which of them applies to an error.

use crate::verdict::{Numbers, Outcome, Verdict};
use crate::{Error, ErrorKind};

/// The way in which a limiter decides a check when its store fails: the store is unreachable, does not
/// reply within the timeout, or replies with an error.
///
/// # Overload
///
/// A store that works may still get more checks than it can decide within the timeout. Checks that are not sent for
/// this reason, or are late, are [`Overloaded`](crate::ErrorKind::Overloaded). A client can cause overload by
/// sending many requests, so overload must not lift a limit. In the mode [`Open`](Self::Open), too, such checks are
/// decided by this process's share of the limits, as in [`Local`](Self::Local). In the mode
/// [`Closed`](Self::Closed) they fail. A limiter [in shadow mode](crate::LimiterBuilder::enforce_for_percent) denies
/// nothing.
///
/// # Logs
///
/// While the store fails, each limiter logs a `tracing` warning at most every five seconds per
/// reason, under the target `fleetlimit`, with the policy, the reason, the server and the number of
/// checks.
///
/// ```
/// use fleetlimit::{FailureMode, Limiter, Quota, RedisStore, Source};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Nothing listens on port 1.
/// let store = RedisStore::open("redis://127.0.0.1:1")?;
/// let limiter = Limiter::new(store.clone(), Quota::per_second(1))?;
/// let decision = limiter.check("user:7").await?;
/// assert!(decision.is_allowed() && decision.source() == Source::Local);
/// assert!(limiter.check("user:7").await?.is_denied());
///
/// let limiter = Limiter::builder(store, Quota::per_second(1))
///     .failure_mode(FailureMode::Closed)
///     .build()?;
/// assert!(limiter.check("user:7").await.is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// This process decides by its share of the limits, in memory.
    ///
    /// The instances register in Redis, and each remembers the others. In an outage each enforces a share of
    /// every limit. The shares add up to the limit: over an outage, all instances together admit at most the burst
    /// and the rate times its length. The share of an instance is proportional to the checks that it made before
    /// (without cached denials), but at least a quarter of an equal share.
    ///
    /// **A limit below the number of instances** is enforced by some of them, chosen by the key. The others deny.
    /// The same applies if the burst is below that number, or if an
    /// [interval refill](crate::Quota::interval_refill) adds fewer permits at a time. A
    /// [queue](crate::Quota::queue) has a burst of 1 by default, so in an outage only one instance admits checks of
    /// a given key. Set the queue's burst to at least the number of instances.
    ///
    /// A local bucket starts from what Redis last reported about its key, if the key had used more than an
    /// eighth of a limit. When Redis works again, what was taken and still counts is charged there: before the
    /// next check of the key, or in the background if there is none.
    ///
    /// In these cases the instances can admit more:
    ///
    /// - **New instances.** An instance that has just registered uses its share at once. The others reduce theirs
    ///   when they next register. If Redis fails before that, they keep the larger shares until it is back. So
    ///   each new instance can add a share.
    /// - **Redis fails for some only.** An instance that loses Redis while others still reach it uses its share in
    ///   addition to what Redis admits. The same applies to checks whose reply is late, or that are not sent
    ///   because too many wait.
    /// - **A suspended instance**, for example with its machine, goes on in an outage. The others may have divided
    ///   its share. If it did not run for more than 10 seconds (longer with more than 100 instances), it gives its
    ///   share up when its next registration fails, which takes at most 3 seconds. Until then it adds its share of
    ///   a burst and of the rate. (It keeps what [`set_instances`](crate::RedisStore::set_instances) leaves to it,
    ///   and everything if it was the only instance.)
    /// - **An instance that was cut off.** It was running, but could not reach Redis for so long while others
    ///   could. It keeps its share, because it cannot know about them. If Redis then fails for all, it uses this
    ///   share in addition to theirs.
    /// - **Lost charges.** A charge whose reply is lost is not repeated, because Redis may have made it. So each
    ///   time that Redis goes away, what an instance has taken since its last charge may never be charged. The same
    ///   applies to what it has not charged yet when it exits. After such a loss, the local bucket of the key is
    ///   kept until it is full. If Redis goes away again before that, the bucket continues from its own state. So
    ///   the instance can use its share of the burst although others have used up the limit.
    /// - **Many keys.** Local buckets that do not fit into
    ///   [`RedisStore::local_keys`](crate::RedisStore::local_keys) are evicted, and what was taken from them is
    ///   forgotten.
    /// - **A start in an outage.** Instances that start while Redis cannot be reached know of no others.
    ///   [`RedisStore::instances`](crate::RedisStore::instances) says how many to expect, and
    ///   [`set_instances`](crate::RedisStore::set_instances) how many there are by now. A warning has the number
    ///   that an instance assumes. Each guesses which share is its own, so a limit below their number may be granted
    ///   by none of them, or by several.
    /// - **More than 10,000 instances.** None can register. Each keeps the share that it had last, and logs a
    ///   warning.
    ///
    /// They can also admit less:
    ///
    /// - A check whose reply is late may be charged twice.
    /// - A cost above the share of an instance is denied.
    /// - A local window starts in the outage with what was used before, so that counts for longer.
    /// - Permits that Redis has charged and that are given back in an outage stay charged there. Permits are not
    ///   given back a second time if the reply to the first attempt is lost.
    ///
    /// All stores with the same [key prefix](crate::RedisStore::key_prefix) on a server are one fleet.
    /// Each store that is opened registers as an instance; clones do not. So give each service its own
    /// key prefix, and open one store per process with it.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) does not fail.
    #[default]
    Local,
    /// The check is allowed without being counted, so a Redis outage does not take the service
    /// down. There is no rate limit while the store fails.
    ///
    /// [Overload](Self#overload) does not open the limit. So in this mode, too, the instances register in Redis,
    /// and know their shares.
    Open,
    /// The check fails with the store's error, and a layer responds with 503 and a `Retry-After` of 1 to
    /// 5 seconds. It is never reported as a denial.
    Closed,
}

impl FailureMode {
    /// Returns true if this process may have to decide checks itself.
    pub(super) fn may_decide_locally(self) -> bool {
        matches!(self, Self::Local | Self::Open)
    }

    /// The mode that applies to an error. Whoever floods the limiter causes overload, so that must not lift a
    /// limit.
    pub(super) fn of(self, error: &Error) -> Self {
        match (self, error.kind()) {
            (Self::Open, ErrorKind::Overloaded) => Self::Local,
            _ => self,
        }
    }

    /// Returns the verdict on a check that this process does not decide itself.
    pub(super) fn verdict(self, error: Error, limit: u64) -> Result<Verdict, Error> {
        match self {
            Self::Closed => Err(error),
            Self::Local | Self::Open => {
                let numbers = Numbers { remaining: limit, ..Numbers::default() };
                Ok(Verdict::new(Outcome::Allowed, numbers))
            }
        }
    }
}
