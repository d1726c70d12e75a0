//! The faults, each with how it happens to a server or the proxy in front of it.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::common::{Proxy, Server};

/// A server, and a proxy on the way to it.
pub(super) struct Target {
    server: Server,
    proxy: Proxy,
}

impl Target {
    pub(super) async fn start() -> Self {
        let server = Server::start().await;
        let proxy = Proxy::start(server.port()).await;
        proxy.round_trip(Duration::from_millis(1));
        Self { server, proxy }
    }

    pub(super) fn url(&self) -> String {
        self.proxy.url()
    }

    pub(super) fn suspend(&self) {
        self.server.pause();
    }

    pub(super) fn resume(&self) {
        self.server.resume();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Silent,
    Slow,
    Unreachable,
    Disconnects,
    Truncated,
    Garbled,
    Suspended,
    Killed,
    Paused,
    ClientsKilled,
    ScriptsFlushed,
    Full,
}

impl Fault {
    pub(super) const ALL: [Self; 12] = [
        Self::Silent,
        Self::Slow,
        Self::Unreachable,
        Self::Disconnects,
        Self::Truncated,
        Self::Garbled,
        Self::Suspended,
        Self::Killed,
        Self::Paused,
        Self::ClientsKilled,
        Self::ScriptsFlushed,
        Self::Full,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Silent => "no bytes arrive",
            Self::Slow => "replies 200 ms late",
            Self::Unreachable => "connections cut and refused",
            Self::Disconnects => "connections cut every 100 ms",
            Self::Truncated => "replies truncated",
            Self::Garbled => "replies garbled",
            Self::Suspended => "Redis suspended (SIGSTOP)",
            Self::Killed => "Redis killed, and empty afterwards",
            Self::Paused => "CLIENT PAUSE",
            Self::ClientsKilled => "CLIENT KILL every 100 ms",
            Self::ScriptsFlushed => "SCRIPT FLUSH every 100 ms",
            Self::Full => "Redis full, without eviction",
        }
    }

    /// Whether Redis loses its data.
    pub(super) fn loses_data(self) -> bool {
        self == Self::Killed
    }

    /// Whether Redis decides checks during the fault.
    pub(super) fn leaves_redis_available(self) -> bool {
        self == Self::ScriptsFlushed
    }

    /// Happens, and is over when this returns.
    pub(super) async fn happen(self, Target { server, proxy }: &Target, time: Duration) {
        match self {
            Self::Silent => {
                proxy.swallow(true);
                sleep(time).await;
                proxy.swallow(false);
            }
            Self::Slow => {
                proxy.delay(Duration::from_millis(200));
                sleep(time).await;
                proxy.delay(Duration::ZERO);
            }
            Self::Unreachable => {
                proxy.refuse().await;
                proxy.disconnect_all().await;
                sleep(time).await;
                proxy.accept().await;
            }
            Self::Disconnects => repeat(time, async || proxy.disconnect_all().await).await,
            Self::Truncated => {
                proxy.truncate(true);
                sleep(time).await;
                proxy.truncate(false);
            }
            Self::Garbled => {
                proxy.garble(true);
                sleep(time).await;
                proxy.garble(false);
            }
            Self::Suspended => {
                server.pause();
                sleep(time).await;
                server.resume();
            }
            Self::Killed => {
                server.stop();
                sleep(time).await;
                server.restart().await;
            }
            Self::Paused => {
                let millis = time.as_millis().to_string();
                server.command(&["CLIENT", "PAUSE", &millis]).await;
                // The reply shows that it is over.
                server.command(&["PING"]).await;
            }
            Self::ClientsKilled => {
                let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
                repeat(time, async || drop(server.command(&kill).await)).await;
            }
            Self::ScriptsFlushed => {
                repeat(time, async || drop(server.command(&["SCRIPT", "FLUSH"]).await)).await;
            }
            Self::Full => {
                server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
                sleep(time).await;
                server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
            }
        }
    }
}

async fn repeat(time: Duration, fault: impl AsyncFn()) {
    let start = Instant::now();
    while start.elapsed() < time {
        fault().await;
        sleep(Duration::from_millis(100)).await;
    }
}
