//! The algorithms as pure integer functions of a state, a time and a cost: the executable
//! specification, which the memory store runs and the Lua pieces must agree with.

mod token_bucket;

pub(crate) use token_bucket::{Debt, FullAt, TokenBucket};
