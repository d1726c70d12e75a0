//! The connections to the node of each slot, as checks read them: without a lock, because they are immutable,
//! and replaced as a whole with `arc-swap`. A MOVED copies 32 KB for that, which happens once per slot that
//! moves.

use std::ptr;
use std::sync::Arc;

use crate::store::redis::connection::ConnectionSet;
use crate::store::redis::script::SLOTS;

#[derive(Clone)]
pub(super) struct Routes {
    /// The index into `nodes` of each slot's owner, or one that is too large if the owner is unknown.
    owners: Vec<u16>,
    nodes: Vec<Arc<ConnectionSet>>,
    first: Arc<ConnectionSet>,
    /// Nodes that can redirect a call, the best first.
    others: Vec<Arc<ConnectionSet>>,
}

impl Routes {
    /// Routes without an owner of any slot.
    pub(super) fn new(first: Arc<ConnectionSet>, others: Vec<Arc<ConnectionSet>>) -> Self {
        Self { owners: vec![u16::MAX; SLOTS.into()], nodes: Vec::new(), first, others }
    }

    /// The connections to the node that serves a slot, if it is known.
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<ConnectionSet>> {
        let owner = self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(*owner))
    }

    /// The connections to a node that redirects a call if it does not serve its slot.
    pub(super) fn any(&self) -> &Arc<ConnectionSet> {
        let connected = self.others.iter().find(|node| node.any_connected());
        connected.or(self.others.first()).unwrap_or(&self.first)
    }

    /// Returns the connections to another node, for a call that this one could not redirect.
    pub(super) fn after(&self, answered: &ConnectionSet) -> &Arc<ConnectionSet> {
        let position = self.others.iter().position(|node| ptr::eq(node.as_ref(), answered));
        let next = position.map_or(0, |position| position + 1);
        self.others.get(next).or(self.others.first()).unwrap_or(&self.first)
    }

    pub(super) fn set_owner(&mut self, slot: u16, node: &Arc<ConnectionSet>) {
        let index = self.nodes.iter().rposition(|other| Arc::ptr_eq(other, node));
        let index = index.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        if let (Some(owner), Ok(index)) =
            (self.owners.get_mut(usize::from(slot)), u16::try_from(index))
        {
            *owner = index;
        }
    }
}
