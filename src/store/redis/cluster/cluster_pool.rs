//! A cluster behind a pool, whose connections lead to all nodes.
//!
//! Such a connection routes each call, but can block all calls while one node does not reply. So the slots
//! of each primary use a separate connection, and only that one fails with the primary.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use indexmap::IndexSet;

use super::refresh::{self, SlotSource};
use super::routes::Routes;
use super::view::{Claim, Endpoint, View};
use crate::store::redis::connection::{ConnectionSet, ConnectionSettings, Connector, Node};
use crate::store::redis::script::SLOTS;
use crate::store::redis::sole_task::SoleTask;
use crate::timer;

/// Each connection of the pool opens sockets to all nodes, so one set per primary would be too many on a
/// large cluster. There, primaries share sets.
const MAX_SETS: usize = 8;

pub(crate) struct ClusterPool {
    connector: Arc<Connector>,
    settings: ConnectionSettings,
    /// Asks for the slots. Until they are known, it is used for checks too.
    first: Arc<ConnectionSet>,
    /// What checks read, without a lock.
    routes: ArcSwap<Routes>,
    refresh: Arc<SoleTask>,
}

impl fmt::Debug for ClusterPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connector.fmt(f)
    }
}

impl ClusterPool {
    pub(super) fn new(connector: Arc<Connector>, settings: ConnectionSettings) -> Self {
        let one = settings.with_count(NonZeroUsize::MIN);
        let first = Arc::new(ConnectionSet::new(connector.clone(), one));
        let routes = Routes::new(first.clone(), Vec::new());
        Self {
            connector,
            settings,
            first,
            routes: ArcSwap::from_pointee(routes),
            refresh: Arc::default(),
        }
    }

    pub(super) fn with_settings(&self, settings: ConnectionSettings) -> Self {
        Self::new(self.connector.clone(), settings)
    }

    pub(super) fn identity(&self) -> String {
        self.connector.identity()
    }

    pub(super) fn server(&self) -> &str {
        self.connector.server()
    }

    fn new_set(&self, name: &str) -> Arc<ConnectionSet> {
        let connector = self.connector.named(name);
        Arc::new(ConnectionSet::new(connector.into(), self.settings))
    }

    async fn slots(&self) -> Option<Vec<Claim>> {
        let connections = self.first.clone();
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        // Spawned, so that a reply after the timeout still shows that the connection works.
        let reply =
            tokio::spawn(async move { connections.acquire().await?.call(&command, false).await });
        let reply = timer::timeout_at(Instant::now() + refresh::TIMEOUT, reply).await;
        let Some(Ok(Ok(Ok(slots)))) = reply else { return None };
        // This address would only fill in missing hosts. Here addresses just name the connections.
        let view = View::parse(&Node::new("", 0), &slots, None)?;
        // A node that has lost its data, or has left the cluster, knows no slots. None has more than there are.
        (1..=SLOTS.into()).contains(&view.claimed()).then_some(view.claims)
    }
}

impl SlotSource for ClusterPool {
    fn routes(&self) -> &ArcSwap<Routes> {
        &self.routes
    }

    fn refresh(&self) -> &Arc<SoleTask> {
        &self.refresh
    }

    async fn refresh_slots(&self) {
        let Some(claims) = self.slots().await else { return };
        let names = set_names(&claims, self.server());
        let current = self.routes.load_full();
        let mut sets = HashMap::new();
        for name in &names {
            let set = || current.named(name).cloned().unwrap_or_else(|| self.new_set(name));
            sets.entry(name).or_insert_with(set);
        }
        // Connected before the routes change, so that checks on working nodes need not wait.
        let new = sets.values().filter(|set| current.named(set.server()).is_none());
        let connected = join_all(new.map(|set| set.acquire()));
        timer::timeout_at(Instant::now() + refresh::TIMEOUT, connected).await;
        let mut routes = Routes::new(self.first.clone(), Vec::new());
        for (claim, set) in claims.iter().zip(names.iter().filter_map(|name| sets.get(name))) {
            (claim.first..=claim.last).for_each(|slot| routes.set_owner(slot, set));
        }
        self.routes.store(routes.into());
    }
}

/// Returns the name of the connection set for each claim.
fn set_names(claims: &[Claim], server: &str) -> Vec<Arc<str>> {
    let mut primaries: IndexSet<_> = claims.iter().map(|claim| &claim.id).collect();
    primaries.sort_unstable();
    let name = |claim: &Claim| match &claim.endpoint {
        _ if primaries.len() > MAX_SETS => {
            let number = primaries.get_index_of(&claim.id).unwrap_or(0) % MAX_SETS + 1;
            format!("{server} {number}").into()
        }
        Endpoint::Known(node) if !node.host.is_empty() => node.to_string().into(),
        _ => claim.id.clone(),
    };
    claims.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(first: u16, id: &str, endpoint: Endpoint) -> Claim {
        Claim { first, last: first, id: id.into(), endpoint, epoch: 0 }
    }

    fn names(claims: &[Claim]) -> Vec<String> {
        set_names(claims, "pool").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_of_a_node_share_one_connection_set() {
        let known = |port| Endpoint::Known(Node::new("10.0.0.1", port));
        let claims = [
            claim(0, "a", known(7000)),
            claim(1, "b", known(7001)),
            claim(2, "a", known(7000)),
            claim(3, "c", Endpoint::Unknown),
            // Their addresses may be the same, as those of nodes behind a proxy.
            claim(4, "d", Endpoint::Guess(Node::new("", 7000))),
            claim(5, "e", Endpoint::Known(Node::new("", 7000))),
        ];
        let expected = ["10.0.0.1:7000", "10.0.0.1:7001", "10.0.0.1:7000", "c", "d", "e"];
        assert_eq!(names(&claims), expected);
    }

    #[test]
    fn a_large_cluster_does_not_get_connections_for_each_of_its_nodes() {
        let id = |n: u16| format!("{:03}", n * 7 % 100);
        let node = |n| Endpoint::Known(Node::new("10.0.0.1", n));
        let claims: Vec<_> = (0..100).map(|n| claim(n, &id(n), node(n))).collect();
        let names = names(&claims);
        let different: IndexSet<_> = names.iter().collect();
        assert_eq!(different.len(), MAX_SETS);
        for name in different {
            let count = names.iter().filter(|other| *other == name).count();
            assert!((12..=13).contains(&count), "{count} nodes have {name}");
        }
    }
}
