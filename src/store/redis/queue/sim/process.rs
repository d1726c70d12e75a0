//! A simulated process: a connection to each node, and for each timeout a queue.

use std::rc::Rc;
use std::time::Duration;

use super::connection::Connection;
use super::plan::{Micros, Plan, SLOTS};
use super::probe::Breakers;
use crate::store::redis::connection::Lifecycle;
use crate::store::redis::queue::batch::Batch;
use crate::store::redis::queue::overload::Overload;
use crate::store::redis::queue::queue_state::QueueState;

#[derive(Debug)]
pub(super) struct Process {
    /// By timeout and node.
    pub(super) queues: Vec<Vec<QueueState>>,
    pub(super) breakers: Vec<Vec<Breakers>>,
    /// By node.
    pub(super) overloads: Vec<Overload>,
    pub(super) links: Vec<Lifecycle<Rc<Connection>>>,
    /// The tasks that wait for a connection to a node.
    pub(super) waiters: Vec<Vec<u64>>,
    /// The node that serves a slot, as far as the process knows.
    pub(super) routes: Vec<usize>,
    /// All workers are blocked until this time.
    pub(super) paused_until: Micros,
    /// Since this time, they have not worked for longer than it takes to replace a silent connection.
    pub(super) paused_from: Micros,
    /// If set, the next task that runs is blocked until this time.
    pub(super) block_next: Option<Micros>,
    /// Batches that wait for a task that is stuck.
    pub(super) stuck: Vec<(*const Batch, Micros)>,
    /// A fault affects the process until this time.
    pub(super) disturbed_until: Micros,
    /// The last attempt to connect to each node, and how many there were since a stable connection.
    pub(super) attempts: Vec<Option<(Micros, u32)>>,
    /// When its checks started.
    pub(super) starts: Vec<Micros>,
}

impl Process {
    pub(super) fn new(plan: &Plan) -> Self {
        let queue = |&timeout: &Micros| {
            (0..plan.nodes).map(|_| QueueState::new(Duration::from_micros(timeout))).collect()
        };
        let breakers = |&timeout: &Micros| {
            (0..plan.nodes).map(|_| Breakers::new(Duration::from_micros(timeout))).collect()
        };
        Self {
            queues: plan.timeouts.iter().map(queue).collect(),
            breakers: plan.timeouts.iter().map(breakers).collect(),
            overloads: (0..plan.nodes).map(|_| Overload::default()).collect(),
            links: (0..plan.nodes).map(|_| Lifecycle::default()).collect(),
            waiters: vec![Vec::new(); plan.nodes],
            routes: (0..SLOTS).map(|slot| usize::from(slot) % plan.nodes).collect(),
            paused_until: 0,
            paused_from: 0,
            block_next: None,
            stuck: Vec::new(),
            disturbed_until: 0,
            attempts: vec![None; plan.nodes],
            starts: Vec::new(),
        }
    }
}
