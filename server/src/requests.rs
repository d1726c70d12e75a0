//! The requests of a connection, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A request in flight, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Requests>);

impl Requests {
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Ordering::Relaxed);
        InFlight(self.clone())
    }

    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns a number that changes whenever a request begins or ends.
    pub(crate) fn begun_and_ended(&self) -> u64 {
        self.begun() + self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn are_in_flight(&self) -> bool {
        self.ended.load(Ordering::Relaxed) < self.begun()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
