//! The service's only method. Not tonic's generated server, because that has a codec of its own.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::sync::Arc;
use std::task::{Context, Poll};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use futures_util::future::BoxFuture;
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Request, Response, Status};
use tower::{Service, service_fn};

use super::codec::RateLimitCodec;
use super::ratelimit::RateLimitService;
use crate::telemetry;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone)]
pub(super) struct RateLimitServer {
    service: Arc<RateLimitService>,
    /// Of a request.
    most_bytes: usize,
}

impl RateLimitServer {
    pub(super) fn new(service: RateLimitService, most_bytes: usize) -> Self {
        Self { service: Arc::new(service), most_bytes }
    }
}

impl NamedService for RateLimitServer {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
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

impl<B> Service<http::Request<B>> for RateLimitServer
where
    B: HttpBody + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let Self { service, most_bytes } = self.clone();
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("").into_http());
            }
            let method = service_fn(|request: Request<RateLimitRequest>| async {
                service.should_rate_limit(request.into_inner()).await.map(Response::new)
            });
            let grpc = Grpc::new(RateLimitCodec);
            let mut grpc = grpc.apply_max_message_size_config(Some(most_bytes), None);
            let mut code = CountedCode(Code::Cancelled);
            let response = grpc.unary(method, request).await;
            let status = Status::from_header_map(response.headers());
            code.0 = status.map_or(Code::Ok, |status| status.code());
            Ok(response)
        })
    }
}
