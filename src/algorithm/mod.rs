//! The algorithms as pure integer functions of a state, a time and a cost. They are the executable
//! specification: the memory store runs them, and the Lua fragments must agree with them.

mod token_bucket;

pub(crate) use token_bucket::{Debt, FullAt, TokenBucket};
