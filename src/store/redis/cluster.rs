//! A cluster: which node serves which slot, and the connections to each node.
//!
//! The cluster connection of `redis` resends calls that may have run, never replaces a silent
//! connection, and blocks all shards while it reconnects to one. Here every node has its own
//! connections and fails alone. MOVED and ASK, which prove that a call did not run, say where it
//! goes instead.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisResult, Value};
use tokio::runtime::Handle;

use super::connector::{Connector, parse_server, to_config_error, to_error};
use super::shared_connection::ConnectionSet;
use super::timer;
use crate::{ConfigError, Error};

const SLOTS: usize = 16_384;

/// The pause between two requests for the slots.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// How long a node may take to send the slots.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) struct Cluster {
    /// The first node given. Its user, password and TLS apply to all nodes.
    first: ConnectionInfo,
    first_connections: Arc<ConnectionSet>,
    seeds: Vec<(Node, Arc<ConnectionSet>)>,
    connections_per_node: usize,
    map: Mutex<Map>,
    is_refreshing: AtomicBool,
}

#[derive(Debug)]
struct Map {
    nodes: HashMap<Node, Arc<ConnectionSet>>,
    slots: Vec<Option<Arc<ConnectionSet>>>,
    refreshed: Option<Instant>,
}

/// A node's host and port.
type Node = (String, u16);

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.seeds.iter().map(|(_, seed)| seed.server())).finish()
    }
}

impl Cluster {
    pub(super) fn new(
        urls: impl IntoIterator<Item = impl IntoConnectionInfo>,
    ) -> Result<Self, ConfigError> {
        let infos = urls.into_iter().map(parse_server).collect::<Result<Vec<_>, _>>()?;
        let first = infos
            .first()
            .ok_or(ConfigError::new("no cluster node given: name at least one"))?
            .clone();
        let first_connections = connections(first.clone(), 1).map_err(to_config_error)?;
        let seeds = infos.into_iter().map(|info| {
            let node = node_of(&info)
                .ok_or(ConfigError::new("invalid cluster node: a host and a port are needed"))?;
            Ok((node, connections(info, 1).map_err(to_config_error)?))
        });
        let seeds = seeds.collect::<Result<_, ConfigError>>()?;
        let map = Map { nodes: HashMap::new(), slots: vec![None; SLOTS], refreshed: None };
        Ok(Self {
            first,
            first_connections,
            seeds,
            connections_per_node: 1,
            map: map.into(),
            is_refreshing: AtomicBool::new(false),
        })
    }

    /// The same cluster with this many connections to each node, and an empty slot map.
    pub(super) fn with_connections(&self, connections_per_node: usize) -> Self {
        let map = Map { nodes: HashMap::new(), slots: vec![None; SLOTS], refreshed: None };
        let (first, first_connections, seeds) =
            (self.first.clone(), self.first_connections.clone(), self.seeds.clone());
        Self {
            first,
            first_connections,
            seeds,
            connections_per_node,
            map: map.into(),
            is_refreshing: AtomicBool::new(false),
        }
    }

    /// The connections to the node that serves a slot, or to a seed, which will redirect.
    pub(super) fn connections(self: &Arc<Self>, slot: u16) -> Arc<ConnectionSet> {
        if let Some(Some(connections)) = self.map().slots.get(usize::from(slot)) {
            return connections.clone();
        }
        self.refresh_slots();
        let up = self.seeds.iter().find(|(_, connections)| connections.any_connected());
        up.map_or(&self.first_connections, |(_, connections)| connections).clone()
    }

