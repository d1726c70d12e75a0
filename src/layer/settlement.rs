//! The cost of a response, which replaces the estimate that the check has charged.
//!
//! A response is settled after it was sent, not before: only then are the bytes known that were sent, and a
//! client does not wait for a round trip that does not concern it. A check whose request is charged later
//! needs a permit of every quota, although its estimate may be 0. Otherwise a client in debt could go on. →
//! `tests/it/settlement.rs`

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::response::Parts;
use http::{Extensions, Method, StatusCode, request};
use tokio::time::Instant;

use super::placement;
use crate::charge::Charge;
use crate::limiter::{HeldRevision, Taken, TakenPermits};
use crate::log_throttle::LogThrottle;
use crate::{Costs, Decision, Hold, Key, Limiter, Source};

/// A response that has been sent: see
/// [`RateLimitLayer::cost_by_response`](crate::RateLimitLayer::cost_by_response).
#[derive(Debug)]
#[non_exhaustive]
pub struct Sent<'a> {
    /// The head of the response, as the service returned it.
    pub response: &'a Parts,
    /// The bytes of the body that were sent. Fewer than the body has if the client disconnected.
    pub body_bytes: u64,
}

pub(super) type CostByResponse = dyn Fn(&Sent<'_>) -> Costs + Send + Sync;

/// The settings by which a layer settles costs.
#[derive(Clone, Default)]
pub(super) struct SettlementOptions {
    pub(super) cost_by_response: Option<Arc<CostByResponse>>,
    pub(super) cost_without_response: Option<Costs>,
    /// True if requests are free that a layer inside denies.
    pub(super) refunds: bool,
}

/// The line about connections whose handlers do not keep their holds.
static NOT_KEPT: LogThrottle = LogThrottle::new(Duration::from_secs(600));

/// A mark in the extensions of a request: an outer layer wants to know whether it is denied.
#[derive(Clone, Debug)]
struct ReportDenial;

/// A mark in the extensions of a response: a layer has denied the request. It is not a flag that the
/// layers share, because another attempt may be allowed.
#[derive(Clone, Debug)]
struct DeniedInside;

/// The state of a request until the service responds. If it was allowed and there is no
/// response, the estimate stands, or the cost for that case replaces it.
pub(super) struct Settlement {
    charged: Option<Box<Charged>>,
    is_allowed: bool,
    /// True if the request is free if a layer inside denies it.
    refunds: bool,
}

/// The bytes and the charge of a response, until its body has been sent.
pub(super) struct Meter {
    charged: Box<Charged>,
    response: Parts,
    body_bytes: u64,
}

struct Charged {
    check: Taken,
    estimate: Costs,
    cost: Option<Arc<CostByResponse>>,
    without_response: Option<Costs>,
    hold: Option<RequestHold>,
    /// True if a response opens a tunnel, whatever its status.
    is_connect: bool,
}

/// The hold of a request, of a policy with a concurrent quota.
enum RequestHold {
    /// The permits that it takes if it is allowed.
    New(Charge),
    Held(Arc<Hold>),
}

/// Reports a denial to outer layers, which may give their permits back.
pub(super) fn report_denial(request: &Extensions, response: &mut Extensions) {
    if request.get::<ReportDenial>().is_some() {
        response.insert(DeniedInside);
    }
}

impl Settlement {
    pub(super) fn new(
        limiter: &Limiter,
        revision: HeldRevision,
        key: &Key,
        estimate: Costs,
        settling: &SettlementOptions,
    ) -> Self {
        let SettlementOptions { cost_by_response: cost, cost_without_response, refunds } =
            settling.clone();
        let without_response = cost_without_response.filter(|_| cost.is_some());
        let check = Taken::new(limiter, revision, key.clone(), Instant::now());
        let (hold, is_connect) = (None, false);
        let charged = Charged { check, estimate, cost, without_response, hold, is_connect };
        Self { charged: Some(Box::new(charged)), is_allowed: false, refunds }
    }

    /// Makes the check a hold. Returns what it takes, or a name that no quota has.
    pub(super) fn hold(&mut self, costs: &Costs) -> Result<Charge, Cow<'static, str>> {
        let Some(charged) = &mut self.charged else { return Ok(Charge::Same(0)) };
        let charge = charged.check.hold_charge(costs)?;
        charged.hold = Some(RequestHold::New(charge.clone()));
        Ok(charge)
    }

    /// Returns true if the response determines the cost.
    pub(super) fn is_by_response(&self) -> bool {
        self.charged.as_ref().is_some_and(|charged| charged.cost.is_some())
    }

    /// The request is allowed, and from now on charged.
    pub(super) fn allowed(&mut self, decision: &Decision) {
        self.is_allowed = true;
        if let Some(charged) = &mut self.charged
            && let Some(RequestHold::New(charge)) = &charged.hold
        {
            // If the limit is not enforced, it holds nothing, but a handler can use it.
            let hold = Hold::of_check(charged.check.again(), charge.clone(), decision);
            charged.hold = Some(RequestHold::Held(hold.into()));
            return;
        }
        if decision.would_be_denied() {
            // It is served only because the limit is not enforced for its key.
            self.charged = None;
        }
        if let Some(charged) = &mut self.charged {
            match decision.source() {
                // Nothing was charged.
                Source::FailureMode => charged.estimate = Costs::new(0),
                _ => charged.check.decided(decision),
            }
        }
    }

    /// The request has waited, and got these permits.
    pub(super) fn wait_ended(&mut self, permits: TakenPermits) {
        if let Some(charged) = &mut self.charged {
            charged.check.hold(permits);
        }
    }

    /// Asks inner layers to report a denial, and gives handlers access to the hold.
    pub(super) fn insert_into(&mut self, request: &mut request::Parts) {
        if self.refunds {
            request.extensions.insert(ReportDenial);
        }
        if let Some(charged) = &mut self.charged
            && let Some(hold) = charged.held()
        {
            placement::insert(&mut request.extensions, hold.clone());
            charged.is_connect = request.method == Method::CONNECT;
        }
    }

    pub(super) fn responded(mut self, response: &Parts) -> Option<Box<Meter>> {
        let charged = self.charged.take()?;
        if self.refunds && response.extensions.get::<DeniedInside>().is_some() {
            charged.release();
            return None;
        }
        if charged.is_upgrade(response) {
            // The connection goes on, and whoever has it keeps the hold.
            return None;
        }
        if charged.cost.is_none() && charged.held().is_none() {
            return None;
        }
        Some(Box::new(Meter { charged, response: response.clone(), body_bytes: 0 }))
    }
}

