//! The admission of one request: first the decision, then the service that was ready.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::RateLimitLayer;
use super::protocol::{Checking, Protocol};
use super::settlement::{Settlement, SettlementOptions};
use crate::charge::Patience;
use crate::limiter::{CheckState, HeldRevision, PendingCheck, Revision, RevisionRef, Wait, Waiter};
use crate::{Costs, Decision, Error, Key, KeyResolver, Limiter, Resolution, cooperation};

pin_project! {
    #[project = AdmissionProj]
    pub(super) enum Admission<S, Req, L>
    where
        S: Service<Req>,
        L: Protocol<Req>,
    {
        Checking {
            check: PendingCheck,
            key: Key,
            waiter: Option<Box<Waiter>>,
            chosen: Option<Limiter>,
            request: Option<(L::Head, L::Body)>,
            settlement: Option<Settlement>,
            service: S,
            layer: Arc<L>,
        },
        Waiting {
            delayed: Box<Delayed>,
            request: Option<(L::Head, L::Body)>,
            settlement: Option<Settlement>,
            service: S,
            layer: Arc<L>,
        },
        Calling { #[pin] future: S::Future, context: Option<L::Context> },
        Responded { #[pin] drained: Option<L::Drained>, response: Option<L::LayerResponse> },
    }
}

/// An allowed request that has to wait.
pub(super) struct Delayed {
    decision: Option<Decision>,
    wait: Wait,
}

/// A check whose limit lets requests wait.
enum CheckInQueue {
    /// The check has taken over a place in the queue that another one has given up.
    TakenOver(Decision, Box<Wait>),
    /// The check may wait, if there is a waiter.
    Started(Option<Box<Waiter>>, CheckState),
}

impl CheckInQueue {
    fn new(limiter: &Limiter, revision: &RevisionRef<'_>, key: &Key, costs: &Costs) -> Self {
        if let Some(decision) = CheckState::blocked(limiter, revision, key) {
            return Self::Started(None, CheckState::Ready(Ok(decision)));
        }
        let patience = Patience(0);
        let waiter = Waiter::new(limiter, key, costs, patience);
        let waiter = match waiter.map(|waiter| Wait::take_over(waiter, || revision.hold())) {
            Some(Ok((decision, wait))) => return Self::TakenOver(decision, Box::new(wait)),
            Some(Err(waiter)) => Some(Box::new(waiter)),
            None => None,
        };
        let may_wait = waiter.is_some();
        let state = CheckState::enqueue(limiter, revision, key, costs, patience, may_wait);
        Self::Started(waiter, state)
    }
}

/// The service's result, with the context if the request was checked.
type Served<S, Req, L> = (
    Result<<S as Service<Req>>::Response, <S as Service<Req>>::Error>,
    Option<<L as Protocol<Req>>::Context>,
);

impl<S, Req, K, R, M> Admission<S, Req, RateLimitLayer<K, R, M>>
where
    S: Service<Req> + Clone,
    RateLimitLayer<K, R, M>: Protocol<Req, Head = R>,
    K: KeyResolver<R>,
{
    /// `service` is ready.
    #[inline(never)]
    pub(super) fn new(layer: &Arc<RateLimitLayer<K, R, M>>, request: Req, service: &mut S) -> Self {
        // Built in place, because the head is large to move.
        let mut parts = None;
        let (head, _) = parts.insert(RateLimitLayer::into_parts(request));
        let resolution = layer.resolver.resolve(head);
        let key = match &resolution {
            Resolution::Key(key) => key,
            Resolution::Skip => return Self::call(&mut parts, None, service),
            Resolution::Missing(rejection) => {
                let response = layer.reject(head, rejection, true);
                return Self::respond(layer, response, &mut parts, service);
            }
            Resolution::Reject(rejection) => {
                let response = layer.reject(head, rejection, false);
                return Self::respond(layer, response, &mut parts, service);
            }
        };
        let mut costs = layer.cost.as_ref().map_or(Costs::new(1), |cost| cost(head));
        let chosen = layer.limiter_of(head, key);
        let limiter = chosen.as_ref().unwrap_or(&layer.limiter);
        let revision = limiter.revision();
        let mut settlement = layer.settling().map(|settling| {
            Settlement::new(limiter, revision.hold(), key, costs.clone(), settling)
        });
        if settlement.as_ref().is_some_and(Settlement::is_by_response) {
            costs = costs.charged_later();
        }
        let (waiter, state) = match revision.has_queue() {
            false if revision.has_holds() => {
                let mut new = || {
                    let settling = SettlementOptions::default();
                    Settlement::new(limiter, revision.hold(), key, costs.clone(), &settling)
                };
                let charge = settlement.get_or_insert_with(&mut new).hold(&costs);
                (None, CheckState::start_hold(limiter, &revision, key, charge))
            }
            false => (None, CheckState::start(limiter, &revision, key, &costs)),
            true => match CheckInQueue::new(limiter, &revision, key, &costs) {
                CheckInQueue::Started(waiter, state) => (waiter, state),
                CheckInQueue::TakenOver(decision, wait) => {
                    let (decision, then) = (Ok(decision), (Some(wait), settlement));
                    return Self::decide(
                        layer, &revision, key, decision, then, &mut parts, service,
                    );
                }
            },
        };
        match state {
            CheckState::Ready(mut decision) => {
                let wait = wait(&mut decision, waiter, || revision.hold());
                let then = (wait, settlement);
                Self::decide(layer, &revision, key, decision, then, &mut parts, service)
            }
            CheckState::Pending(check) => {
                // The clone stays behind and has to become ready itself.
                let clone = service.clone();
                let service = mem::replace(service, clone);
                let layer = layer.clone();
                let (key, request) = (key.clone(), parts);
                Self::Checking { check, key, waiter, chosen, request, settlement, service, layer }
            }
        }
    }
}

impl<S: Service<Req> + Clone, Req, L: Protocol<Req>> Admission<S, Req, L> {
    /// Calls the service, or responds to the request.
    #[inline]
    fn decide(
        layer: &Arc<L>,
        revision: &Revision,
        key: &Key,
        decision: Result<Decision, Error>,
        (wait, mut settlement): (Option<Box<Wait>>, Option<Settlement>),
        request: &mut Option<(L::Head, L::Body)>,
        service: &mut S,
    ) -> Self {
        let Some((head, _)) = request else { return Self::nothing() };
        let checking = Checking { head, key, revision };
        match decision {
            Ok(decision) => {
                // Before the application is told, which may panic: what a hold has taken must be given back.
                if let Some(settlement) = &mut settlement
                    && wait.is_none()
                    && decision.is_allowed()
                {
                    settlement.allowed(&decision);
                }
                layer.observe(&checking, &decision);
                if let Some(wait) = wait {
                    let service = give_up(service);
                    let delayed = Box::new(Delayed { decision: Some(decision), wait: *wait });
                    let (request, layer) = (request.take(), layer.clone());
                    Self::Waiting { delayed, request, settlement, service, layer }
                } else if decision.is_allowed() {
                    let context = layer.allow(revision, decision, head, settlement);
                    Self::call(request, Some(context), service)
                } else {
                    let response = layer.deny(&checking, decision);
                    Self::respond(layer, response, request, service)
                }
            }
            Err(error) => {
                let response = layer.fail(&checking, &error);
                Self::respond(layer, response, request, service)
            }
        }
    }

    /// Calls the service for a delayed request, once that may proceed and the service is ready again.
    fn proceed(
        delayed: &mut Delayed,
        request: &mut Option<(L::Head, L::Body)>,
        settlement: &mut Option<Settlement>,
        service: &mut S,
        layer: &L,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self, S::Error>> {
        let Delayed { decision, wait } = delayed;
        ready!(wait.poll(cx));
        if let (Some(settlement), Some(decision)) = (settlement.as_mut(), &decision)
            && let Some(permits) = wait.take_permits()
        {
            settlement.allowed(decision);
            settlement.wait_ended(permits);
        }
        ready!(service.poll_ready(cx))?;
        let (Some((mut head, body)), Some(decision)) = (request.take(), decision.take()) else {
            return Poll::Pending;
        };
        let context = layer.allow(wait.revision(), decision, &mut head, settlement.take());
        let future = service.call(L::from_parts(head, body));
        Poll::Ready(Ok(Self::Calling { future, context: Some(context) }))
    }

    #[inline]
    fn call(
        request: &mut Option<(L::Head, L::Body)>,
        context: Option<L::Context>,
        service: &mut S,
    ) -> Self {
        match request.take() {
            Some((head, body)) => {
                Self::Calling { future: service.call(L::from_parts(head, body)), context }
            }
            None => Self::nothing(),
        }
    }

    /// The service is not called. It is given up first, because to read the rest of the request may take
    /// a while.
    #[inline]
    fn respond(
        layer: &L,
        response: L::LayerResponse,
        request: &mut Option<(L::Head, L::Body)>,
        service: &mut S,
    ) -> Self {
        give_up(service);
        Self::Responded { drained: layer.drain(request), response: Some(response) }
    }

    /// There is no request any more.
    fn nothing() -> Self {
        Self::Responded { drained: None, response: None }
    }

    /// The service's result, or the layer's response to a request that does not reach the service.
    #[inline]
    pub(super) fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Served<S, Req, L>, L::LayerResponse>> {
        loop {
            let next = match self.as_mut().project() {
                AdmissionProj::Checking {
                    check,
                    key,
                    waiter,
                    chosen,
                    request,
                    settlement,
                    service,
                    layer,
                } => {
                    let limiter = chosen.as_ref().unwrap_or_else(|| layer.limiter());
                    let mut decision = ready!(check.poll(limiter, key, cx));
                    let wait = wait(&mut decision, waiter.take(), || check.hold());
                    let revision = check.revision(limiter);
                    let then = (wait, settlement.take());
                    Self::decide(layer, revision, key, decision, then, request, service)
                }
                AdmissionProj::Waiting { delayed, request, settlement, service, layer } => {
                    match ready!(Self::proceed(delayed, request, settlement, service, layer, cx)) {
                        Ok(calling) => calling,
                        Err(error) => return Poll::Ready(Ok((Err(error), None))),
                    }
                }
                AdmissionProj::Calling { future, context } => {
                    let result = ready!(future.poll(cx));
                    return Poll::Ready(Ok((result, context.take())));
                }
                AdmissionProj::Responded { mut drained, response } => {
                    // Unlike a service, this waits for nothing but the rest of the request.
                    ready!(cooperation::poll_proceed(cx));
                    if let Some(draining) = drained.as_mut().as_pin_mut() {
                        ready!(draining.poll(cx));
                        drained.set(None);
                    }
                    cooperation::completed();
                    return match response.take() {
                        Some(response) => Poll::Ready(Err(response)),
                        None => Poll::Pending,
                    };
                }
            };
            self.set(next);
        }
    }
}

/// Returns the wait of a check that has to wait. It is boxed, because nearly none has to.
#[inline]
fn wait(
    decision: &mut Result<Decision, Error>,
    waiter: Option<Box<Waiter>>,
    revision: impl FnOnce() -> HeldRevision,
) -> Option<Box<Wait>> {
    Wait::new(decision.as_mut().ok()?, *waiter?, revision).map(Box::new)
}

/// A ready service may hold resources, such as a slot of a concurrency limit, until it is called or
/// dropped. Instead of one that is not called, two clones are left, which have to become ready
/// themselves.
fn give_up<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    *service = clone.clone();
    clone
}
