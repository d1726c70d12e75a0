//! Checks over gRPC.

mod details;
mod headers;
mod ratelimit;
mod reflection;
mod status;

use std::sync::Arc;

use axum::Router;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use self::ratelimit::RateLimitService;
use crate::live::Live;
use crate::settings::Limits;

type Service = RateLimitServiceServer<RateLimitService>;

/// Builds the router: rate limit, health and reflection services.
pub(crate) async fn router(
    live: Arc<Live>,
    limits: &Limits,
) -> Result<(Router, HealthReporter), tonic_reflection::server::Error> {
    let service =
        Service::new(RateLimitService::new(live)).max_decoding_message_size(limits.request_bytes);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<Service>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_file_descriptor_set(reflection::descriptors())
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let routes = Routes::new(service).add_service(health_service).add_service(reflection);
    Ok((routes.into_axum_router(), health))
}

/// Reports `NOT_SERVING` to health checks.
pub(crate) async fn set_not_serving(health: &HealthReporter) {
    health.set_not_serving::<Service>().await;
    health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
}

/// Ends the streams of `Watch`, which would otherwise last as long as their connections.
pub(crate) async fn end_watches(health: &mut HealthReporter) {
    for service in [<Service as NamedService>::NAME, ""] {
        health.clear_service_status(service).await;
    }
}
