//! The Redis store, which keeps buckets in Redis for all processes.
//!
//! A check waits in a `queue` and is decided in a batch: by a `script`, on the server that the `cluster` names,
//! through a `connection`. `holds` has the permits that this process holds. The `fleet` divides limits among the
//! instances while Redis fails. `redis_store` is what applications use (`pool` is a pool of theirs), `store_url`
//! opens one from a URL, `backend` is a policy on it, and `pending_verdict` a check in progress.
//!
//! Each folder depends only on those after it: fleet and holds, queue, cluster, then connection and script. Fleet and
//! holds do not depend on each other, nor do connection and script (`tests/it/dependency_rules.rs`). All may use what is beside them here:
//! `server_error` (what an error of the server means), `no_reply` (the errors of calls without a reply),
//! `runtime_end` (notices the end of a runtime), and `sole_task` (keeps a task going in whatever runtimes
//! there are). A folder's `mod.rs` lists what the others may use of it.
//!
//! Two rules hold in all folders:
//!
//! - **Nothing depends on a single caller.** Connections, queues and timers are shared, so the timeout, the
//!   thread or the cancellation of one check must not affect the others.
//! - **Decisions are state machines without I/O**, which take the time as an argument: `QueueState` with its
//!   `InFlightWindow`, `Breaker`, `Health`, `Lifecycle` with its `Backoff`, `SlotMap`. `NodeQueue`, `Connection` and
//!   `SharedConnection` are shells around them: a lock, tasks, and wakers. So tests need no waiting, and
//!   `queue/sim` runs most of them in virtual time.
//!
//! Each Tokio runtime has its own connections and queues, because their tasks run on one runtime. When it
//! ends, its calls in flight are lost, and cannot be sent again, because they may have run. While nobody
//! polls it, they do not go on. So if runtimes shared a connection or a batch, each would depend on the
//! others. What all runtimes share has no tasks: the slots of a cluster, what sentinels report, and the logs
//! and metrics of a server. The price is that a process with many runtimes has as many connections, and
//! smaller batches. → `tests/it/runtimes.rs`

mod backend;
mod cluster;
mod connection;
mod fleet;
#[cfg(fuzzing)]
pub mod fuzzing;
mod holds;
mod no_reply;
mod pending_verdict;
#[cfg(feature = "deadpool")]
mod pool;
mod queue;
mod redis_store;
mod runtime_end;
mod script;
mod server_error;
mod sole_task;
mod store_url;

#[cfg(feature = "sentinel")]
pub use self::connection::SentinelService;
pub use self::connection::{RedisCredentials, RedisServer};
pub(crate) use self::pending_verdict::PendingVerdict;
#[cfg(feature = "deadpool")]
pub use self::pool::RedisPool;
pub use self::redis_store::RedisStore;
