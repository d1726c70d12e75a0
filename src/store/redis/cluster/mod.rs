//! The destination of a call: the only server, or the node of a cluster that serves its slot.
//!
//! `topology` sends a `call` and follows redirections. `discovery` connects to the nodes of a cluster and asks them
//! for the slots from time to time, `view` parses their replies, `slot_map` decides which of them count, and `routes`
//! is the result.

mod call;
mod discovery;
mod routes;
mod slot_map;
mod topology;
mod view;

pub(super) use self::call::{Call, Calls};
pub(super) use self::discovery::Cluster;
pub(super) use self::topology::{Destination, Failure, Replies, Topology};
