//! The differences between protocols: how a request is taken apart, and how the layer responds.
//! (`error_response` chooses the response, and `problem` and `grpc` write it.)
//!
//! HTTP and other services are two modes of one layer. Without the mode parameter the two `Service`
//! implementations would overlap. Over HTTP, resolvers see the head of a request, so closures do not name a
//! body type.

use std::future::{Future, Ready};
use std::mem;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{Request, Response};

use super::body::ErrorBody;
use super::headers::{self, RateLimitHeaders};
use super::no_store;
use super::precomputed::Precomputed;
use super::settlement::{self, Settlement, SettlementOptions};
use super::{
    Cause, DrainBody, ErrorContext, Errors, HeaderStyle, Http, RateLimitLayer, grpc, placement,
};
use crate::limiter::Revision;
use crate::{Decision, Error, ErrorKind, Key, Limiter, Rejection};

pub(super) trait Protocol<Req> {
    /// The part of a request that resolvers and hooks see.
    type Head;
    type Body;
    /// The data that is kept of an allowed request until the service has responded.
    type Context;
    /// The response to a request that does not reach the service.
    type LayerResponse;
    /// Ends when the layer may respond to a request that it has not read completely.
    type Drained: Future<Output = ()>;

    fn into_parts(request: Req) -> (Self::Head, Self::Body);
    fn from_parts(head: Self::Head, body: Self::Body) -> Req;

    /// The limiter of requests for which no other is chosen.
    fn limiter(&self) -> &Limiter;
    /// The settings by which the cost of a request is settled after the response. `None` if there are none.
    fn settling(&self) -> Option<&SettlementOptions> {
        None
    }

    fn observe(&self, checking: &Checking<'_, Self::Head>, decision: &Decision);
    fn allow(
        &self,
        revision: &Revision,
        decision: Decision,
        head: &mut Self::Head,
        settlement: Option<Settlement>,
    ) -> Self::Context;
    fn deny(&self, checking: &Checking<'_, Self::Head>, decision: Decision) -> Self::LayerResponse;
    fn reject(
        &self,
        head: &Self::Head,
        rejection: &Rejection,
        is_missing: bool,
    ) -> Self::LayerResponse;
    /// The store failed, and the failure mode is closed.
    fn fail(&self, checking: &Checking<'_, Self::Head>, error: &Error) -> Self::LayerResponse;
    /// `None` if the layer may respond at once. Otherwise the request is taken.
    fn drain(&self, request: &mut Option<(Self::Head, Self::Body)>) -> Option<Self::Drained>;
}

/// A request, and what it was checked for.
pub(super) struct Checking<'a, H> {
    pub(super) head: &'a H,
    pub(super) key: &'a Key,
    pub(super) revision: &'a Revision,
}

/// The data that HTTP keeps of an allowed request.
pub(super) struct ResponseContext {
    pub(super) headers: RateLimitHeaders,
    pub(super) decision: Option<Box<Decision>>,
    pub(super) settlement: Option<Settlement>,
}

impl<K, B, D: DrainBody<B>> Protocol<Request<B>> for RateLimitLayer<K, Parts, Http<D>> {
    type Head = Parts;
    type Body = B;
    type Context = ResponseContext;
    type LayerResponse = Response<ErrorBody>;
    type Drained = D::Drained;

    #[inline]
    fn into_parts(request: Request<B>) -> (Parts, B) {
        request.into_parts()
    }

    #[inline]
    fn from_parts(parts: Parts, body: B) -> Request<B> {
        Request::from_parts(parts, body)
    }

    fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    #[inline]
    fn settling(&self) -> Option<&SettlementOptions> {
        let settling = &self.mode.settling;
        (settling.cost_by_response.is_some() || settling.refunds).then_some(settling)
    }

    #[inline]
    fn observe(&self, checking: &Checking<'_, Parts>, decision: &Decision) {
        self.observe_decision(checking, decision);
    }

    // Requests that have waited call it too, so the compiler would not inline it for those that have not.
    #[inline(always)]
    fn allow(
        &self,
        revision: &Revision,
        decision: Decision,
        parts: &mut Parts,
        mut settlement: Option<Settlement>,
    ) -> ResponseContext {
        let Http { headers, headers_if_not_enforced, decision_in, .. } = self.mode;
        let headers = match decision.is_enforced || headers_if_not_enforced {
            true => headers,
            false => HeaderStyle::None,
        };
        if let Some(settlement) = &mut settlement {
            settlement.insert_into(parts);
        }
        let headers = RateLimitHeaders::new(headers, &decision, &Precomputed::of(revision).fields);
        let kept = decision_in.in_response().then(|| Box::new(decision.clone()));
        if decision_in.in_request() {
            placement::insert(&mut parts.extensions, decision);
        }
        ResponseContext { headers, decision: kept, settlement }
    }

    fn deny(&self, checking: &Checking<'_, Parts>, mut decision: Decision) -> Response<ErrorBody> {
        let Http { headers: style, decision_in, retry_jitter, .. } = self.mode;
        retry_jitter.apply(&mut decision);
        let mut response = self.respond(&self.context_of(checking, Cause::Denied(&decision)));
        let custom_headers =
            self.mode.error_response.is_some().then(|| mem::take(response.headers_mut()));
        let headers = response.headers_mut();
        RateLimitHeaders::new(style, &decision, &Precomputed::of(checking.revision).fields)
            .append_to(headers);
        headers::insert_retry_after(&decision, headers);
        // Headers that a custom response sets replace those of the layer.
        if let Some(custom_headers) = custom_headers {
            headers.extend(custom_headers);
        }
        settlement::report_denial(&checking.head.extensions, response.extensions_mut());
        if decision_in.in_response() {
            placement::insert(response.extensions_mut(), decision);
        }
        response
    }

    fn reject(
        &self,
        parts: &Parts,
        rejection: &Rejection,
        is_missing: bool,
    ) -> Response<ErrorBody> {
        self.log_misconfiguration(rejection);
        let cause =
            if is_missing { Cause::MissingKey(rejection) } else { Cause::Rejected(rejection) };
        let revision = &self.limiter.revision();
        self.respond(&self.context(parts, None, cause, revision))
    }

    fn fail(&self, checking: &Checking<'_, Parts>, error: &Error) -> Response<ErrorBody> {
        let mut response = self.respond(&self.context_of(checking, Cause::Unavailable(error)));
        let headers = response.headers_mut();
        // A request that is wrong will not be right later.
        let is_wrong = matches!(error.kind(), ErrorKind::UnknownQuota | ErrorKind::NotHeld);
        let wait = (!is_wrong).then(|| self.mode.retry_jitter.unavailable());
        // Unless a custom response has one.
        if let Some(seconds) = wait {
            headers.entry(RETRY_AFTER).or_insert(seconds.into());
        }
        grpc::push_back(headers, wait);
        response
    }

    #[inline]
    fn drain(&self, request: &mut Option<(Parts, B)>) -> Option<D::Drained> {
        self.mode.drain.drain_body(request)
    }
}

impl<K, D> RateLimitLayer<K, Parts, Http<D>> {
    fn context_of<'a>(
        &self,
        checking: &'a Checking<'_, Parts>,
        cause: Cause<'a>,
    ) -> ErrorContext<'a> {
        self.context(checking.head, Some(checking.key), cause, checking.revision)
    }

