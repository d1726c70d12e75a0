//! The pauses between attempts to connect: each is up to twice as long as the one before, with jitter, so that the
//! servers of a fleet do not all connect at once to a control plane that is back.

use std::time::Duration;

use crate::settings::Retry;

#[derive(Debug)]
pub(crate) struct Pauses {
    settings: Retry,
    next: Duration,
}

impl Pauses {
    pub(crate) fn new(settings: Retry) -> Self {
        Self { next: settings.first, settings }
    }

    /// The next pause. `jitter` is a random number from 0 to 1.
    pub(crate) fn next(&mut self, jitter: f64) -> Duration {
        let pause = self.next.min(self.settings.longest);
        self.next = pause.saturating_mul(2);
        pause.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }

    /// A connection has lasted, so the next pause is the first one again.
    pub(crate) fn reset(&mut self) {
        self.next = self.settings.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_start_again_after_success() {
        let seconds = Duration::from_secs;
        let settings = Retry { first: seconds(1), longest: seconds(5) };
        let mut pauses = Pauses::new(settings);
        assert_eq!([1.0; 5].map(|jitter| pauses.next(jitter).as_secs()), [1, 2, 4, 5, 5]);
        assert_eq!(pauses.next(0.0), Duration::from_millis(2_500));
        pauses.reset();
        assert_eq!(pauses.next(1.0), seconds(1));
        // A first pause that is longer than the longest one is that.
        let mut pauses = Pauses::new(Retry { first: seconds(9), longest: seconds(5) });
        assert_eq!(pauses.next(1.0), seconds(5));
    }
}
