//! The servers of a run, and what they spend.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

use crate::captured::Captured;
use crate::common::{Cluster, Server};
use crate::subjects::{Fault, tollgate};

pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) cluster: Cluster,
    /// tollgate's calls, as a server saw them.
    pub(crate) open: Arc<Captured>,
    pub(crate) shut: Arc<Captured>,
}

impl Stage {
    pub(crate) async fn set() -> Result<Self, Fault> {
        let (server, cluster) = (Server::start().await, Cluster::start().await);
        let open = Arc::new(Captured::of(tollgate::open()).await?);
        let shut = Arc::new(Captured::of(tollgate::shut()).await?);
        for node in [&server, cluster.node(0), cluster.node(1), cluster.node(2)] {
            open.load(node).await;
            shut.load(node).await;
        }
        Ok(Self { server, cluster, open, shut })
    }

    /// A connection as the floor has it: many callers share it, and nothing waits for more to send.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let client = Client::open(without_delay(&self.server.url())?)?;
        // A time-out for each command has its cost too.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    pub(crate) async fn connect_to_cluster(&self) -> Result<ClusterConnection, Fault> {
        let client = ClusterClientBuilder::new(self.cluster.urls())
            .retries(0)
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            .build()?;
        Ok(client.get_async_connection().await?)
    }

    /// The CPU time that the server, or all nodes of the cluster, have spent.
    pub(crate) async fn cpu(&self, on_cluster: bool) -> Duration {
        if !on_cluster {
            return cpu_of(&self.server).await;
        }
        let mut sum = Duration::ZERO;
        for n in 0..3 {
            sum += cpu_of(self.cluster.node(n)).await;
        }
        sum
    }

    pub(crate) async fn redis_version(&self) -> String {
        let mut info = self.server.info("server").await;
        info.remove("redis_version").unwrap_or_default()
    }
}

pub(crate) async fn cpu_of(server: &Server) -> Duration {
    let info = server.info("cpu").await;
    seconds(&info, "used_cpu_user") + seconds(&info, "used_cpu_sys")
}

fn seconds(info: &BTreeMap<String, String>, name: &str) -> Duration {
    let seconds = info.get(name).and_then(|text| text.trim().parse().ok());
    Duration::from_secs_f64(seconds.expect("INFO cpu with seconds"))
}

/// redis-rs leaves TCP_NODELAY off.
pub(crate) fn without_delay(url: &str) -> Result<redis::ConnectionInfo, Fault> {
    Ok(url.into_connection_info()?.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}
