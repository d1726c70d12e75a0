//! [examples]: https://github.com/tollgate-rs/tollgate/tree/main/examples
//! [ARCHITECTURE.md]: https://github.com/tollgate-rs/tollgate/blob/main/ARCHITECTURE.md
//! [CONTRIBUTING.md]: https://github.com/tollgate-rs/tollgate/blob/main/CONTRIBUTING.md
//! [CHANGELOG.md]: https://github.com/tollgate-rs/tollgate/blob/main/CHANGELOG.md
//! [MIT]: https://github.com/tollgate-rs/tollgate/blob/main/LICENSE-MIT
//! [Apache-2.0]: https://github.com/tollgate-rs/tollgate/blob/main/LICENSE-APACHE
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod decision;
mod error;
mod key;
pub mod layer;
mod limiter;
mod policy;
mod quota;
pub mod resolve;
mod store;

pub use decision::{Decision, Source};
pub use error::{ConfigError, Error, ErrorKind};
pub use key::Key;
pub use layer::{RateLimit, RateLimitLayer};
pub use limiter::{Check, FailureMode, Limiter};
pub use policy::Policy;
pub use quota::Quota;
pub use resolve::{KeyResolver, Refusal, Resolution};
pub use store::redis::RedisPool;
pub use store::{MemoryStore, RedisStore, Store};
