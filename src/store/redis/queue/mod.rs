//! Where checks wait, and how batches of them are decided.
//!
//! `queues` finds the queue of a check: there is one for each runtime, server and timeout. `node_queue` is one of
//! them. It holds `queue_state` (which batch starts when, with `batch` and `window`) and a `breaker` under one
//! lock, and starts tasks: `flight` takes a batch to the server and back, and `probe` finds out whether a failed
//! server works again. These two report back to the queue that started them, so the three files refer to each
//! other. `calls` turns a batch into calls of scripts. `round_trip` measures what `window` needs, `overload` is
//! what all queues of a server know of its load, and `breaker_log` reports when breakers open and close.
//! `sim` simulates all of this, with the connections, in virtual time.

mod batch;
mod breaker;
mod breaker_log;
mod bucket;
mod calls;
mod flight;
mod node_queue;
mod overload;
mod probe;
mod queue_state;
mod queues;
mod round_trip;
#[cfg(test)]
mod sim;
mod window;

pub(super) use self::batch::{Batch, CheckIndex};
#[cfg(test)]
pub(super) use self::flight::FlightEnd;
pub(super) use self::node_queue::NodeQueue;
pub(crate) use self::queues::QueuedCheck;
pub(super) use self::queues::Queues;
