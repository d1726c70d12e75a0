use std::collections::BTreeSet;

use redis::Value;

use super::client::fields;
use super::place::BUS;
use super::proxy::Proxy;
use super::server::Server;
use super::wait::{BOUND, wait_until};

const NODES: u16 = 3;
const SLOTS: u16 = 16_384;

/// A cluster of three primaries with a third of the slots each, and no replicas.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    proxies: Vec<Proxy>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::build(Vec::new()).await
    }

    /// With a proxy before each node, which is where the nodes send their clients: faults of the
    /// network that the nodes do not notice, for their own bus goes past the proxies.
    pub(crate) async fn proxied() -> Self {
        let mut proxies = Vec::new();
        for _ in 0..NODES {
            proxies.push(Proxy::start(0).await);
        }
        Self::build(proxies).await
    }

    async fn build(proxies: Vec<Proxy>) -> Self {
        let (mut nodes, mut ids) = (Vec::new(), Vec::new());
        for n in 0..usize::from(NODES) {
            let node = start_node(proxies.get(n)).await;
            // An epoch for each, or they first have to find out that all have the same.
            let epoch = (n + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            node.command(&add_slots(n as u16)).await;
            ids.push(node.query(&["CLUSTER", "MYID"]).await);
            nodes.push(node);
        }
        let cluster = Self { nodes, ids, proxies };
        for (n, node) in cluster.nodes.iter().enumerate() {
            for other in &cluster.nodes[..n] {
                let (port, bus) = (other.port().to_string(), (other.port() + BUS).to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
            }
        }
        cluster.settled().await;
        cluster
    }

    /// Where a client finds the nodes: their proxies, if there are any.
    pub(crate) fn urls(&self) -> Vec<String> {
        match self.proxies.is_empty() {
            true => self.nodes.iter().map(Server::url).collect(),
            false => self.proxies.iter().map(Proxy::url).collect(),
        }
    }

    pub(crate) fn node(&self, n: usize) -> &Server {
        &self.nodes[n]
    }

    /// The proxy before node `n` of a [`proxied`](Self::proxied) cluster.
    pub(crate) fn proxy(&self, n: usize) -> &Proxy {
        &self.proxies[n]
    }

    pub(crate) async fn slot_of(&self, key: &str) -> u16 {
        self.node(0).query(&["CLUSTER", "KEYSLOT", key]).await
    }

    /// The node that serves a slot, as node 0 knows it.
    pub(crate) async fn slot_owner(&self, slot: u16) -> usize {
        let ranges = self.ranges_seen_by(0).await;
        let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
        let owner = &range.expect("a cluster that covers all slots").owner;
        self.ids.iter().position(|id| id == owner).expect("a node of this cluster")
    }

    /// Moves a slot with its keys.
    pub(crate) async fn migrate_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_migration(slot, from, to).await;
        self.move_keys(slot, from, to).await;
        self.finish_migration(slot, from, to).await;
    }

    /// From here on `from` answers ASK for every key of the slot that it does not have.
    pub(crate) async fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        self.set_slot(to, slot, "IMPORTING", from).await;
        self.set_slot(from, slot, "MIGRATING", to).await;
    }

    /// Moves the keys of the slot until `from` has none left.
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
            let words = migrate.into_iter().map(Vec::from).chain(keys);
            source.command(&words.collect::<Vec<_>>()).await;
        }
    }

    /// Gives the slot to `to`, the first to hear of it, so that no moment is without an owner.
    pub(crate) async fn finish_migration(&self, slot: u16, from: usize, to: usize) {
        let others = (0..self.nodes.len()).filter(|&n| n != from && n != to);
        for n in [to, from].into_iter().chain(others) {
            self.set_slot(n, slot, "NODE", to).await;
        }
    }

    async fn set_slot(&self, node: usize, slot: u16, state: &str, other: usize) {
        let words = ["CLUSTER", "SETSLOT", &slot.to_string(), state, &self.ids[other]];
        self.node(node).command(&words).await;
    }

    /// Waits until all nodes serve, and agree on who serves what.
    pub(crate) async fn settled(&self) {
        wait_until("all nodes of the cluster agree", BOUND, async || {
            let first = self.ranges_seen_by(0).await;
            for n in 0..self.nodes.len() {
                if !self.is_ok(n).await || self.ranges_seen_by(n).await != first {
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

    async fn ranges_seen_by(&self, n: usize) -> BTreeSet<Range> {
        let rows = self.node(n).query::<Vec<Vec<Value>>>(&["CLUSTER", "SLOTS"]).await;
        rows.into_iter().map(Range::from_row).collect()
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: u16,
    last: u16,
    port: u16,
    owner: String,
}

impl Range {
    /// A row of `CLUSTER SLOTS`: the first slot, the last, the primary, its replicas.
    fn from_row(row: Vec<Value>) -> Self {
        let mut row = row.into_iter();
        let mut next = || row.next().expect("slots and their primary");
        let (first, last) = (integer(next()), integer(next()));
        let primary: Vec<Value> = redis::from_redis_value(next()).unwrap();
        let mut primary = primary.into_iter().skip(1);
        let port = integer(primary.next().unwrap());
        let owner = redis::from_redis_value(primary.next().unwrap()).unwrap();
        Self { first, last, port, owner }
    }
}

fn integer(value: Value) -> u16 {
    redis::from_redis_value(value).expect("a small integer")
}

async fn start_node(proxy: Option<&Proxy>) -> Server {
    let enabled = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    let announced = ["--cluster-announce-ip", "127.0.0.1"];
    let Some(proxy) = proxy else {
        return Server::with_args(&[enabled.as_slice(), &announced].concat()).await;
    };
    let port = proxy.port().to_string();
    let announced = [announced.as_slice(), &["--cluster-announce-port", &port]].concat();
    let node = Server::with_args(&[enabled.as_slice(), &announced].concat()).await;
    proxy.retarget(node.port());
    node
}

fn add_slots(n: u16) -> Vec<String> {
    let share = SLOTS.div_ceil(NODES);
    let slots = (n * share..SLOTS.min((n + 1) * share)).map(|slot| slot.to_string());
    ["CLUSTER", "ADDSLOTS"].into_iter().map(String::from).chain(slots).collect()
}
