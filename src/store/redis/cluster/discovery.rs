//! A cluster: the connections to each node, and which of them serve a slot.
//!
//! The cluster connection of `redis` resends calls that may have run, after a timeout or a broken connection.
//! With `retries(0)` it does not, but then it does not follow redirections either. It never replaces a silent
//! connection, and blocks all shards while it reconnects to one. Here every node has its own connections, so
//! a failure of one does not affect the others. MOVED and ASK prove that a call did not run, and name the
//! node to send it to.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, iter};

use arc_swap::ArcSwap;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ErrorKind as RedisErrorKind, Pipeline, ServerErrorKind, Value};

use super::routes::Routes;
use super::slot_map::SlotMap;
use super::view::View;
use crate::store::redis::connection::{
    ConnectionSet, ConnectionSettings, Connector, Endpoint, Node, RedisServer,
};
use crate::store::redis::script::SLOTS;
use crate::store::redis::sole_task::SoleTask;
use crate::{ConfigError, timer};

/// The pause between two refreshes of the slots.
const INTERVAL: Duration = Duration::from_millis(100);

/// The longest time that a node may take to send the slots.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The most nodes that are known, so that redirections to ever more addresses cannot fill the memory. Redis
/// recommends at most 1,000.
const MAX_NODES: usize = 2_000;

pub(crate) struct Cluster {
    /// The first node that was given. All but its address applies to the nodes that are found.
    first: (Node, Endpoint),
    others: Vec<(Node, Endpoint)>,
    first_connections: Arc<ConnectionSet>,
    seeds: Vec<(Node, Arc<ConnectionSet>)>,
    settings: ConnectionSettings,
    state: Mutex<ClusterState>,
    /// The routes that checks read, without a lock.
    routes: ArcSwap<Routes>,
    refresh: Arc<SoleTask>,
    /// The user may not call `CLUSTER NODES`.
    lacks_epochs: AtomicBool,
}

struct ClusterState {
    map: SlotMap,
    /// The connections to the nodes, by the addresses that other nodes name.
    nodes: HashMap<Node, Arc<ConnectionSet>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.seeds.iter().map(|(_, seed)| seed.server())).finish()
    }
}

impl Cluster {
    pub(crate) fn new(
        nodes: impl IntoIterator<Item = impl Into<RedisServer>>,
    ) -> Result<Self, ConfigError> {
        let named = |node: RedisServer| {
            let endpoint = node.endpoint()?;
            let node = endpoint.node();
            let unnamed = "invalid cluster node: a host and a port are needed";
            Ok((node.ok_or(ConfigError::new(unnamed))?, endpoint))
        };
        let mut given = nodes.into_iter().map(|node| named(node.into()));
        let first = given.next().unwrap_or(Err(no_node()))?;
        let others = given.collect::<Result<_, _>>()?;
        Ok(Self::with_seeds(first, others, ConnectionSettings::default()))
    }

    /// Returns the same cluster with other settings, new connections and an empty slot map.
    pub(super) fn with_settings(&self, settings: ConnectionSettings) -> Self {
        Self::with_seeds(self.first.clone(), self.others.clone(), settings)
    }

    fn with_seeds(
        first: (Node, Endpoint),
        others: Vec<(Node, Endpoint)>,
        settings: ConnectionSettings,
    ) -> Self {
        // The seeds are asked for the slots, and checks use them until these are known.
        let one_each = settings.with_count(NonZeroUsize::MIN);
        let seed = |(node, endpoint): &(Node, Endpoint)| {
            (node.clone(), connections(endpoint.clone(), one_each))
        };
        let first_seed = seed(&first);
        let first_connections = first_seed.1.clone();
        let seeds: Vec<_> = iter::once(first_seed).chain(others.iter().map(seed)).collect();
        let (nodes, sets) = seeds.iter().cloned().unzip();
        let routes = Routes::new(first_connections.clone(), sets);
        let state = ClusterState { map: SlotMap::new(nodes), nodes: HashMap::new() };
        Self {
            first,
            others,
            first_connections,
            seeds,
            settings,
            state: state.into(),
            routes: ArcSwap::from_pointee(routes),
            refresh: Arc::default(),
            lacks_epochs: AtomicBool::new(false),
        }
    }

