//! A primary, a replica and three sentinels.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::client::fields;
use super::server::Server;
use super::tls::TlsFiles;
use super::wait::{BOUND, wait_until};

const SERVICE: &str = "fleetlimit";
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
        Self::build(None).await
    }

    /// Starts servers and sentinels that speak only TLS.
    pub(crate) async fn with_tls(tls: &TlsFiles) -> Self {
        Self::build(Some(tls)).await
    }

    async fn build(tls: Option<&TlsFiles>) -> Self {
        // The default delay waits for further replicas. Either server may become the primary.
        let no_delay = ["--repl-diskless-sync-delay", "0"];
        let primary = start_server(tls, &no_delay).await;
        let port = primary.port().to_string();
        let replicaof = ["--replicaof", "127.0.0.1", &port];
        let replica = start_server(tls, &[no_delay.as_slice(), &replicaof].concat()).await;
        let servers = [primary, replica];
        let mut started = Self { servers, primary: AtomicUsize::new(0), sentinels: Vec::new() };
        // A sentinel looks for replicas when it starts, and again ten seconds later.
        started.wait_until_replicated().await;
        for _ in 0..SENTINELS {
            started.sentinels.push(start_sentinel(started.primary().port(), tls).await);
        }
        for sentinel in &started.sentinels {
            wait_until("the sentinels know all servers", BOUND, async || {
                started.knows_all(sentinel).await
            })
            .await;
        }
        started
    }

    /// Returns the URLs of the sentinels, for clients.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    pub(crate) fn service_name(&self) -> &'static str {
        SERVICE
    }

    pub(crate) fn sentinel(&self, n: usize) -> &Server {
        &self.sentinels[n]
    }

    /// Returns the primary since the last failover that a method of this type waited for.
    pub(crate) fn primary(&self) -> &Server {
        &self.servers[self.primary.load(SeqCst)]
    }

    pub(crate) fn replica(&self) -> &Server {
        &self.servers[1 - self.primary.load(SeqCst)]
    }

    /// Requests a failover, and waits until the replica is promoted. Until the sentinels demote the
    /// old primary, up to twenty seconds later, there are two primaries.
    pub(crate) async fn failover(&self) {
        wait_until("a sentinel begins the failover", BOUND, async || {
            let failover = ["SENTINEL", "FAILOVER", SERVICE];
            self.sentinel(0).try_query::<()>(&failover).await.is_ok()
        })
        .await;
        self.wait_until_promoted().await;
    }

    /// Demotes the old primary right after a failover. Unlike the sentinels, this keeps its
    /// connections open. They reply to PING, and reject writes with READONLY.
    pub(crate) async fn demote(&self) {
        let port = self.primary().port().to_string();
        self.replica().command(&["REPLICAOF", "127.0.0.1", &port]).await;
        self.wait_until_replicated().await;
    }

    /// Waits until the replica is promoted and all sentinels report it as the primary. The test has
    /// stopped the old primary or requested a failover.
    pub(crate) async fn wait_until_promoted(&self) {
        let replica = self.replica();
        wait_until("the replica is promoted", BOUND, async || {
            has_replication_field(replica, "role", "master").await
                && self.all_report(replica.port()).await
        })
        .await;
        self.primary.fetch_xor(1, SeqCst);
    }

    /// Returns how many clients of these sentinels are subscribed to something.
    pub(crate) async fn subscribers(&self) -> usize {
        let mut count = 0;
        for sentinel in &self.sentinels {
            let clients: String = sentinel.query(&["CLIENT", "LIST"]).await;
            count += clients.lines().filter(|client| client.contains(" sub=1 ")).count();
        }
        count
    }

    /// Waits until one server replicates the other. Which one may have changed: on a busy machine the
    /// sentinels may take a primary for dead that is only slow.
    pub(crate) async fn wait_until_replicated(&self) {
        wait_until("the replica has the primary's data", BOUND, async || {
            for (primary, replica) in [(0, 1), (1, 0)] {
                if has_replication_field(&self.servers[replica], "master_link_status", "up").await
                    && self.all_report(self.servers[primary].port()).await
                {
                    self.primary.store(primary, SeqCst);
                    return true;
                }
            }
            false
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

    async fn all_report(&self, port: u16) -> bool {
        for sentinel in &self.sentinels {
            let args = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
            let (_, reported) = sentinel.query::<(String, u16)>(&args).await;
            if reported != port {
                return false;
            }
        }
        true
    }
}

/// Returns whether `INFO replication` has this value. It is false if there is no reply: a sentinel
/// that promotes a server closes the connections of its clients.
async fn has_replication_field(server: &Server, field: &str, value: &str) -> bool {
    let replication = server.try_query::<String>(&["INFO", "replication"]).await;
    replication.is_ok_and(|info| fields(&info).get(field).is_some_and(|actual| actual == value))
}

async fn start_server(tls: Option<&TlsFiles>, args: &[&str]) -> Server {
    match tls {
        Some(tls) => Server::with_tls(tls, args).await,
        None => Server::with_args(args).await,
    }
}

async fn start_sentinel(primary: u16, tls: Option<&TlsFiles>) -> Server {
    Server::launch_with(tls, |port, dir| {
        // A sentinel writes its state to its configuration file.
        let file = dir.join("sentinel.conf");
        let ports = tls.map_or(format!("port {port}\n"), |tls| tls.configuration(port));
        let configuration = format!(
            "{ports}\
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
