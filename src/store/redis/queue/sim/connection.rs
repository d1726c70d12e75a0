//! A connection through the simulated network.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use super::plan::Micros;
use super::server::{Call, Reply};
use crate::Error;
use crate::store::redis::connection::{Established, Health};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: usize,
    pub(super) process: usize,
    pub(super) node: usize,
    pub(super) since: Micros,
    pub(super) health: RefCell<Health>,
    pub(super) closed: RefCell<Option<Error>>,
    /// The client knows that the other side has closed it.
    pub(super) is_disconnected: Cell<bool>,
    pub(super) is_cut: Cell<bool>,
    pub(super) swallows_calls: Cell<bool>,
    pub(super) swallows_replies: Cell<bool>,
    pub(super) is_nudging: Cell<bool>,
    pub(super) is_kept: Cell<bool>,
    /// The tasks that wait for a reply.
    pub(super) waiting: RefCell<Vec<u64>>,
    pub(super) to_server: RefCell<VecDeque<(u64, Vec<Call>, bool)>>,
    pub(super) to_client: RefCell<VecDeque<(u64, Vec<Reply>)>>,
}

impl Connection {
    pub(super) fn new(number: usize, process: usize, node: usize, since: Micros) -> Self {
        Self {
            number,
            process,
            node,
            since,
            health: RefCell::default(),
            closed: RefCell::default(),
            is_disconnected: Cell::default(),
            is_cut: Cell::default(),
            swallows_calls: Cell::default(),
            swallows_replies: Cell::default(),
            is_nudging: Cell::default(),
            is_kept: Cell::new(true),
            waiting: RefCell::default(),
            to_server: RefCell::default(),
            to_client: RefCell::default(),
        }
    }

    /// Whether it can be used, and leads to the server.
    pub(super) fn is_sound(&self) -> bool {
        let is_faulty =
            self.is_cut.get() || self.swallows_calls.get() || self.swallows_replies.get();
        !is_faulty && self.closed.borrow().is_none()
    }
}

impl Established for Rc<Connection> {
    fn is_proven(&self) -> bool {
        self.health.borrow().is_proven()
    }

    fn was_stable(&self, now: Instant) -> bool {
        self.health.borrow().was_stable(now)
    }

    fn closed(&self) -> Option<Error> {
        let closed = self.closed.borrow().clone();
        closed.or_else(|| self.is_disconnected.get().then(super::world::disconnected))
    }
}
