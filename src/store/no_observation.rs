//! No check is observed in builds without the features `metrics` and `tracing`.

use crate::Policy;
use crate::metrics::PolicyMetrics;

pub(crate) type Observation = Option<Observed>;

#[derive(Debug)]
pub(crate) enum Observed {}

pub(crate) fn observe(_: &Policy) -> Observation {
    None
}

impl Observed {
    pub(crate) fn enter(&self) -> Option<Self> {
        match *self {}
    }

    pub(crate) fn end(&self, _: &PolicyMetrics) {
        match *self {}
    }
}