    pub(super) fn identity(&self) -> String {
        let mut seeds: Vec<&str> = self.seeds.iter().map(|(_, seed)| &**seed.server()).collect();
        seeds.sort_unstable();
        format!("cluster {}", seeds.join(" "))
    }

    pub(super) fn first_server(&self) -> &str {
        self.first_connections.server()
    }

    /// Passes the connections of a slot to `read`, without a reference count that all checks would share. If
    /// the node of the slot is not known, they lead to another one, which will redirect.
    pub(super) fn route<T>(
        self: &Arc<Self>,
        slot: u16,
        read: impl FnOnce(&Arc<ConnectionSet>) -> T,
    ) -> T {
        let routes = self.routes.load();
        match routes.owner(slot) {
            Some(connections) => read(connections),
            None => {
                self.schedule_refresh();
                read(routes.any())
            }
        }
    }

    /// Spawns a task that refreshes the slots, unless one is running. Does nothing outside of a runtime.
    fn schedule_refresh(self: &Arc<Self>) {
        if !self.refresh.is_running() {
            self.refresh.repeat(&Arc::downgrade(self), TIMEOUT, |cluster| async move {
                cluster.refresh_slots().await;
                ControlFlow::Break(INTERVAL)
            });
        }
    }

    async fn refresh_slots(&self) {
        let nodes = self.begin_round().into_iter();
        let mut views: FuturesUnordered<_> =
            nodes.map(|(node, connections)| self.ask_node(node, connections)).collect();
        while let Some((node, view)) = views.next().await {
            self.learn(&node, view);
        }
        self.end_round();
    }

    /// Returns the connections for a call whose slot has moved to another node.
    pub(super) fn moved(
        self: &Arc<Self>,
        slot: u16,
        address: &str,
        answered: &ConnectionSet,
    ) -> Arc<ConnectionSet> {
        self.schedule_refresh();
        let from = node_of(answered);
        if let (Some(from), Some(to)) = (&from, Node::parse(address, from.as_ref())) {
            let mut state = self.state();
            if let Some(connections) = self.redirected_to(&mut state.nodes, &to) {
                if state.map.moved(slot, &to, from, Instant::now()) {
                    let mut routes = Routes::clone(&self.routes.load());
                    routes.set_owner(slot, &connections);
                    self.routes.store(routes.into());
                }
                return connections;
            }
        }
        // The owner has no known address. Another node may know it, or be it.
        self.routes.load().after(answered).clone()
    }

    /// Returns the connections for a call whose slot is moving to another node.
    pub(super) fn asked(
        &self,
        address: &str,
        answered: &ConnectionSet,
    ) -> Option<Arc<ConnectionSet>> {
        let to = Node::parse(address, node_of(answered).as_ref())?;
        let mut state = self.state();
        let connections = self.redirected_to(&mut state.nodes, &to)?;
        state.map.exists(&to, Instant::now());
        Some(connections)
    }

    /// A call to this node has failed, so its slots may have another owner.
    pub(super) fn failed(self: &Arc<Self>, answered: &ConnectionSet) {
        if let Some(node) = node_of(answered) {
            self.state().map.failed(&node, Instant::now());
        }
        self.schedule_refresh();
    }

    fn connections_to(
        &self,
        nodes: &mut HashMap<Node, Arc<ConnectionSet>>,
        node: &Node,
    ) -> Arc<ConnectionSet> {
        let new = || connections(self.first.1.at(node), self.settings);
        nodes.entry(node.clone()).or_insert_with(new).clone()
    }

    /// Returns the connections to a node that a redirection has named, unless too many are known from
    /// redirections alone.
    fn redirected_to(
        &self,
        nodes: &mut HashMap<Node, Arc<ConnectionSet>>,
        node: &Node,
    ) -> Option<Arc<ConnectionSet>> {
        let is_possible = nodes.len() < MAX_NODES || nodes.contains_key(node);
        is_possible.then(|| self.connections_to(nodes, node))
    }

