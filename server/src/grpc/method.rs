//! The rate limit service's only method. Not tonic's generated server, because that has a codec of its own.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::server::Grpc;
use tonic::{Code, Status};
use tower::service_fn;

use super::codec::RateLimitCodec;
use super::ratelimit::RateLimitService;
use crate::telemetry;

#[derive(Clone)]
pub(super) struct ShouldRateLimit {
    service: Arc<RateLimitService>,
    /// Of a request.
    most_bytes: usize,
}

/// How a request ends. Gateways often let requests pass whose checks fail, so operators have to see that, also
/// if the gateway does not wait for the answer.
struct CountedCode(Code);

impl Drop for CountedCode {
    fn drop(&mut self) {
        if self.0 != Code::Ok {
            telemetry::grpc_error(self.0);
        }
    }
}

impl ShouldRateLimit {
    pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

    pub(super) fn new(service: RateLimitService, most_bytes: usize) -> Self {
        Self { service: Arc::new(service), most_bytes }
    }

    pub(super) async fn call(self, request: Request) -> Response {
        let method = service_fn(|request: tonic::Request<RateLimitRequest>| async {
            let response = self.service.should_rate_limit(request.into_inner()).await;
            response.map(tonic::Response::new)
        });
        let grpc = Grpc::new(RateLimitCodec);
        let mut grpc = grpc.apply_max_message_size_config(Some(self.most_bytes), None);
        let mut code = CountedCode(Code::Cancelled);
        let response = grpc.unary(method, request).await;
        let status = Status::from_header_map(response.headers());
        code.0 = status.map_or(Code::Ok, |status| status.code());
        response.map(Body::new)
    }
}
