//! [examples]: https://docs.rs/crate/tollgate/latest/source/examples
//! [docs/chaos.md]: https://docs.rs/crate/tollgate/latest/source/docs/chaos.md
//! [docs/known-failures.md]: https://docs.rs/crate/tollgate/latest/source/docs/known-failures.md
//! [docs/server.md]: https://docs.rs/crate/tollgate/latest/source/docs/server.md
//! [docs/performance.md]: https://docs.rs/crate/tollgate/latest/source/docs/performance.md
//! [ARCHITECTURE.md]: https://docs.rs/crate/tollgate/latest/source/ARCHITECTURE.md
//! [CONTRIBUTING.md]: https://docs.rs/crate/tollgate/latest/source/CONTRIBUTING.md
//! [CHANGELOG.md]: https://docs.rs/crate/tollgate/latest/source/CHANGELOG.md
//! [MIT]: https://docs.rs/crate/tollgate/latest/source/LICENSE-MIT
//! [Apache-2.0]: https://docs.rs/crate/tollgate/latest/source/LICENSE-APACHE
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod algorithm;
mod block_list;
mod calendar;
mod costs;
mod decision;
#[cfg(feature = "denied-keys")]
mod denied_keys;
mod error;
pub mod guide;
mod key;
pub mod layer;
mod limiter;
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
mod trace;
mod verdict;

pub use block_list::{BlockList, BlockedKey};
pub use costs::Costs;
pub use decision::{Decision, QuotaStatus, Source};
#[cfg(feature = "denied-keys")]
pub use denied_keys::DeniedKeys;
pub use error::{ConfigError, Error, ErrorKind};
pub use key::Key;
pub use layer::{RateLimit, RateLimitLayer};
#[cfg(feature = "watch")]
pub use limiter::FileWatch;
pub use limiter::{
    BestEffortChecks, Check, FailureMode, Limiter, LimiterBuilder, Limiters, Reservation,
};
pub use policy::Policy;
pub use policy_set::PolicySet;
pub use quota::Quota;
pub use resolve::{KeyResolver, Rejection, Resolution};
#[cfg(feature = "redis")]
pub use store::RedisStore;
#[cfg(feature = "deadpool")]
pub use store::redis::RedisPool;
pub use store::{DividedStore, ManualClock, MemoryStore, Store};
