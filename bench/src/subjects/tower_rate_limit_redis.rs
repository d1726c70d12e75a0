//! tower-rate-limit-redis 1.0.2: one call of a GCRA script per check, on a shared connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use redis_0_32::AsyncConnectionConfig;
use redis_0_32::io::tcp::TcpSettings;
use tower::Layer;
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use super::{BoxError, Bucket, DAY, OkService, Operation, REFILL, ServiceCall};
use crate::rows::Row;
use crate::setup::Setup;

/// The largest burst that the crate accepts.
const BURST: u16 = u16::MAX;

/// With one key, requests soon exhaust the burst, and a denial costs less than an allowed request.
/// The key therefore gets a new suffix after this many requests.
const REQUESTS_PER_SUFFIX: u64 = 50_000;

pub(crate) async fn tower_rate_limit_redis(
    setup: &Setup,
    row: &Row,
) -> Result<impl Operation, BoxError> {
    let (burst, refill) = if row.allow_all { (BURST, REFILL) } else { (1, DAY) };
    let requests = (row.allow_all && row.keys == 1).then(Arc::default);
    layered(setup.server.url(), burst, refill, row.allow_all, requests).await
}

/// The same with another quota.
pub(crate) async fn tower_rate_limit_redis_with(
    url: String,
    Bucket { per_second, burst }: Bucket,
) -> Result<impl Operation, BoxError> {
    layered(url, u16::try_from(burst)?, Duration::from_secs(1) / per_second, true, None).await
}

async fn layered(
    url: String,
    burst: u16,
    refill: Duration,
    allow_all: bool,
    requests: Option<Arc<AtomicU64>>,
) -> Result<impl Operation, BoxError> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let connection = redis_0_32::Client::open(url)?
        .get_multiplexed_async_connection_with_config(
            &AsyncConnectionConfig::new().set_tcp_settings(tcp),
        )
        .await?;
    let layer = RateLimitLayer::builder()
        .conn(connection)
        .key_resolver(ByAddress { allow_all, requests })
        .capacity(burst)
        .emission_interval(refill)
        .build();
    Ok(ServiceCall(layer.layer(OkService)))
}

#[derive(Clone)]
struct ByAddress {
    allow_all: bool,
    /// The number of requests, if the key needs a suffix.
    requests: Option<Arc<AtomicU64>>,
}

impl KeyResolver for ByAddress {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>() else {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            return Err(response);
        };
        let key = tower_rate_limit_redis_key(peer.ip(), self.allow_all);
        Ok(match &self.requests {
            Some(requests) => {
                let suffix = requests.fetch_add(1, Ordering::Relaxed) / REQUESTS_PER_SUFFIX;
                format!("{key}:{suffix}")
            }
            None => key,
        })
    }
}

pub(crate) fn tower_rate_limit_redis_key(address: IpAddr, allow_all: bool) -> String {
    format!("peer:{address}:{}", if allow_all { "pass" } else { "deny" })
}
