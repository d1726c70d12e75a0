//! [guide]: crate::guide
//! [Per-route limits]: crate::guide#per-route-limits
//! [Health probes and CORS]: crate::guide#health-probes-and-cors
//! [By API key]: crate::guide#by-api-key
//! [By authenticated user]: crate::guide#by-authenticated-user
//! [Behind nginx or a CDN]: crate::guide#behind-nginx-or-a-cdn
//! [Plans from a database]: crate::guide#plans-from-a-database
//! [Cost]: crate::guide#cost
//! [cost by response]: crate::guide#cost-by-response
//! [The tokens of a stream]: crate::guide#the-tokens-of-a-stream
//! [Algorithms]: crate::guide#algorithms
//! [Several quotas]: crate::guide#several-quotas
//! [several keys]: crate::guide#several-keys
//! [Limits in a file]: crate::guide#limits-in-a-file
//! [Hot keys and distant servers]: crate::guide#hot-keys-and-distant-servers
//! [custom responses]: crate::guide#custom-responses
//! [Login, and other keys from the body]: crate::guide#login-and-other-keys-from-the-body
//! [WebSocket messages]: crate::guide#websocket-messages
//! [gRPC]: crate::guide#grpc
//! [Outgoing calls]: crate::guide#outgoing-calls
//! [Tests with a paused clock]: crate::guide#tests-with-a-paused-clock
//! [Metrics and traces]: crate::guide#metrics-and-traces
//! [Rollout]: crate::guide#rollout
//! [An admin endpoint]: crate::guide#an-admin-endpoint
//! [examples]: https://docs.rs/crate/fleetlimit/latest/source/examples
//! [examples/production.rs]: https://docs.rs/crate/fleetlimit/latest/source/examples/production.rs
//! [docs/chaos.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/chaos.md
//! [docs/exactness.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/exactness.md
//! [docs/faq.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/faq.md
//! [docs/migrating.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/migrating.md
//! [docs/operations.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/operations.md
//! [docs/outage.svg]: https://docs.rs/crate/fleetlimit/latest/source/docs/outage.svg
//! [docs/outages.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/outages.md
//! [docs/performance.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/performance.md
//! [docs/runbook.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/runbook.md
//! [docs/server.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/server.md
//! [ARCHITECTURE.md]: https://docs.rs/crate/fleetlimit/latest/source/ARCHITECTURE.md
//! [CHANGELOG.md]: https://docs.rs/crate/fleetlimit/latest/source/CHANGELOG.md
//! [CONTRIBUTING.md]: https://docs.rs/crate/fleetlimit/latest/source/CONTRIBUTING.md
//! [SECURITY.md]: https://docs.rs/crate/fleetlimit/latest/source/SECURITY.md
//! [MIT]: https://docs.rs/crate/fleetlimit/latest/source/LICENSE-MIT
//! [Apache-2.0]: https://docs.rs/crate/fleetlimit/latest/source/LICENSE-APACHE
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// The files. This one re-exports, and has no logic. The crate docs are the README. ARCHITECTURE.md says how the
// folders depend on each other.
//
// The value types: `quota` (with `quota_text` and `quota_serde`), `policy`, `policy_set` (with
// `policy_set_serde`), `costs`, `key` (any bytes, long ones as a digest), `charge` (what a check takes),
// `verdict` and `decision`, `error`, and `calendar` (units of time zones).
//
// `any_store` is the store that a URL chooses, and `block_list` the keys that an operator has blocked, as an
// application sees them. `denied_keys` counts the keys that are denied most. `guide` is documentation only.
// Helpers that all may use: `timer`, `random`, `cooperation`, `trace` (spans and events of checks),
// `log_throttle`, `file_watch`, `address` and `canonical` (IP addresses).

mod address;
mod algorithm;
mod any_store;
mod block_list;
mod calendar;
mod canonical;
mod charge;
mod cooperation;
mod costs;
mod decision;
#[cfg(feature = "denied-keys")]
mod denied_keys;
mod error;
mod file_watch;
pub mod guide;
mod key;
pub mod layer;
mod limiter;
mod log_throttle;
mod metrics;
mod policy;
mod policy_set;
#[cfg(feature = "serde")]
mod policy_set_serde;
mod quota;
#[cfg(feature = "serde")]
mod quota_serde;
mod quota_text;
mod random;
pub mod resolve;
mod store;
mod timer;
mod trace;
mod verdict;

// Its example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../docs/outages.md")]
mod outages {}

pub use any_store::AnyStore;
pub use block_list::{BlockList, BlockedKey};
pub use costs::Costs;
pub use decision::{Decision, QuotaStatus, Source};
#[cfg(feature = "denied-keys")]
pub use denied_keys::DeniedKeys;
pub use error::{ConfigError, Error, ErrorKind};
pub use file_watch::FileWatch;
pub use key::Key;
pub use layer::{RateLimit, RateLimitLayer};
pub use limiter::{
    BestEffortChecks, Check, FailureMode, Hold, Limiter, LimiterBuilder, Limiters, Reservation,
};
pub use policy::Policy;
pub use policy_set::PolicySet;
pub use quota::Quota;
pub use resolve::{KeyResolver, Rejection, Resolution};
#[cfg(feature = "sentinel")]
pub use store::SentinelService;
#[cfg(feature = "deadpool")]
pub use store::redis::RedisPool;
pub use store::{DividedStore, ManualClock, MemoryStore, Store};
#[cfg(feature = "redis")]
pub use store::{RedisCredentials, RedisServer, RedisStore};

/// Parts of this crate that `fleetlimit-server` uses too. They are not part of the stable API.
#[doc(hidden)]
pub mod internal {
    pub use crate::error::with_causes;
    pub use crate::file_watch::{Settling, Watched};
    pub use crate::limiter::DetachedHold;
    pub use crate::log_throttle::LogThrottle;
    pub use crate::random::unit as random_unit;
    #[cfg(all(fuzzing, feature = "redis"))]
    pub use crate::store::redis::fuzzing;
}