    fn context<'a>(
        &self,
        request: &'a Parts,
        key: Option<&'a Key>,
        cause: Cause<'a>,
        revision: &'a Revision,
    ) -> ErrorContext<'a> {
        let any_route_is_grpc = self.mode.any_route_is_grpc;
        ErrorContext { request, any_route_is_grpc, key, cause, revision }
    }

    fn respond(&self, context: &ErrorContext<'_>) -> Response<ErrorBody> {
        match &self.mode.error_response {
            None => context.response().map(ErrorBody::Full),
            Some(hook) => {
                let mut response = hook(context);
                if !context.is_grpc() {
                    no_store::forbid(response.headers_mut());
                }
                response
            }
        }
    }
}

impl<K, R> Protocol<R> for RateLimitLayer<K, R, Errors> {
    type Head = R;
    type Body = ();
    type Context = Option<Settlement>;
    type LayerResponse = Error;
    type Drained = Ready<()>;

    fn into_parts(request: R) -> (R, ()) {
        (request, ())
    }

    fn from_parts(request: R, (): ()) -> R {
        request
    }

    fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    fn observe(&self, checking: &Checking<'_, R>, decision: &Decision) {
        self.observe_decision(checking, decision);
    }

    /// Permits that are held are given back when the service has responded.
    fn allow(
        &self,
        _: &Revision,
        _: Decision,
        _: &mut R,
        settlement: Option<Settlement>,
    ) -> Option<Settlement> {
        settlement
    }

    fn deny(&self, _: &Checking<'_, R>, decision: Decision) -> Error {
        Error::denied(decision)
    }

    fn reject(&self, _: &R, rejection: &Rejection, _: bool) -> Error {
        self.log_misconfiguration(rejection);
        let text = rejection.advice().unwrap_or(rejection.message());
        Error::new(ErrorKind::Rejected, text.to_owned())
    }

    fn fail(&self, _: &Checking<'_, R>, error: &Error) -> Error {
        error.clone()
    }

    fn drain(&self, _: &mut Option<(R, ())>) -> Option<Ready<()>> {
        None
    }
}

impl<K, R, M> RateLimitLayer<K, R, M> {
    #[inline]
    fn observe_decision(&self, checking: &Checking<'_, R>, decision: &Decision) {
        if let Some(observer) = &self.on_decision {
            let Checking { head, key, revision } = *checking;
            observer(&super::Checked { request: head, key, policy: revision.policy(), decision });
        }
    }
}
