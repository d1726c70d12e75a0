//! Checks over gRPC.
//!
//! `services` tells checks from requests to the other services (`health`, `reflection`). `method` reads a check
//! (`codec`) and sends its response, and `wire` counts its parts before it is decoded. `plan` finds what
//! applies to each descriptor of a request, `ratelimit` decides each, and `overall` decides the request.
//! `status`, `headers` and `metadata` are parts of the response.

mod codec;
mod headers;
mod health;
mod metadata;
mod method;
mod overall;
mod plan;
mod ratelimit;
mod reflection;
mod services;
mod status;
mod wire;

use std::sync::Arc;

use tonic::service::Routes;

use self::method::ShouldRateLimit;
use self::ratelimit::RateLimitService;
use crate::live::Live;
use crate::settings::ResourceLimits;

pub(crate) use health::Health;
pub(crate) use services::Services;

/// A request to the other services contains a name.
const OTHER_MESSAGE_BYTES: usize = 4 * 1_024;

/// Builds the rate limit, health and reflection services.
pub(crate) async fn services(
    live: Arc<Live>,
    limits: &ResourceLimits,
) -> Result<(Services, Health), tonic_reflection::server::Error> {
    let check = ShouldRateLimit::new(RateLimitService::new(live.clone()), limits.request_bytes);
    // Each service has a limit of its own, of 4 MiB by default, and reserves the memory for a message when it starts.
    let most = limits.request_bytes.min(OTHER_MESSAGE_BYTES);
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let health_service = health_service.max_decoding_message_size(most);
    let reflection = reflection::builder().build_v1()?.max_decoding_message_size(most);
    // Many tools still use the version before.
    let reflection_alpha = reflection::builder().build_v1alpha()?.max_decoding_message_size(most);
    let others = Routes::new(health_service).add_service(reflection).add_service(reflection_alpha);
    let services = Services { live, check, others: others.into_axum_router() };
    Ok((services, Health::new(reporter).await))
}
