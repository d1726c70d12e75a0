//! tower-rate-limit-redis 1.0.2: a GCRA script for each check, on a shared connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use peer_redis::AsyncConnectionConfig;
use peer_redis::io::tcp::TcpSettings;
use tower::Layer;
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use super::{Fault, Hello, Subject, Through};
use crate::rows::Row;
use crate::stage::Stage;

/// As much as it takes.
const BURST: u16 = u16::MAX;

/// Where all ask for one key, that burst is soon used up, and a denial costs it less. So the key
/// gets another number before that.
const ASKED_OF_A_NUMBER: u64 = 50_000;

pub(crate) async fn tower_rate_limit_redis(
    stage: &Stage,
    row: &Row,
) -> Result<impl Subject, Fault> {
    let tcp = TcpSettings::default().set_nodelay(true);
    let connection = peer_redis::Client::open(stage.server.url())?
        .get_multiplexed_async_connection_with_config(
            &AsyncConnectionConfig::new().set_tcp_settings(tcp),
        )
        .await?;
    let (burst, seconds) = if row.is_open { (BURST, 60) } else { (1, 86_400) };
    let asked = (row.is_open && row.keys == 1).then(Arc::default);
    let layer = RateLimitLayer::builder()
        .conn(connection)
        .key_resolver(ByAddress { is_open: row.is_open, asked })
        .capacity(burst)
        .emission_interval(Duration::from_secs(seconds))
        .build();
    Ok(Through(layer.layer(Hello)))
}

#[derive(Clone)]
struct ByAddress {
    is_open: bool,
    asked: Option<Arc<AtomicU64>>,
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
        let key = peer_key(peer.ip(), self.is_open);
        Ok(match &self.asked {
            Some(asked) => {
                let number = asked.fetch_add(1, Ordering::Relaxed) / ASKED_OF_A_NUMBER;
                format!("{key}:{number}")
            }
            None => key,
        })
    }
}

pub(crate) fn peer_key(caller: IpAddr, is_open: bool) -> String {
    format!("peer:{caller}:{}", if is_open { "open" } else { "shut" })
}
