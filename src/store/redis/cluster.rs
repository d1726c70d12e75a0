//! A cluster: who serves which slot, and a group of lanes for each node.
//!
//! The client's own cluster connection cannot be had without sending again what may have run,
//! never replaces a node's connection that has gone silent, and holds up all shards while it looks
//! for one. Here every node has lanes of its own, so that it fails by itself; MOVED and ASK, which
//! prove that a call did not run, say where it goes instead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::connect::{Connector, fault, refuse, server};
use super::lane::Lanes;
use crate::{ConfigError, Error};

const SLOTS: usize = 16_384;

/// The pause between two looks at the cluster's slots.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long a node is asked for the slots.
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Cluster {
    /// The first node that was named: its user, password and TLS are those of all nodes.
    first: ConnectionInfo,
    first_lanes: Arc<Lanes>,
    seeds: Vec<(Node, Arc<Lanes>)>,
    lanes_per_node: usize,
    map: Mutex<Map>,
    is_looking: AtomicBool,
}

#[derive(Debug)]
struct Map {
    nodes: HashMap<Node, Arc<Lanes>>,
    slots: Vec<Option<Arc<Lanes>>>,
    looked: Option<Instant>,
}

/// A node's host and port.
type Node = (String, u16);

impl Cluster {
    pub(super) fn new(
        urls: impl IntoIterator<Item = impl IntoConnectionInfo>,
    ) -> Result<Self, ConfigError> {
        let infos = urls.into_iter().map(server).collect::<Result<Vec<_>, _>>()?;
        let first =
            infos.first().ok_or(ConfigError::new("name at least one node of the cluster"))?.clone();
        let first_lanes = lanes(first.clone(), 1).map_err(refuse)?;
        let seeds = infos.into_iter().map(|info| {
            let node = node_of(&info)
                .ok_or(ConfigError::new("a node of a cluster needs a host and a port"))?;
            Ok((node, lanes(info, 1).map_err(refuse)?))
        });
        let seeds = seeds.collect::<Result<_, ConfigError>>()?;
        let map = Map { nodes: HashMap::new(), slots: vec![None; SLOTS], looked: None };
        Ok(Self {
            first,
            first_lanes,
            seeds,
            lanes_per_node: 1,
            map: map.into(),
            is_looking: AtomicBool::new(false),
        })
    }

    /// The same cluster with this many lanes to each node, and nothing learned.
    pub(super) fn with_lanes(&self, lanes_per_node: usize) -> Self {
        let map = Map { nodes: HashMap::new(), slots: vec![None; SLOTS], looked: None };
        let (first, first_lanes, seeds) =
            (self.first.clone(), self.first_lanes.clone(), self.seeds.clone());
        Self {
            first,
            first_lanes,
            seeds,
            lanes_per_node,
            map: map.into(),
            is_looking: AtomicBool::new(false),
        }
    }

    /// The lanes of the node that serves a slot, or of a seed, which will say who does.
    pub(super) fn lanes(self: &Arc<Self>, slot: u16) -> Arc<Lanes> {
        if let Some(Some(lanes)) = self.map().slots.get(usize::from(slot)) {
            return lanes.clone();
        }
        self.look();
        let up = self.seeds.iter().find(|(_, lanes)| lanes.are_up());
        up.map_or(&self.first_lanes, |(_, lanes)| lanes).clone()
    }

    /// Where a call goes that was redirected. `moved` says that the slot stays there.
    pub(super) fn redirect(
        self: &Arc<Self>,
        slot: u16,
        address: &str,
        moved: bool,
    ) -> Option<Arc<Lanes>> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let node = (host.to_owned(), port.parse().ok()?);
        // A node that does not know its own name leaves it out: then the slots have to tell.
        let lanes = if host.is_empty() { None } else { self.map().lanes(node, self) };
        if moved {
            if let (Some(lanes), Some(owner)) =
                (&lanes, self.map().slots.get_mut(usize::from(slot)))
            {
                *owner = Some(lanes.clone());
            }
            self.look();
        }
        lanes
    }

    /// Looks at the cluster's slots soon, in a task of its own, unless somebody does already. Outside
    /// a runtime nothing can be asked.
    pub(super) fn look(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.is_looking.swap(true, Ordering::AcqRel) {
            runtime.spawn(Looking(Arc::downgrade(self)).run());
        }
    }

    /// The slots as the first node tells that answers; those that are up are asked first.
    async fn slots(&self) -> Option<Vec<(u16, u16, Node)>> {
        let mut nodes = self.seeds.clone();
        nodes.extend(self.map().nodes.iter().map(|(node, lanes)| (node.clone(), lanes.clone())));
        nodes.sort_by_key(|(_, lanes)| !lanes.are_up());
        for (node, lanes) in nodes {
            if let Ok(Ok(reply)) = timeout(LOOK_TIMEOUT, ask_slots(&lanes)).await
                && let Some(slots) = parse(reply, &node.0)
            {
                return Some(slots);
            }
        }
        None
    }

    /// Nodes that serve nothing any more are forgotten, and their connections with them.
    fn learn(&self, slots: Vec<(u16, u16, Node)>) {
        let mut map = self.map();
        let (mut nodes, mut owners) = (HashMap::new(), vec![None; SLOTS]);
        for (first, last, node) in slots {
            let lanes = map.lanes(node.clone(), self);
            nodes.extend(lanes.clone().map(|lanes| (node, lanes)));
            for owner in owners.iter_mut().take(usize::from(last) + 1).skip(first.into()) {
                owner.clone_from(&lanes);
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
    fn lanes(&mut self, node: Node, cluster: &Cluster) -> Option<Arc<Lanes>> {
        if let Some(lanes) = self.nodes.get(&node) {
            return Some(lanes.clone());
        }
        let lanes = lanes(at(&cluster.first, &node), cluster.lanes_per_node).ok()?;
        self.nodes.insert(node, lanes.clone());
        Some(lanes)
    }
}

fn lanes(info: ConnectionInfo, count: usize) -> RedisResult<Arc<Lanes>> {
    let client = Client::open(info)?;
    Ok(Arc::new(Lanes::new(Connector::Client(client.into()).into(), count)))
}

/// The task that looks at the slots, one at a time.
struct Looking(Weak<Cluster>);

impl Looking {
    async fn run(self) {
        let looked = self.0.upgrade().and_then(|cluster| cluster.map().looked);
        if let Some(looked) = looked {
            tokio::time::sleep_until(looked + LOOK_AGAIN_AFTER).await;
        }
        let Some(cluster) = self.0.upgrade() else { return };
        if let Some(slots) = cluster.slots().await {
            cluster.learn(slots);
        }
        cluster.map().looked = Some(Instant::now());
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(cluster) = self.0.upgrade() {
            cluster.is_looking.store(false, Ordering::Release);
        }
    }
}

async fn ask_slots(lanes: &Lanes) -> Result<Value, Error> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    lanes.next().call(&slots, false).await?.map_err(fault)
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
            // A node that does not know its own name is where it was asked.
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

/// The user, password and TLS, at another address.
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
