//! The destination of a call: the only server, or the node of a cluster that serves its slot.
//!
//! `topology` sends a `call` and follows redirections. `discovery` has the type `Cluster`: it connects to the
//! nodes of a cluster and asks them for the slots after a redirection, when a call has failed
//! (`Topology::failed`, which the queue and its probes report, too), and while the node of a slot is not known.
//! `view` parses what they say, `slot_map` decides whom to believe and for how long a node that has failed is
//! avoided, and `routes` is the result.

mod call;
mod discovery;
mod routes;
mod slot_map;
mod topology;
mod view;

pub(super) use self::call::{Call, Calls};
pub(super) use self::discovery::Cluster;
pub(super) use self::topology::{Destination, Failure, Replies, Topology};
