//! The algorithms as pure integer functions of a state, a time and a cost. They are the executable
//! specification: the memory store runs them, and the Lua fragments must agree with them.

mod fixed_window;
mod limit;
mod limits;
mod rate;
mod state;
mod token_bucket;

#[cfg(feature = "redis")]
pub(crate) use fixed_window::WindowState;
#[cfg(feature = "redis")]
pub(crate) use limit::{Limit, QuotaState};
pub(crate) use limits::{Limits, Standing};
#[cfg(feature = "redis")]
pub(crate) use rate::{BucketState, FullAt, MAX_TICKS, Rate};
pub(crate) use state::State;
#[cfg(feature = "redis")]
pub(crate) use state::{Entry, QuotaId};
#[cfg(test)]
pub(crate) use token_bucket::TokenBucket;
