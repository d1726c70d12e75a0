//! The algorithms as pure integer functions of a state, a time and a cost. They are the executable
//! specification: the memory store runs them, and the Lua fragments must agree with them.

mod rate;
mod token_bucket;

pub(crate) use rate::{Debt, FullAt, MAX_TICKS, Rate};
pub(crate) use token_bucket::TokenBucket;
