//! A Redis server at a distance: behind a proxy that delays both directions.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::common::{Proxy, Server};
use crate::subjects::BoxError;

/// The proxy has a thread of its own, so that it does not wait for the load, nor the load for it.
pub(crate) struct DistantServer {
    pub(crate) server: Server,
    proxy: Proxy,
    runtime: Option<Runtime>,
}

impl DistantServer {
    pub(crate) async fn start() -> Result<Self, BoxError> {
        let server = Server::start().await;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let port = server.port();
        let proxy = runtime.spawn(async move { Proxy::start(port).await }).await?;
        Ok(Self { server, proxy, runtime: Some(runtime) })
    }

    pub(crate) fn url(&self) -> String {
        self.proxy.url()
    }

    /// Returns how many connections were made so far.
    pub(crate) fn connections(&self) -> usize {
        self.proxy.accepted()
    }

    /// Returns how many connections the server has, besides the one that asks.
    pub(crate) async fn open_connections(&self) -> usize {
        let clients = self.server.info("clients").await;
        let count = clients.get("connected_clients").and_then(|count| count.trim().parse().ok());
        count.map_or(0, |count: usize| count.saturating_sub(1))
    }

    /// Sets the round trip time. New connections have it from their start.
    pub(crate) fn round_trip(&self, time: Duration) {
        self.proxy.round_trip(time);
    }
}

impl Drop for DistantServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
