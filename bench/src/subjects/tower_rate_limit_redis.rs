//! tower-rate-limit-redis 1.0.2: a GCRA script for each check on a shared connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use peer_redis::IntoConnectionInfo;
use peer_redis::io::tcp::TcpSettings;
use tower::{Layer, Service};
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use super::{Fault, Hello, Through};
use crate::stage::Stage;

/// It takes no burst over 65,535.
const BURST: u16 = u16::MAX;

pub(crate) async fn tower_rate_limit_redis(
    stage: &Stage,
    is_open: bool,
) -> Result<
    Through<
        impl Service<
            Request<()>,
            Response = Response<Body>,
            Error = std::convert::Infallible,
            Future: Send,
        > + Clone
        + Send
        + 'static,
    >,
    Fault,
> {
    let info = stage.server.url().into_connection_info()?;
    let client = peer_redis::Client::open(info)?;
    let connection = client.get_multiplexed_async_connection().await?;
    let (burst, seconds) = if is_open { (BURST, 60) } else { (1, 86_400) };
    let layer = RateLimitLayer::builder()
        .conn(connection)
        .key_resolver(ByAddress { is_open, asked: Arc::default() })
        .capacity(burst)
        .emission_interval(Duration::from_secs(seconds))
        .build();
    Ok(Through(layer.layer(Hello)))
}