impl Charged {
    fn held(&self) -> Option<&Arc<Hold>> {
        match &self.hold {
            Some(RequestHold::Held(hold)) => Some(hold),
            _ => None,
        }
    }

    fn settle(&self, actual: &Costs) {
        match self.held() {
            Some(hold) => hold.settle(actual.clone()),
            None => self.check.settle(&self.estimate, actual),
        }
    }

    /// Gives everything back.
    fn release(&self) {
        match self.held() {
            Some(hold) => hold.release(),
            None => self.check.settle(&self.estimate, &Costs::new(0)),
        }
    }

    /// Gives back what is held, and keeps the estimate.
    fn end(&self) {
        if let Some(hold) = self.held() {
            hold.finish();
        }
    }

    /// Returns true if the connection of a hold goes on after the response.
    fn is_upgrade(&self, response: &Parts) -> bool {
        let is_tunnel = self.is_connect && response.status.is_success();
        let is_upgrade = is_tunnel || response.status == StatusCode::SWITCHING_PROTOCOLS;
        let hold = self.held().filter(|_| is_upgrade);
        if let Some(hold) = hold
            && Arc::strong_count(hold) == 1
            && let Some(count) = NOT_KEPT.occurred(Instant::now().into_std())
        {
            tracing::warn!(
                target: "fleetlimit", event = "hold_not_kept", policy = self.check.policy_name(), count,
                "a connection was upgraded, and does not count as in flight any more, because its handler does \
                 not keep the hold (move the `Arc<Hold>` in the extensions of the request into the task of the \
                 connection)"
            );
        }
        hold.is_some()
    }
}

impl Meter {
    pub(super) fn add(&mut self, bytes: usize) {
        self.body_bytes = self.body_bytes.saturating_add(bytes as u64);
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        let Some(charged) = self.charged.as_ref().filter(|_| self.is_allowed) else { return };
        match &charged.without_response {
            Some(actual) => charged.settle(actual),
            None => charged.end(),
        }
    }
}

/// Settles the cost when the body has ended, or the client has disconnected.
impl Drop for Meter {
    fn drop(&mut self) {
        let Self { charged, response, body_bytes } = self;
        let Some(cost) = &charged.cost else { return charged.end() };
        let sent = Sent { response, body_bytes: *body_bytes };
        // The body may be dropped because of a panic. A second one would end the process.
        match catch_unwind(AssertUnwindSafe(|| cost(&sent))) {
            Ok(actual) => charged.settle(&actual),
            Err(_) if thread::panicking() => {}
            Err(panic) => resume_unwind(panic),
        }
    }
}
