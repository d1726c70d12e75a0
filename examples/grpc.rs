//! A tonic server with a rate limit, and a client that reads from a denial how long to wait.
//!
//! ```sh
//! cargo run --example grpc --features tonic
//! ```

use std::net::Ipv4Addr;

use fleetlimit::resolve::PeerIp;
use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(2))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;

    // Any tonic service works in place of the health service.
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(RateLimitLayer::new(limiter, PeerIp::new()))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::spawn(server);

    let channel = Endpoint::try_from(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for _ in 0..3 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(response) => {
                println!("ok, RateLimit: {:?}", response.metadata().get("ratelimit"));
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                let wait = status.get_details_retry_info().and_then(|info| info.retry_delay);
                println!("RESOURCE_EXHAUSTED: {}, wait {wait:?}", status.message());
            }
            Err(status) => return Err(status.into()),
        }
    }
    Ok(())
}
