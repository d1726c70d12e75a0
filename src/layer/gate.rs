//! The way of one request past the limiter: the verdict first, then the service that was ready.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::RateLimitLayer;
use super::edge::Edge;
use crate::limiter::{Asked, Waiting};
use crate::{Decision, Error, KeyResolver, Limiter, Resolution};

pin_project! {
    #[project = GateProj]
    pub(super) enum Gate<S, Req, L>
    where
        S: Service<Req>,
        L: Edge<Req>,
    {
        Checking {
            waiting: Waiting,
            planned: Option<Limiter>,
            request: Option<(L::Seen, L::Rest)>,
            service: S,
            layer: Arc<L>,
        },
        Calling { #[pin] future: S::Future, ticket: Option<L::Ticket> },
        Rejected { rejection: Option<L::Rejection> },
    }
}

/// The service's answer, with the ticket if the request was counted.
type Answer<S, Req, L> = (
    Result<<S as Service<Req>>::Response, <S as Service<Req>>::Error>,
    Option<<L as Edge<Req>>::Ticket>,
);

impl<S, Req, K, R, M> Gate<S, Req, RateLimitLayer<K, R, M>>
where
    S: Service<Req> + Clone,
    RateLimitLayer<K, R, M>: Edge<Req, Seen = R>,
    K: KeyResolver<R>,
{
    /// `service` has said that it is ready.
    #[inline(never)]
    pub(super) fn new(layer: &Arc<RateLimitLayer<K, R, M>>, request: Req, service: &mut S) -> Self {
        let (seen, rest) = RateLimitLayer::apart(request);
        let resolution = layer.resolver.resolve(&seen);
        let key = match &resolution {
            Resolution::Key(key) => key,
            Resolution::Exempt => {
                let future = service.call(RateLimitLayer::whole(seen, rest));
                return Self::Calling { future, ticket: None };
            }
            Resolution::Missing(refusal) | Resolution::Refused(refusal) => {
                return Self::reject(layer.refuse(refusal), service);
            }
        };
        let cost = layer.cost.as_ref().map_or(1, |cost| cost(&seen));
        let planned = layer.plan.as_ref().and_then(|plan| plan(&seen));
        let limiter = planned.as_ref().unwrap_or(&layer.limiter);
        match limiter.ask(key, cost) {
            Asked::Answered(ref answer) => Self::open(layer, limiter, answer, seen, rest, service),
            Asked::Waiting(waiting) => {
                // The clone has not said that it is ready; it stays behind to say so.
                let clone = service.clone();
                let service = mem::replace(service, clone);
                let layer = layer.clone();
                Self::Checking { waiting, planned, request: Some((seen, rest)), service, layer }
            }
        }
    }
}

impl<S: Service<Req> + Clone, Req, L: Edge<Req>> Gate<S, Req, L> {
    /// Lets a request pass or not, as the limiter has answered.
    #[inline]
    fn open(
        layer: &L,
        limiter: &Limiter,
        answer: &Result<Decision, Error>,
        mut seen: L::Seen,
        rest: L::Rest,
        service: &mut S,
    ) -> Self {
        match answer {
            Ok(decision) if decision.is_allowed() => {
                let ticket = Some(layer.admit(decision, limiter, &mut seen));
                Self::Calling { future: service.call(L::whole(seen, rest)), ticket }
            }
            Ok(decision) => Self::reject(layer.deny(decision, limiter, &seen), service),
            Err(error) => Self::reject(layer.fail(error), service),
        }
    }

    /// A service may hold what it was ready with, such as a place in a concurrency limit, until it
    /// is called or dropped: since it is not called, it is dropped.
    fn reject(rejection: L::Rejection, service: &mut S) -> Self {
        *service = service.clone();
        Self::Rejected { rejection: Some(rejection) }
    }

    /// The service's answer, or that of the layer to a request that may not pass.
    #[inline]
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Answer<S, Req, L>, L::Rejection>> {
        loop {
            let next = match self.as_mut().project() {
                GateProj::Checking { waiting, planned, request, service, layer } => {
                    let limiter = planned.as_ref().unwrap_or_else(|| layer.limiter());
                    let answer = ready!(waiting.poll(limiter, cx));
                    let Some((seen, rest)) = request.take() else { return Poll::Pending };
                    Self::open(layer, limiter, &answer, seen, rest, service)
                }
                GateProj::Calling { future, ticket } => {
                    let answer = ready!(future.poll(cx));
                    return Poll::Ready(Ok((answer, ticket.take())));
                }
                GateProj::Rejected { rejection } => {
                    return match rejection.take() {
                        Some(rejection) => Poll::Ready(Err(rejection)),
                        None => Poll::Pending,
                    };
                }
            };
            self.set(next);
        }
    }
}
