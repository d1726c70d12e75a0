//! Responses to requests that do not reach the service.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response};

use super::precomputed::Precomputed;
use super::{grpc, grpc_route, problem};
use crate::limiter::Revision;
use crate::{Decision, Error, Key, Policy, Rejection};

/// A request that does not reach the service: see
/// [`RateLimitLayer::error_response`](crate::RateLimitLayer::error_response).
pub struct ErrorContext<'a> {
    pub(super) request: &'a Parts,
    /// True if the layer sends gRPC responses wherever gRPC is requested.
    pub(super) any_route_is_grpc: bool,
    pub(super) key: Option<&'a Key>,
    pub(super) cause: Cause<'a>,
    pub(super) revision: &'a Revision,
}

/// The reason why a request does not reach the service.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Cause<'a> {
    /// The check was denied.
    Denied(&'a Decision),
    /// The resolver found no key.
    MissingKey(&'a Rejection),
    /// The resolver rejected the request.
    Rejected(&'a Rejection),
    /// The store failed, and the failure mode is [`Closed`](crate::FailureMode::Closed). Or the costs
    /// name a quota that the policy does not have, in any failure mode. The text of the error is for
    /// operators, not for clients.
    Unavailable(&'a Error),
}

impl<'a> ErrorContext<'a> {
    /// Returns the reason why the request does not reach the service.
    pub fn cause(&self) -> Cause<'a> {
        self.cause
    }

    /// The request, without its body.
    pub fn request(&self) -> &'a Parts {
        self.request
    }

    /// The key of the request, if the resolver found one.
    pub fn key(&self) -> Option<&'a Key> {
        self.key
    }

    /// The policy of the limiter that checked the request, or of the layer if none did.
    pub fn policy(&self) -> &'a Policy {
        self.revision.policy()
    }

    /// The decision, if the request was denied.
    pub fn decision(&self) -> Option<&'a Decision> {
        match self.cause {
            Cause::Denied(decision) => Some(decision),
            _ => None,
        }
    }

    /// The response that the layer would send without a hook: problem details, or a gRPC status where
    /// the layer [sends gRPC responses](crate::RateLimitLayer::grpc).
    pub fn default_response(&self) -> Response<String> {
        // Both are made of strings.
        self.response().map(|body| String::from_utf8(body.into()).unwrap_or_default())
    }

    /// True if the response is a gRPC one.
    pub(super) fn is_grpc(&self) -> bool {
        self.grpc_content_type().is_some()
    }

    fn grpc_content_type(&self) -> Option<HeaderValue> {
        let content_type = grpc::content_type(self.request)?;
        let is_grpc = self.any_route_is_grpc || grpc_route::is_served_by_tonic(self.request);
        is_grpc.then_some(content_type)
    }

    pub(super) fn response(&self) -> Response<Bytes> {
        match self.grpc_content_type() {
            Some(content_type) => match self.cause {
                Cause::Denied(decision) => grpc::denied(decision, content_type),
                Cause::MissingKey(rejection) | Cause::Rejected(rejection) => {
                    grpc::rejected(rejection, content_type)
                }
                Cause::Unavailable(_) => grpc::unavailable(content_type),
            },
            None => match self.cause {
                Cause::Denied(decision) => {
                    problem::denied(Precomputed::of(self.revision).denied_body(decision))
                }
                Cause::MissingKey(rejection) | Cause::Rejected(rejection) => {
                    problem::rejected(rejection)
                }
                Cause::Unavailable(_) => problem::unavailable(),
            },
        }
    }
}

/// Leaves out the request, whose headers may be secret.
impl fmt::Debug for ErrorContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorContext")
            .field("key", &self.key)
            .field("policy", &self.policy().name())
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}
