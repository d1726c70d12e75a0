use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::client::fields;
use super::server::Server;
use super::wait::{BOUND, wait_until};

const SERVICE: &str = "tollgate";
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// A primary with a replica, and three sentinels that watch them.
#[derive(Debug)]
pub(crate) struct Sentinel {
    servers: [Server; 2],
    primary: AtomicUsize,
    sentinels: Vec<Server>,
}

impl Sentinel {
    pub(crate) async fn start() -> Self {
        // Either may become the primary, and the default delay is for many replicas to gather.
        let eager = ["--repl-diskless-sync-delay", "0"];
        let primary = Server::with_args(&eager).await;
        let port = primary.port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &port];
        let replica = Server::with_args(&[eager.as_slice(), &follow].concat()).await;
        let servers = [primary, replica];
        let mut started = Self { servers, primary: AtomicUsize::new(0), sentinels: Vec::new() };
        // A sentinel looks for replicas when it starts, and then not for ten seconds.
        started.replica_follows().await;
        for _ in 0..SENTINELS {
            started.sentinels.push(start_sentinel(started.primary().port()).await);
        }
        for sentinel in &started.sentinels {
            wait_until("the sentinels know all", BOUND, async || started.knows_all(sentinel).await)
                .await;
        }
        started
    }

    /// The sentinels, which is where a client asks for the primary.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    pub(crate) fn service_name(&self) -> &'static str {
        SERVICE
    }

    pub(crate) fn sentinel(&self, n: usize) -> &Server {
        &self.sentinels[n]
    }

    /// The primary since the last failover that this harness has seen.
    pub(crate) fn primary(&self) -> &Server {
        &self.servers[self.primary.load(SeqCst)]
    }

    pub(crate) fn replica(&self) -> &Server {
        &self.servers[1 - self.primary.load(SeqCst)]
    }

    /// Has the sentinels promote the replica, and waits until they have. The old primary goes on
    /// as a second one: the sentinels demote it up to twenty seconds later.
    pub(crate) async fn failover(&self) {
        wait_until("a sentinel begins the failover", BOUND, async || {
            let order = ["SENTINEL", "FAILOVER", SERVICE];
            self.sentinel(0).try_query::<()>(&order).await.is_ok()
        })
        .await;
        self.promoted().await;
    }

    /// After a failover, makes the old primary a replica now. Unlike the sentinels it leaves its
    /// connections open: they answer PING, and every write with READONLY.
    pub(crate) async fn demote(&self) {
        let port = self.primary().port().to_string();
        self.replica().command(&["REPLICAOF", "127.0.0.1", &port]).await;
        self.replica_follows().await;
    }

    /// Waits until the replica is the primary and all sentinels say so, such as after a test has
    /// stopped the primary.
    pub(crate) async fn promoted(&self) {
        let replica = self.replica();
        wait_until("the replica is promoted", BOUND, async || {
            shows(replica, "role", "master").await && self.all_name(replica.port()).await
        })
        .await;
        self.primary.fetch_xor(1, SeqCst);
    }

    async fn replica_follows(&self) {
        wait_until("the replica has the primary's data", BOUND, async || {
            shows(self.replica(), "master_link_status", "up").await
        })
        .await;
    }

    async fn knows_all(&self, sentinel: &Server) -> bool {
        type Fields = HashMap<String, String>;
        let primary: Fields = sentinel.query(&["SENTINEL", "MASTER", SERVICE]).await;
        let replicas: Vec<Fields> = sentinel.query(&["SENTINEL", "REPLICAS", SERVICE]).await;
        let replica = self.replica().port().to_string();
        primary["port"] == self.primary().port().to_string()
            && primary["flags"] == "master"
            && primary["num-other-sentinels"] == (SENTINELS - 1).to_string()
            && replicas.iter().any(|known| {
                known["port"] == replica
                    && known["flags"] == "slave"
                    && known["master-link-status"] == "ok"
            })
    }

    async fn all_name(&self, port: u16) -> bool {
        for sentinel in &self.sentinels {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
            let (_, named) = sentinel.query::<(String, u16)>(&words).await;
            if named != port {
                return false;
            }
        }
        true
    }
}

/// Whether a server's replication is in that state. Not if it has no answer: a sentinel that
/// promotes a server closes the connections of its clients.
async fn shows(server: &Server, field: &str, value: &str) -> bool {
    let replication = server.try_query::<String>(&["INFO", "replication"]).await;
    replication.is_ok_and(|info| fields(&info).get(field).is_some_and(|is| is == value))
}

async fn start_sentinel(primary: u16) -> Server {
    Server::launch(|port, dir| {
        // A sentinel keeps what it learns in its configuration.
        let file = dir.join("sentinel.conf");
        let configuration = format!(
            "port {port}\n\
             bind 127.0.0.1\n\
             dir {dir:?}\n\
             sentinel monitor {SERVICE} 127.0.0.1 {primary} {QUORUM}\n\
             sentinel down-after-milliseconds {SERVICE} 1000\n\
             sentinel failover-timeout {SERVICE} 5000\n"
        );
        fs::write(&file, configuration).unwrap();
        vec![file.to_str().unwrap().to_owned(), "--sentinel".to_owned()]
    })
    .await
}
