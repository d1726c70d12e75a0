//! The silence of a server: for how long nothing has arrived although replies are outstanding.

use std::time::{Duration, Instant};

/// Counts outstanding replies, and remembers since when none has arrived. What callers do, such as
/// giving up, does not matter.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    outstanding: usize,
    since: Option<Instant>,
}

impl Silence {
    pub(crate) fn sent(&mut self, now: Instant) {
        self.outstanding += 1;
        self.since.get_or_insert(now);
    }

    pub(crate) fn received(&mut self, now: Instant) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.since = (self.outstanding > 0).then_some(now);
    }

    /// Gives up a reply that nobody waits for any more, so that its arrival will not be noticed.
    pub(crate) fn abandoned(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 {
            self.since = None;
        }
    }

    /// Returns the number of replies that are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns the length of the silence. `None` if no reply is outstanding.
    pub(crate) fn duration(&self, now: Instant) -> Option<Duration> {
        self.since.map(|since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn silence_counts_from_the_last_reply_and_only_while_one_is_outstanding() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        assert_eq!(silence.duration(start + 9 * MS), None);
        silence.sent(start);
        silence.sent(start + 5 * MS);
        assert_eq!(silence.duration(start + 9 * MS), Some(9 * MS), "a later call is no news");
        silence.received(start + 10 * MS);
        assert_eq!(silence.duration(start + 12 * MS), Some(2 * MS));
        silence.received(start + 13 * MS);
        assert_eq!(silence.duration(start + 99 * MS), None);
    }

    #[test]
    fn a_caller_that_gives_up_proves_nothing() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        silence.sent(start);
        silence.sent(start);
        silence.abandoned();
        assert_eq!(silence.duration(start + MS), Some(MS), "the other reply is still missing");
        silence.abandoned();
        assert_eq!(silence.duration(start + MS), None);
    }
}
