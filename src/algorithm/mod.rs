//! The algorithms as pure integer functions of a state, a time and a cost. They are the executable
//! specification: the memory store runs them, and the Lua fragments must agree with them.

mod rate;
mod token_bucket;

#[cfg(feature = "redis")]
pub(crate) use rate::MAX_TICKS;
pub(crate) use rate::{Debt, FullAt, Rate};
pub(crate) use token_bucket::TokenBucket;
