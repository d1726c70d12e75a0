//! The queues in which checks wait until a batch of them is decided.
//!
//! `queues` finds the queue of a check: there is one for each runtime, server and timeout. `node_queue` is one of
//! them. It holds `queue_state` (which batch starts when, with `batch` and `in_flight_window`) and a `breaker` under one
//! lock, and starts tasks: a `flusher` has a `flight` take each batch to the server and back, and `probe` finds out
//! whether a failed server works again. A check that is alone runs its flight itself (`lone_call`). All of these
//! report back to the queue that started them, so these files refer to each other. A `bucket` is what a check is
//! about. `calls` turns a batch into calls of scripts (`runs` are the checks of a key as an argument), and `replay`
//! makes the decisions of the script once more when it replies. `round_trip` measures what `in_flight_window` needs,
//! `overload` is what all queues of a server know of its load, and `breaker_log` reports when breakers open and
//! close. `sim` simulates all of this, with the connections, in virtual time.

mod batch;
mod breaker;
mod breaker_log;
mod bucket;
mod calls;
mod flight;
mod flusher;
mod in_flight_window;
mod lone_call;
mod node_queue;
mod overload;
mod probe;
mod queue_state;
mod queues;
mod replay;
mod round_trip;
mod runs;
#[cfg(test)]
mod sim;

pub(super) use self::batch::{Batch, CheckIndex};
#[cfg(test)]
pub(super) use self::flight::FlightEnd;
pub(super) use self::node_queue::NodeQueue;
pub(crate) use self::queues::QueuedCheck;
pub(super) use self::queues::{Queues, StartedCall};
