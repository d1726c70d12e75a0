//! The faults, each with how it happens to a server, the proxy in front of it, or a process.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::instance::{Instance, Reports};
use crate::common::{Proxy, Server};
use crate::subjects::BoxError;

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
    InstanceSuspended,
    InstanceKilled,
}

impl Fault {
    pub(super) const ALL: [Self; 14] = [
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
        Self::InstanceSuspended,
        Self::InstanceKilled,
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
            Self::InstanceSuspended => "a process suspended (SIGSTOP)",
            Self::InstanceKilled => "a process killed (SIGKILL)",
        }
    }

    /// Whether Redis loses its data.
    pub(super) fn loses_data(self) -> bool {
        self == Self::Killed
    }

    /// The share of a burst that an outage of the instances may add.
    pub(super) fn lost(self, instances: usize) -> f64 {
        match self {
            Self::ScriptsFlushed | Self::InstanceKilled => 0.0,
            // The checks that it had sent are late when it goes on.
            Self::InstanceSuspended => 1.0 / instances as f64,
            _ => 1.0,
        }
    }

    /// True if the instances lose Redis for different times.
    pub(super) fn is_partial(self) -> bool {
        matches!(self, Self::Disconnects | Self::ClientsKilled)
    }

    /// True if a process does not run, so that its checks take as long.
    pub(super) fn stops_a_process(self) -> bool {
        self == Self::InstanceSuspended
    }

    /// Happens, and is over when this returns. The other result is what the checks of an instance came to that was
    /// replaced.
    pub(super) async fn happen(
        self,
        target: &Target,
        instances: &mut [Instance],
        key: &str,
        time: Duration,
    ) -> Result<Option<Reports>, BoxError> {
        match (self, instances) {
            (Self::InstanceSuspended, [instance, ..]) => {
                instance.signal("STOP")?;
                sleep(time).await;
                instance.signal("CONT")?;
            }
            (Self::InstanceKilled, [instance, ..]) => {
                // What it has admitted is counted, and what it has leased is lost.
                let reports = instance.end().await?;
                instance.kill().await?;
                sleep(time).await;
                *instance = Instance::start(&target.url())?;
                instance.begin(key).await?;
                return Ok(Some(reports));
            }
            _ => self.happen_to_redis(target, time).await,
        }
        Ok(None)
    }

    /// Like [`happen`](Self::happen), for the faults of Redis and its network.
    pub(super) async fn happen_to_redis(self, Target { server, proxy }: &Target, time: Duration) {
        match self {
            Self::InstanceSuspended | Self::InstanceKilled => {}
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
