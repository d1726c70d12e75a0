#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod decision;
mod error;
mod key;
mod policy;
mod quota;
pub mod resolve;

pub use decision::{Decision, Source};
pub use error::{ConfigError, Error, ErrorKind};
pub use key::Key;
pub use policy::Policy;
pub use quota::Quota;
pub use resolve::{KeyResolver, Refusal, Resolution};
