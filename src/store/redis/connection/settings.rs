//! The settings of the connections to a server: their number, how long each of them is kept, and what a call
//! may contain.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// The default pause before an idle connection is pinged, shorter than the idle timeouts of load balancers
/// and address translation.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The default age at which a connection is replaced, short enough that a name which has moved is followed
/// soon, and that tokens of a cloud's IAM do not expire.
const MAX_AGE: Duration = Duration::from_secs(300);

/// The shortest pause and age. With a shorter one, a connection would do little else than ping or connect.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest pause after a failed attempt to replace a connection that works.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSettings {
    /// The number of connections to each server.
    pub(super) count: NonZeroUsize,
    keepalive: Duration,
    max_age: Duration,
    /// Each call has a single key, also on a server that is no cluster.
    pub(super) one_key_per_call: bool,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        let count = NonZeroUsize::MIN;
        Self { count, keepalive: KEEPALIVE, max_age: MAX_AGE, one_key_per_call: false }
    }
}

impl ConnectionSettings {
    pub(crate) fn with_count(self, count: NonZeroUsize) -> Self {
        Self { count, ..self }
    }

    pub(crate) fn with_keepalive(self, keepalive: Duration) -> Self {
        Self { keepalive: keepalive.max(SHORTEST), ..self }
    }

    pub(crate) fn with_max_age(self, max_age: Duration) -> Self {
        Self { max_age: max_age.max(SHORTEST), ..self }
    }

    pub(crate) fn with_one_key_per_call(self) -> Self {
        Self { one_key_per_call: true, ..self }
    }

    /// Returns the time at which a connection that has been idle since then is pinged. `None` means never.
    pub(super) fn ping_at(&self, idle_since: Instant) -> Option<Instant> {
        idle_since.checked_add(self.keepalive)
    }

    /// Returns the time at which a connection that is made now has to be replaced. `None` means never.
    /// `jitter` is a random number from 0 to 1, so that the processes of a fleet do not all connect at
    /// the same times.
    pub(super) fn replace_at(&self, now: Instant, jitter: f64) -> Option<Instant> {
        let earlier = (self.max_age / 4).mul_f64(jitter.clamp(0.0, 1.0));
        now.checked_add(self.max_age.saturating_sub(earlier))
    }

    /// Returns the time at which to try again after an attempt to replace a connection has failed.
    pub(super) fn replace_again_at(&self, now: Instant) -> Instant {
        now + (self.max_age / 4).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_replaced_at_different_times_in_the_last_quarter_of_their_age() {
        let (settings, now) = (ConnectionSettings::default(), Instant::now());
        let ages = [0.0, 0.5, 1.0].map(|jitter| settings.replace_at(now, jitter).unwrap() - now);
        assert_eq!((ages[0], ages[2]), (MAX_AGE, MAX_AGE * 3 / 4));
        assert!(ages[2] < ages[1] && ages[1] < ages[0]);
    }

    #[test]
    fn the_longest_times_mean_never_and_the_shortest_do_not_mean_always() {
        let (settings, now) = (ConnectionSettings::default(), Instant::now());
        let longest = settings.with_keepalive(Duration::MAX).with_max_age(Duration::MAX);
        assert_eq!((longest.ping_at(now), longest.replace_at(now, 0.0)), (None, None));
        let shortest = settings.with_keepalive(Duration::ZERO).with_max_age(Duration::ZERO);
        assert_eq!(shortest.ping_at(now), Some(now + SHORTEST));
        assert_eq!(shortest.replace_at(now, 0.0), Some(now + SHORTEST));
    }
}
