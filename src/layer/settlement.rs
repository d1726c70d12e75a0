//! The cost of a response, which replaces the estimate that the check has charged.

use std::sync::Arc;

use http::response::Parts;

use crate::limiter::HeldRevision;
use crate::{Costs, Key, Limiter};

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

/// What is known of a request until the service responds. If it was allowed and there is no response, the
/// estimate stands, or the cost for that case replaces it.
pub(super) struct Settlement {
    charged: Option<Box<Charged>>,
    is_allowed: bool,
}

/// What is charged once the body of a response has been sent.
pub(super) struct Meter {
    charged: Box<Charged>,
    response: Parts,
    body_bytes: u64,
}

struct Charged {
    limiter: Limiter,
    revision: HeldRevision,
    key: Key,
    estimate: Costs,
    cost: Arc<CostByResponse>,
    without_response: Option<Costs>,
}

impl Settlement {
    pub(super) fn new(
        limiter: &Limiter,
        revision: HeldRevision,
        key: &Key,
        estimate: Costs,
        cost: &Arc<CostByResponse>,
        without_response: &Option<Costs>,
    ) -> Self {
        let (limiter, key) = (limiter.clone(), key.clone());
        let (cost, without_response) = (cost.clone(), without_response.clone());
        let charged = Charged { limiter, revision, key, estimate, cost, without_response };
        Self { charged: Some(Box::new(charged)), is_allowed: false }
    }

    /// The request is allowed. The estimate was not charged if the store failed.
    pub(super) fn allowed(&mut self, is_charged: bool) {
        self.is_allowed = true;
        if let Some(charged) = &mut self.charged
            && !is_charged
        {
            charged.estimate = Costs::new(0);
        }
    }

    pub(super) fn responded(mut self, response: Parts) -> Option<Box<Meter>> {
        Some(Box::new(Meter { charged: self.charged.take()?, response, body_bytes: 0 }))
    }
}

impl Meter {
    pub(super) fn add(&mut self, bytes: usize) {
        self.body_bytes = self.body_bytes.saturating_add(bytes as u64);
    }
}

impl Charged {
    fn settle(&self, actual: &Costs) {
        let Self { limiter, revision, key, estimate, .. } = self;
        limiter.settle(revision.clone(), key.clone(), estimate, actual);
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        if let Some(charged) = &self.charged
            && self.is_allowed
            && let Some(actual) = &charged.without_response
        {
            charged.settle(actual);
        }
    }
}

/// When the body has ended, or the client has disconnected.
impl Drop for Meter {
    fn drop(&mut self) {
        let Self { charged, response, body_bytes } = self;
        let actual = (charged.cost)(&Sent { response, body_bytes: *body_bytes });
        charged.settle(&actual);
    }
}
