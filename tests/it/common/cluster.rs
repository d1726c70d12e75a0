//! A cluster of three primaries.

use std::collections::BTreeSet;

use redis::Value;

use super::bus::Bus;
use super::client::fields;
use super::ports::BUS_PORT_OFFSET;
use super::proxy::Proxy;
use super::server::Server;
use super::tls::TlsFiles;
use super::wait::{BOUND, wait_until};

const NODES: u16 = 3;
const SLOTS: u16 = 16_384;

const CLUSTER: [&str; 4] = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];

/// A cluster of three primaries. Each has a third of the slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    proxies: Vec<Proxy>,
    /// Of the first node.
    replica: Option<Server>,
    bus: Option<Bus>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::build(Vec::new(), None, None).await
    }

    /// Starts a cluster that speaks only TLS, between its nodes too.
    pub(crate) async fn with_tls(tls: &TlsFiles) -> Self {
        Self::build(Vec::new(), Some(tls), None).await
    }

    /// Starts a cluster whose first node has a replica, and can be cut off from the other nodes.
    pub(crate) async fn with_replica() -> Self {
        let mut bus = Bus::new();
        let (replica, bus_port) = start_on_bus(&mut bus, usize::from(NODES)).await;
        let mut cluster = Self::build(Vec::new(), None, Some(bus)).await;
        cluster.meet(&replica, bus_port).await;
        wait_until("the replica knows its primary", BOUND, async || {
            replica.try_query::<()>(&["CLUSTER", "REPLICATE", &cluster.ids[0]]).await.is_ok()
        })
        .await;
        wait_until("the replica has the primary's data", BOUND, async || {
            replica.info("replication").await["master_link_status"] == "up"
        })
        .await;
        let id: String = replica.query(&["CLUSTER", "MYID"]).await;
        wait_until("all nodes know the replica, and it knows them", BOUND, async || {
            for node in &cluster.nodes {
                let nodes: String = node.query(&["CLUSTER", "NODES"]).await;
                let knows = |line: &str| line.starts_with(&id) && line.contains("slave");
                if !nodes.lines().any(knows) {
                    return false;
                }
            }
            // Otherwise it ignores that they consider its primary as failed.
            let nodes: String = replica.query(&["CLUSTER", "NODES"]).await;
            cluster.ids.iter().all(|id| nodes.lines().any(|line| line.starts_with(id)))
        })
        .await;
        cluster.replica = Some(replica);
        cluster
    }

    /// Starts a cluster with a proxy in front of each node. The nodes announce the addresses of the
    /// proxies to clients. The cluster bus bypasses the proxies, so the nodes do not notice their
    /// faults.
    pub(crate) async fn proxied() -> Self {
        let mut proxies = Vec::new();
        for _ in 0..NODES {
            proxies.push(Proxy::start(0).await);
        }
        Self::build(proxies, None, None).await
    }

    async fn build(proxies: Vec<Proxy>, tls: Option<&TlsFiles>, mut bus: Option<Bus>) -> Self {
        let (mut nodes, mut ids, mut bus_ports) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..usize::from(NODES) {
            let (node, bus_port) = match &mut bus {
                Some(bus) => start_on_bus(bus, n).await,
                None => {
                    let node = start_node(proxies.get(n), tls).await;
                    let bus_port = node.port() + BUS_PORT_OFFSET;
                    (node, bus_port)
                }
            };
            bus_ports.push(bus_port);
            // Without distinct epochs the nodes would first have to resolve the conflict.
            let epoch = (n + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            node.command(&add_slots(n as u16)).await;
            ids.push(node.query(&["CLUSTER", "MYID"]).await);
            nodes.push(node);
        }
        let cluster = Self { nodes, ids, proxies, replica: None, bus };
        for (n, bus_port) in bus_ports.into_iter().enumerate().skip(1) {
            cluster.meet(&cluster.nodes[n], bus_port).await;
        }
        cluster.wait_until_consistent().await;
        cluster
    }

    /// Introduces a node to the cluster.
    async fn meet(&self, node: &Server, bus_port: u16) {
        let (port, bus_port) = (node.port().to_string(), bus_port.to_string());
        self.node(0).command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]).await;
    }

    /// Cuts the first node off from the others, and waits until its replica is promoted and the
    /// others know that. Clients still reach the first node, which still considers itself the owner
    /// of its slots.
    pub(crate) async fn isolate_first_node(&self) {
        self.bus.as_ref().expect("the cluster has a bus").isolate(0, &self.ids[0]);
        self.wait_until_promoted(self.replica()).await;
    }

    /// Promotes the first node again, after its replica was promoted while it was stopped.
    pub(crate) async fn restore_first_node(&self) {
        let node = self.node(0);
        node.restart().await;
        wait_until("it replicates its replica", BOUND, async || {
            node.info("replication")
                .await
                .get("master_link_status")
                .is_some_and(|link| link == "up")
        })
        .await;
        wait_until("it may be promoted", BOUND, async || {
            node.try_query::<()>(&["CLUSTER", "FAILOVER"]).await.is_ok()
        })
        .await;
        self.wait_until_promoted(node).await;
        self.wait_until_consistent().await;
    }

    /// Waits until the other nodes know that this server has the slots of the first node.
    pub(crate) async fn wait_until_promoted(&self, server: &Server) {
        let port = server.port();
        wait_until("the server is promoted", BOUND, async || {
            for n in 1..self.nodes.len() {
                let ranges = self.slot_ranges(n).await;
                if !ranges.iter().any(|range| range.first == 0 && range.port == port) {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Keeps the cluster from replying CLUSTERDOWN to everything soon after a node fails.
    pub(crate) async fn serve_without_all_nodes(&self) {
        for node in &self.nodes {
            node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
        }
    }

    /// Returns the replica of a cluster [`with_replica`](Self::with_replica).
    pub(crate) fn replica(&self) -> &Server {
        self.replica.as_ref().expect("the cluster has a replica")
    }

    /// Returns the URLs for clients: those of the proxies, if there are any.
    pub(crate) fn urls(&self) -> Vec<String> {
        match self.proxies.is_empty() {
            true => self.nodes.iter().map(Server::url).collect(),
            false => self.proxies.iter().map(Proxy::url).collect(),
        }
    }

    pub(crate) fn node(&self, n: usize) -> &Server {
        &self.nodes[n]
    }

    /// Returns the proxy in front of node `n` of a [`proxied`](Self::proxied) cluster.
    pub(crate) fn proxy(&self, n: usize) -> &Proxy {
        &self.proxies[n]
    }

    pub(crate) async fn slot_of(&self, key: &str) -> u16 {
        self.node(0).query(&["CLUSTER", "KEYSLOT", key]).await
    }

    /// Returns the owner of a slot, according to node 0.
    pub(crate) async fn slot_owner(&self, slot: u16) -> usize {
        let ranges = self.slot_ranges(0).await;
        let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
        let owner = &range.expect("all slots are covered").owner;
        self.ids.iter().position(|id| id == owner).expect("the owner is a node of this cluster")
    }

    /// Migrates a slot with its keys.
    pub(crate) async fn migrate_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_migration(slot, from, to).await;
        self.move_keys(slot, from, to).await;
        self.finish_migration(slot, from, to).await;
    }

    /// Begins a migration. From then on `from` replies with ASK for each key of the slot that it
    /// does not have.
    pub(crate) async fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        self.set_slot(to, slot, "IMPORTING", from).await;
        self.set_slot(from, slot, "MIGRATING", to).await;
    }

    /// Moves all keys of the slot.
    pub(crate) async fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (source, slot) = (self.node(from), slot.to_string());
        let port = self.node(to).port().to_string();
        loop {
            let get = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
            let keys = source.query::<Vec<Vec<u8>>>(&get).await;
            if keys.is_empty() {
                return;
            }
            let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            let args = migrate.into_iter().map(Vec::from).chain(keys);
            source.command(&args.collect::<Vec<_>>()).await;
        }
    }

    /// Makes `to` the owner of the slot. Informs that node first, so that the slot always has an
    /// owner.
    pub(crate) async fn finish_migration(&self, slot: u16, from: usize, to: usize) {
        let others = (0..self.nodes.len()).filter(|&n| n != from && n != to);
        for n in [to, from].into_iter().chain(others) {
            self.set_slot(n, slot, "NODE", to).await;
        }
    }

    async fn set_slot(&self, node: usize, slot: u16, state: &str, other: usize) {
        let args = ["CLUSTER", "SETSLOT", &slot.to_string(), state, &self.ids[other]];
        self.node(node).command(&args).await;
    }

    /// Waits until all nodes are up and agree on the owner of each slot.
    pub(crate) async fn wait_until_consistent(&self) {
        wait_until("all nodes agree on the slots", BOUND, async || {
            let first = self.slot_ranges(0).await;
            for n in 0..self.nodes.len() {
                if !self.is_ok(n).await || self.slot_ranges(n).await != first {
                    return false;
                }
            }
            true
        })
        .await;
    }

    async fn is_ok(&self, n: usize) -> bool {
        let info = fields(&self.node(n).query::<String>(&["CLUSTER", "INFO"]).await);
        let all = SLOTS.to_string();
        info["cluster_state"] == "ok" && info["cluster_slots_ok"] == all
    }

    async fn slot_ranges(&self, n: usize) -> BTreeSet<SlotRange> {
        let rows = self.node(n).query::<Vec<Vec<Value>>>(&["CLUSTER", "SLOTS"]).await;
        rows.into_iter().map(SlotRange::from_row).collect()
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlotRange {
    first: u16,
    last: u16,
    port: u16,
    owner: String,
}

impl SlotRange {
    /// Parses a row of `CLUSTER SLOTS`: the first slot, the last slot, the primary, its replicas.
    fn from_row(row: Vec<Value>) -> Self {
        let mut row = row.into_iter();
        let mut next = || row.next().expect("a row has slots and a primary");
        let (first, last) = (integer(next()), integer(next()));
        let primary: Vec<Value> = redis::from_redis_value(next()).unwrap();
        let mut primary = primary.into_iter().skip(1);
        let port = integer(primary.next().unwrap());
        let owner = redis::from_redis_value(primary.next().unwrap()).unwrap();
        Self { first, last, port, owner }
    }
}

fn integer(value: Value) -> u16 {
    redis::from_redis_value(value).expect("an integer of 16 bits")
}

async fn start_node(proxy: Option<&Proxy>, tls: Option<&TlsFiles>) -> Server {
    let announce = ["--cluster-announce-ip", "127.0.0.1"];
    if let Some(tls) = tls {
        return Server::with_tls(tls, &[CLUSTER.as_slice(), &announce].concat()).await;
    }
    let Some(proxy) = proxy else {
        return Server::with_args(&[CLUSTER.as_slice(), &announce].concat()).await;
    };
    let port = proxy.port().to_string();
    let announce = [announce.as_slice(), &["--cluster-announce-port", &port]].concat();
    let node = Server::with_args(&[CLUSTER.as_slice(), &announce].concat()).await;
    proxy.retarget(node.port());
    node
}

/// Starts a node whose bus port is behind a proxy. Returns the port of the proxy.
async fn start_on_bus(bus: &mut Bus, n: usize) -> (Server, u16) {
    let (bus_port, target) = bus.add(n).await;
    let announce = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-bus-port"];
    let bus_port_option = bus_port.to_string();
    let announce = [announce.as_slice(), &[&bus_port_option]].concat();
    let node = Server::with_args(&[CLUSTER.as_slice(), &announce].concat()).await;
    target.send_replace(Some(node.port()));
    (node, bus_port)
}

fn add_slots(n: u16) -> Vec<String> {
    let count = SLOTS.div_ceil(NODES);
    let slots = (n * count..SLOTS.min((n + 1) * count)).map(|slot| slot.to_string());
    ["CLUSTER", "ADDSLOTS"].into_iter().map(String::from).chain(slots).collect()
}
