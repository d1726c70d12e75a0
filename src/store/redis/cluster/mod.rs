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

/// Parses a view of the slots, for `fuzzing`.
#[cfg(fuzzing)]
pub(super) fn parse_view(slots: &redis::Value, nodes: Option<&str>) {
    let from = super::connection::Node::named("192.0.2.1", 6379).expect("the address is valid");
    let _ = view::View::parse(&from, slots, nodes).map(|view| view.claimed());
}
