//! The progress of a check on a Redis store.

use std::fmt;

use super::holds::PendingHold;
use super::queue::QueuedCheck;
use crate::store::{Observation, Observed};

/// The progress of a check on a Redis store.
pub struct PendingVerdict(pub(super) CheckProgress);

pub(super) enum CheckProgress {
    /// It is new, or in a queue.
    Queued(QueuedCheck),
    /// It takes permits that are held.
    Holding(Box<PendingHold>, Observation),
}

impl PendingVerdict {
    #[inline]
    pub(crate) fn new(observation: Observation) -> Self {
        Self(CheckProgress::Queued(QueuedCheck::new(observation)))
    }

    /// Returns true if the server may have received the check. Only adjustments need to know, and none is a hold.
    pub(crate) fn was_sent(&self) -> bool {
        match &self.0 {
            CheckProgress::Queued(check) => check.was_sent(),
            CheckProgress::Holding(..) => true,
        }
    }

    #[inline]
    pub(crate) fn observed(&self) -> Option<&Observed> {
        match &self.0 {
            CheckProgress::Queued(check) => check.observed(),
            CheckProgress::Holding(_, observation) => observation.as_ref(),
        }
    }
}

impl Default for PendingVerdict {
    fn default() -> Self {
        Self::new(None)
    }
}

impl fmt::Debug for PendingVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingVerdict").finish_non_exhaustive()
    }
}
