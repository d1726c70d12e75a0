//! The Redis servers of a benchmark, and their CPU time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

use crate::captured::CapturedCall;
use crate::common::{Cluster, Server};
use crate::subjects::{BoxError, fleetlimit};

pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) cluster: Cluster,
    /// The captured calls of `allow_all` and of `deny_after_first`.
    pub(crate) allow_call: Arc<CapturedCall>,
    pub(crate) deny_call: Arc<CapturedCall>,
}

impl Setup {
    pub(crate) async fn start() -> Result<Self, BoxError> {
        let (server, cluster) = (Server::start().await, Cluster::start().await);
        let allow_call = Arc::new(CapturedCall::capture(fleetlimit::allow_all()).await?);
        let deny_call = Arc::new(CapturedCall::capture(fleetlimit::deny_after_first()).await?);
        for node in [&server, cluster.node(0), cluster.node(1), cluster.node(2)] {
            allow_call.load(node).await;
            deny_call.load(node).await;
        }
        Ok(Self { server, cluster, allow_call, deny_call })
    }

    /// Opens a connection with `TCP_NODELAY`, to be shared by all tasks.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, BoxError> {
        let client = Client::open(with_nodelay(&self.server.url())?)?;
        // A response timeout would add to the cost of every command.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    pub(crate) async fn connect_to_cluster(&self) -> Result<ClusterConnection, BoxError> {
        let client = ClusterClientBuilder::new(self.cluster.urls())
            .retries(0)
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            .build()?;
        Ok(client.get_async_connection().await?)
    }

    /// Returns the CPU time that the server, or the whole cluster, has used since its start.
    pub(crate) async fn cpu(&self, on_cluster: bool) -> Duration {
        if !on_cluster {
            return server_cpu(&self.server).await;
        }
        let mut sum = Duration::ZERO;
        for n in 0..3 {
            sum += server_cpu(self.cluster.node(n)).await;
        }
        sum
    }

    pub(crate) async fn redis_version(&self) -> String {
        let mut info = self.server.info("server").await;
        info.remove("redis_version").unwrap_or_default()
    }
}

pub(crate) async fn server_cpu(server: &Server) -> Duration {
    let info = server.info("cpu").await;
    seconds(&info, "used_cpu_user") + seconds(&info, "used_cpu_sys")
}

fn seconds(info: &BTreeMap<String, String>, name: &str) -> Duration {
    let seconds = info.get(name).and_then(|text| text.trim().parse().ok());
    Duration::from_secs_f64(seconds.expect("INFO cpu reports seconds"))
}

/// redis-rs does not set `TCP_NODELAY` by default.
pub(crate) fn with_nodelay(url: &str) -> Result<redis::ConnectionInfo, BoxError> {
    Ok(url.into_connection_info()?.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}
