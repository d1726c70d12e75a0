//! The way of one request past the limiter: the verdict first, then the service that was ready.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::RateLimitLayer;
use super::fields::Fields;
use crate::{Check, Decision, Error, KeyResolver, Refusal, Resolution};

pin_project! {
    #[project = GateProj]
    pub(super) enum Gate<S, Req>
    where
        S: Service<Req>,
    {
        Checking { check: Check, request: Option<Req>, service: S, fields: Option<Arc<Fields>>, tell: Tell<Req> },
        Calling { #[pin] future: S::Future, passed: Option<Passed> },
        Rejected { rejection: Option<Rejection<Req>> },
    }
}

/// The service's answer to a request, and whether the request was counted.
type Answer<S, Req> =
    (Result<<S as Service<Req>>::Response, <S as Service<Req>>::Error>, Option<Passed>);

/// A request that was counted and may pass.
pub(super) struct Passed {
    pub(super) decision: Decision,
    pub(super) fields: Arc<Fields>,
}

/// A request that may not pass.
pub(super) enum Rejection<Req> {
    Denied { decision: Decision, request: Req, fields: Arc<Fields> },
    Refused(Refusal),
    Unavailable(Error),
}

/// Puts the decision where the service can find it.
pub(super) type Tell<Req> = fn(&mut Req, Decision);

/// What the limiter says of a request at once.
pub(super) enum Entry {
    Check(Check, Arc<Fields>),
    Exempt,
    Refused(Refusal),
}

impl<K: KeyResolver<R>, R, M> RateLimitLayer<K, R, M> {
    pub(super) fn enter(&self, request: &R) -> Entry {
        let key = match self.resolver.resolve(request) {
            Resolution::Key(key) => key,
            Resolution::Exempt => return Entry::Exempt,
            Resolution::Missing(refusal) | Resolution::Refused(refusal) => {
                return Entry::Refused(refusal);
            }
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        match self.plan.as_ref().and_then(|plan| plan(request)) {
            None => Entry::Check(self.limiter.check_cost(key, cost), self.fields.clone()),
            Some(limiter) => {
                Entry::Check(limiter.check_cost(key, cost), Arc::new(Fields::new(&limiter)))
            }
        }
    }
}

impl<S: Service<Req> + Clone, Req> Gate<S, Req> {
    /// `service` has said that it is ready.
    pub(super) fn new(entry: Entry, mut request: Req, tell: Tell<Req>, service: &mut S) -> Self {
        match entry {
            Entry::Check(check, fields) => match check.now() {
                Some(&decision) if decision.is_allowed() => {
                    tell(&mut request, decision);
                    Self::Calling {
                        future: service.call(request),
                        passed: Some(Passed { decision, fields }),
                    }
                }
                Some(&decision) => {
                    Self::reject(Rejection::Denied { decision, request, fields }, service)
                }
                None => {
                    // The clone has not said that it is ready; it stays behind to say so.
                    let clone = service.clone();
                    let service = std::mem::replace(service, clone);
                    Self::Checking {
                        check,
                        request: Some(request),
                        service,
                        fields: Some(fields),
                        tell,
                    }
                }
            },
            Entry::Exempt => Self::Calling { future: service.call(request), passed: None },
            Entry::Refused(refusal) => Self::reject(Rejection::Refused(refusal), service),
        }
    }

    /// A service may hold what it was ready with, such as a place in a concurrency limit, until it
    /// is called or dropped: since it is not called, it is dropped.
    fn reject(rejection: Rejection<Req>, service: &mut S) -> Self {
        *service = service.clone();
        Self::Rejected { rejection: Some(rejection) }
    }

    /// The service's answer, or why the request may not pass.
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Answer<S, Req>, Rejection<Req>>> {
        loop {
            let next = match self.as_mut().project() {
                GateProj::Checking { check, request, service, fields, tell } => {
                    let answer = ready!(Pin::new(check).poll(cx));
                    let (Some(mut request), Some(fields)) = (request.take(), fields.take()) else {
                        return Poll::Pending;
                    };
                    match answer {
                        Ok(decision) if decision.is_allowed() => {
                            tell(&mut request, decision);
                            let passed = Some(Passed { decision, fields });
                            Self::Calling { future: service.call(request), passed }
                        }
                        Ok(decision) => {
                            return Poll::Ready(Err(Rejection::Denied {
                                decision,
                                request,
                                fields,
                            }));
                        }
                        Err(error) => return Poll::Ready(Err(Rejection::Unavailable(error))),
                    }
                }
                GateProj::Calling { future, passed } => {
                    let answer = ready!(future.poll(cx));
                    return Poll::Ready(Ok((answer, passed.take())));
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
