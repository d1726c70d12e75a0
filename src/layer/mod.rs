//! Tower middleware that limits the requests to a service.
//!
//! # Example
//!
//! ```
//! use axum::{Router, routing::get};
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
//!
//! let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10).burst(20))?;
//! let app: Router = Router::new()
//!     .route("/", get(async || "hello"))
//!     .layer(RateLimitLayer::new(limiter, PeerIp::new()));
//! # Ok::<(), fleetlimit::ConfigError>(())
//! ```
//!
//! # Customization
//!
//! ```
//! use http::request::Parts;
//! use http::{Response, StatusCode};
//! use fleetlimit::layer::{Cause, ErrorContext, HeaderStyle};
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
//!
//! let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10).burst(20))?;
//! let layer = RateLimitLayer::new(limiter, PeerIp::new())
//!     .cost(|parts: &Parts| if parts.uri.path() == "/export" { 5 } else { 1 })
//!     .headers(HeaderStyle::XRateLimit)
//!     .error_response(|context: &ErrorContext<'_>| match context.cause() {
//!         Cause::Unavailable(_) => {
//!             let mut response = Response::new(String::from("try again later"));
//!             *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
//!             response
//!         }
//!         _ => context.default_response(),
//!     });
//! # Ok::<(), fleetlimit::ConfigError>(())
//! ```

// The files. `rate_limit_layer` is the public layer (`logged` is what it has logged already), and
// `http_options` has its options for HTTP and gRPC. `service` takes requests, `admission` decides each, and
// `future` is the response. `protocol` is what differs between HTTP and other services. `error_response`
// chooses how to respond to a request that does not reach the service: with a `problem` over HTTP, with a
// status over `grpc` (on a `grpc_route`), or as the application says; `drain` reads the rest of the request
// before that. `headers` writes the rate limit headers, and reads those of an outer layer, `retry_jitter`
// spreads the returns of clients out, and `no_store` forbids caches to store responses. `precomputed` holds
// the parts that are the same for every response, and `interned` the values without a reference count. `body`
// counts the bytes of a response, and `settlement` charges them. `placement` and `decision_response` give
// handlers access to decisions.

mod admission;
mod body;
mod decision_response;
mod drain;
mod error_response;
mod future;
mod grpc;
mod grpc_route;
mod headers;
mod http_options;
mod interned;
mod logged;
mod no_store;
mod placement;
mod precomputed;
mod problem;
mod protocol;
mod rate_limit_layer;
mod retry_jitter;
mod service;
mod settlement;

pub use body::ResponseBody;
pub use drain::{Drain, DrainBody, NoDrain};
pub use error_response::{Cause, ErrorContext};
pub use future::{ErrorFuture, ResponseFuture};
pub use headers::HeaderStyle;
pub use http_options::Http;
pub use placement::{DecisionPlacement, decisions, holds};
pub use rate_limit_layer::{Checked, Errors, RateLimitLayer};
pub use service::RateLimit;
pub use settlement::Sent;