    /// Where a redirected call goes. `moved` means that the slot stays there.
    pub(super) fn redirect(
        self: &Arc<Self>,
        slot: u16,
        address: &str,
        moved: bool,
    ) -> Option<Arc<ConnectionSet>> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let node = (host.to_owned(), port.parse().ok()?);
        // A node that does not know its own name leaves it out. Then the slots tell.
        let connections = if host.is_empty() { None } else { self.map().connections(node, self) };
        if moved {
            if let (Some(connections), Some(owner)) =
                (&connections, self.map().slots.get_mut(usize::from(slot)))
            {
                *owner = Some(connections.clone());
            }
            self.refresh_slots();
        }
        connections
    }

    /// Requests the slots soon, in a task, unless one is running. Outside a runtime it does nothing.
    pub(super) fn refresh_slots(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_refreshing.swap(true, Ordering::AcqRel) {
            runtime.spawn(RefreshTask(Arc::downgrade(self)).run());
        }
    }

    /// The slots according to the first node that replies, connected nodes first.
    async fn slots(&self) -> Option<Vec<(u16, u16, Node)>> {
        let mut nodes = self.seeds.clone();
        nodes.extend(
            self.map().nodes.iter().map(|(node, connections)| (node.clone(), connections.clone())),
        );
        nodes.sort_by_key(|(_, connections)| !connections.any_connected());
        for (node, connections) in nodes {
            let deadline = Instant::now() + REFRESH_TIMEOUT;
            if let Some(Ok(reply)) = timer::timeout_at(deadline, request_slots(&connections)).await
                && let Some(slots) = parse(reply, &node.0)
            {
                return Some(slots);
            }
        }
        None
    }

    /// Drops nodes that serve no slots any more, and their connections.
    fn learn(&self, slots: Vec<(u16, u16, Node)>) {
        let mut map = self.map();
        let (mut nodes, mut owners) = (HashMap::new(), vec![None; SLOTS]);
        for (first, last, node) in slots {
            let connections = map.connections(node.clone(), self);
            nodes.extend(connections.clone().map(|connections| (node, connections)));
            for owner in owners.iter_mut().take(usize::from(last) + 1).skip(first.into()) {
                owner.clone_from(&connections);
            }
        }
        (map.nodes, map.slots) = (nodes, owners);
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        // Nothing that panics leaves it half changed.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Map {
    fn connections(&mut self, node: Node, cluster: &Cluster) -> Option<Arc<ConnectionSet>> {
        if let Some(connections) = self.nodes.get(&node) {
            return Some(connections.clone());
        }
        let connections =
            connections(at(&cluster.first, &node), cluster.connections_per_node).ok()?;
        self.nodes.insert(node, connections.clone());
        Some(connections)
    }
}

fn connections(info: ConnectionInfo, count: usize) -> RedisResult<Arc<ConnectionSet>> {
    let client = Client::open(info)?;
    Ok(Arc::new(ConnectionSet::new(Connector::client(client).into(), count)))
}

/// The task that requests the slots. At most one runs.
struct RefreshTask(Weak<Cluster>);

impl RefreshTask {
    async fn run(self) {
        let refreshed = self.0.upgrade().and_then(|cluster| cluster.map().refreshed);
        if let Some(refreshed) = refreshed {
            timer::sleep_until(refreshed + REFRESH_INTERVAL).await;
        }
        let Some(cluster) = self.0.upgrade() else { return };
        if let Some(slots) = cluster.slots().await {
            cluster.learn(slots);
        }
        cluster.map().refreshed = Some(Instant::now());
    }
}

impl Drop for RefreshTask {
    fn drop(&mut self) {
        if let Some(cluster) = self.0.upgrade() {
            cluster.is_refreshing.store(false, Ordering::Release);
        }
    }
}

async fn request_slots(connections: &ConnectionSet) -> Result<Value, Error> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    connections.acquire().await?.call(&slots, false).await?.map_err(to_error)
}

/// The first and last slot of each range, and its primary.
fn parse(reply: Value, asked: &str) -> Option<Vec<(u16, u16, Node)>> {
    let Value::Array(ranges) = reply else { return None };
    let ranges = ranges.into_iter().map(|range| {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice()
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            // A node that does not know its own name has the address it was asked at.
            _ => asked.to_owned(),
        };
        Some((
            u16::try_from(*first).ok()?,
            u16::try_from(*last).ok()?,
            (host, u16::try_from(*port).ok()?),
        ))
    });
    ranges.collect::<Option<Vec<_>>>().filter(|ranges| !ranges.is_empty())
}

fn node_of(info: &ConnectionInfo) -> Option<Node> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}

/// The same user, password and TLS at another address.
fn at(first: &ConnectionInfo, (host, port): &Node) -> ConnectionInfo {
    let (host, port) = (host.clone(), *port);
    let address = match first.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    first.clone().set_addr(address)
}