    fn find<'a>(
        &'a self,
        nodes: &'a HashMap<Node, Arc<ConnectionSet>>,
        node: &Node,
    ) -> Option<&'a Arc<ConnectionSet>> {
        let seed = || self.seeds.iter().find(|(seed, _)| seed == node).map(|(_, seed)| seed);
        nodes.get(node).or_else(seed)
    }

    fn begin_round(&self) -> Vec<(Node, Arc<ConnectionSet>)> {
        let mut state = self.state();
        let ClusterState { map, nodes, .. } = &mut *state;
        let find = |node: &Node| self.find(nodes, node);
        let asked = map.begin(Instant::now(), |node| {
            find(node).is_some_and(|connections| connections.any_connected())
        });
        asked.into_iter().filter_map(|node| find(&node).cloned().map(|set| (node, set))).collect()
    }

    /// Asks a node for the slots. There is no view if it does not reply.
    async fn ask_node(&self, node: Node, connections: Arc<ConnectionSet>) -> (Node, Option<View>) {
        let lacks_epochs = self.lacks_epochs.load(Ordering::Relaxed);
        let mut questions = Pipeline::new();
        questions.cmd("CLUSTER").arg("SLOTS");
        if !lacks_epochs {
            questions.cmd("CLUSTER").arg("NODES");
        }
        // In a task of its own, because the reply shows whether the connection works.
        let replies =
            tokio::spawn(async move { connections.acquire().await?.call_all(&questions).await });
        let replies = timer::timeout_at(Instant::now() + TIMEOUT, replies).await;
        let Some(Ok(Ok(Ok(replies)))) = replies else { return (node, None) };
        let nodes = match replies.get(1).cloned().map(Value::extract_error) {
            Some(Ok(nodes)) => redis::from_redis_value::<String>(nodes).ok(),
            Some(Err(error)) => {
                let denied = RedisErrorKind::Server(ServerErrorKind::NoPerm);
                self.lacks_epochs.store(error.kind() == denied, Ordering::Relaxed);
                None
            }
            None => None,
        };
        let view = replies.first().and_then(|slots| View::parse(&node, slots, nodes.as_deref()));
        // A slot has one owner. A reply that claims each of them many times would take long to merge.
        (node, view.filter(|view| view.claimed() <= SLOTS.into()))
    }

    fn learn(&self, node: &Node, view: Option<View>) {
        let mut state = self.state();
        let now = Instant::now();
        match view {
            Some(view) => {
                if state.map.add(view, now) {
                    self.publish(&mut state, now);
                }
            }
            None => state.map.failed(node, now),
        }
    }

    fn end_round(&self) {
        let mut state = self.state();
        let now = Instant::now();
        state.map.end(now);
        self.publish(&mut state, now);
    }

    /// Makes the slot map visible to checks. Drops nodes that no longer exist, and their
    /// connections.
    fn publish(&self, state: &mut ClusterState, now: Instant) {
        let nodes = state.map.nodes(now);
        let others = nodes.iter().filter_map(|node| self.find(&state.nodes, node).cloned());
        let mut routes = Routes::new(self.first_connections.clone(), others.collect());
        let mut last: Option<(Node, Arc<ConnectionSet>)> = None;
        for slot in 0..SLOTS {
            let Some(node) = state.map.owner(slot).cloned() else { continue };
            // Neighbors often have the same owner.
            if last.as_ref().is_none_or(|(last, _)| *last != node) {
                let connections = self.connections_to(&mut state.nodes, &node);
                last = Some((node, connections));
            }
            if let Some((_, connections)) = &last {
                routes.set_owner(slot, connections);
            }
        }
        let nodes: HashSet<_> = nodes.into_iter().collect();
        state.nodes.retain(|node, _| nodes.contains(node));
        self.routes.store(routes.into());
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        // Nothing that panics leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connections(endpoint: Endpoint, settings: ConnectionSettings) -> Arc<ConnectionSet> {
    Arc::new(ConnectionSet::new(Connector::endpoint(endpoint).into(), settings))
}

fn node_of(connections: &ConnectionSet) -> Option<Node> {
    Node::parse(connections.server(), None)
}

fn no_node() -> ConfigError {
    ConfigError::new("no cluster node given: name at least one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_to_ever_more_addresses_do_not_fill_the_memory() {
        let cluster = Cluster::new(["redis://10.0.0.1:7000"]).unwrap();
        let answered = cluster.first_connections.clone();
        let asked =
            |n: u16| cluster.asked(&format!("10.1.{}.{}:7000", n / 256, n % 256), &answered);
        assert!(asked(0).is_some());
        for n in 0..3_000 {
            asked(n);
        }
        assert_eq!(cluster.state().nodes.len(), MAX_NODES);
        assert!(asked(0).is_some() && asked(2_999).is_none());
    }
}
