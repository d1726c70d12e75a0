//! Checks over gRPC.

mod details;
mod headers;
mod ratelimit;
mod status;

use std::sync::Arc;

use axum::Router;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use self::ratelimit::RateLimitService;
use crate::live::Live;
use crate::settings::Limits;

type Service = RateLimitServiceServer<RateLimitService>;

/// The service, and the standard health service, which says that it serves.
pub(crate) async fn router(live: Arc<Live>, limits: &Limits) -> (Router, HealthReporter) {
    let service =
        Service::new(RateLimitService::new(live)).max_decoding_message_size(limits.request_bytes);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<Service>().await;
    (Routes::new(service).add_service(health_service).into_axum_router(), health)
}

/// Tells clients to go elsewhere.
pub(crate) async fn set_not_serving(health: &HealthReporter) {
    health.set_not_serving::<Service>().await;
    health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
}
