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
use crate::distance::DistantServer;
use crate::subjects::{BoxError, fleetlimit};

/// The time of a round trip to the distant server.
const ROUND_TRIP: Duration = Duration::from_millis(30);

/// The environment variable with the path of the module redis-cell. Without it, that is no subject.
const REDIS_CELL: &str = "REDIS_CELL";

pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) distant: DistantServer,
    pub(crate) cluster: Cluster,
    /// True if the local server has the module redis-cell.
    pub(crate) has_redis_cell: bool,
    /// The captured calls of `allow_all` and of `deny_after_first`.
    pub(crate) allow_call: Arc<CapturedCall>,
    pub(crate) deny_call: Arc<CapturedCall>,
}

/// The servers that a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Local,
    Distant,
    Cluster,
}

impl Setup {
    pub(crate) async fn start() -> Result<Self, BoxError> {
        let redis_cell = std::env::var(REDIS_CELL).ok();
        let modules = redis_cell.iter().flat_map(|path| ["--loadmodule", path]);
        let server = Server::with_args(&modules.collect::<Vec<_>>()).await;
        let (distant, cluster) = (DistantServer::start().await?, Cluster::start().await);
        distant.round_trip(ROUND_TRIP);
        let allow_call = Arc::new(CapturedCall::capture(fleetlimit::allow_all()).await?);
        let deny_call = Arc::new(CapturedCall::capture(fleetlimit::deny_after_first()).await?);
        for node in [&server, cluster.node(0), cluster.node(1), cluster.node(2)] {
            allow_call.load(node).await;
            deny_call.load(node).await;
        }
        let has_redis_cell = redis_cell.is_some();
        Ok(Self { server, distant, cluster, has_redis_cell, allow_call, deny_call })
    }

    /// Returns the server of a place, or one node of the cluster.
    pub(crate) fn server(&self, place: Place) -> &Server {
        match place {
            Place::Local => &self.server,
            Place::Distant => &self.distant.server,
            Place::Cluster => self.cluster.node(0),
        }
    }

    /// Returns the URL by which clients reach the server of a place, or one node of the cluster.
    pub(crate) fn url(&self, place: Place) -> String {
        match place {
            Place::Distant => self.distant.url(),
            _ => self.server(place).url(),
        }
    }

    pub(crate) async fn connect_to_cluster(&self) -> Result<ClusterConnection, BoxError> {
        let client = ClusterClientBuilder::new(self.cluster.urls())
            .retries(0)
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            .build()?;
        Ok(client.get_async_connection().await?)
    }

    /// Returns the CPU time that the server, or the whole cluster, has used since its start.
    pub(crate) async fn cpu(&self, place: Place) -> Duration {
        if place != Place::Cluster {
            return server_cpu(self.server(place)).await;
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

/// Opens a connection with `TCP_NODELAY`, to be shared by all tasks.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection, BoxError> {
    let client = Client::open(with_nodelay(url)?)?;
    // A response timeout would add to the cost of every command.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
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
