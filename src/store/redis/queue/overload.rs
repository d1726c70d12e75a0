//! Tells whether this process overloads a server. Overload is not an outage: the server works, and checks are
//! late because too many are sent.
//!
//! A check that is not sent in time is `Overloaded` if its queue has read a reply within the last timeout
//! (`InFlightWindow::is_answering`). So is a check or a probe that is late, if the server has replied within the last
//! timeout to any queue of this process that kept it busy, and its shortest round trip is below the timeout.
//! A breaker that overload opens refuses with `Overloaded` too.
//!
//! Whoever sends many checks causes this, for all limiters of the server. So the failure mode `Open` does not
//! apply to it (`FailureMode::of`): one client that floods a limit would lift all others. →
//! `tests/it/timing/overload.rs`, `queue/sim`

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The latest reply of a server that arrived while this process had more for it. The queues of all runtimes and
/// timeouts share it, because each makes the others wait. It does no I/O and reads no clock.
#[derive(Debug, Default)]
pub(super) struct Overload(Mutex<Option<BusyReply>>);

#[derive(Clone, Copy, Debug)]
struct BusyReply {
    at: Instant,
    /// The round trip without a wait at the server.
    round_trip: Duration,
}

impl Overload {
    /// A reply has arrived at a queue that has others in flight, or checks that wait.
    pub(super) fn replied(&self, round_trip: Duration, at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(BusyReply { at, round_trip });
    }

    /// Returns true if calls that have no reply within this timeout are too many for a server that works. A server
    /// that is silent, or farther away than the timeout, is out of reach instead.
    pub(super) fn explains_delay(&self, timeout: Duration, now: Instant) -> bool {
        let latest = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.is_some_and(|BusyReply { at, round_trip }| {
            round_trip < timeout && now.saturating_duration_since(at) < timeout
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_replies_and_is_near_enough_is_overloaded() {
        const MS: Duration = Duration::from_millis(1);
        let (overload, now) = (Overload::default(), Instant::now());
        assert!(!overload.explains_delay(50 * MS, now), "nothing was in flight");
        overload.replied(20 * MS, now);
        assert!(overload.explains_delay(50 * MS, now + 49 * MS));
        assert!(!overload.explains_delay(50 * MS, now + 50 * MS), "it is silent");
        assert!(overload.explains_delay(100 * MS, now + 50 * MS));
        assert!(!overload.explains_delay(20 * MS, now), "it is too far away");
    }
}
