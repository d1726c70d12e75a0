//! Lines of the log that anyone can cause, such as by a request: at most one in an interval.
//!
//! The interval stands where the line is logged: `limiter/failure_log` and `queue/breaker_log` (failures of a
//! store), `fleet/membership` and `fleet/opened` (the instances), `layer/logged` (what is wrong with requests),
//! `layer/settlement` (holds of connections), `resolve/proxy_log` (proxies), and `warnings` in the server. The docs of `FailureMode`, `Rejection`,
//! `ClientIp` and `RateLimitLayer` name some of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lets a line through at most once in an interval, the first one at once, and counts what is left out. It takes no
/// lock and allocates nothing, because checks cause such lines too.
#[derive(Debug)]
pub struct LogThrottle {
    interval: Duration,
    /// The time of the first occurrence, from which the next line is counted.
    start: OnceLock<Instant>,
    /// The time from which the next line may be logged, in microseconds since the start.
    next_line: AtomicU64,
    /// The number of occurrences since the last line.
    left_out: AtomicU64,
}

impl LogThrottle {
    /// A throttle for a line that has not occurred yet.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            start: OnceLock::new(),
            next_line: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Counts an occurrence. Returns the number of occurrences since the last line if it is time for another one.
    pub fn occurred(&self, now: Instant) -> Option<u64> {
        self.add();
        self.line(now)
    }

    /// Counts an occurrence that [`line`](Self::line) reports.
    pub(crate) fn add(&self) {
        self.left_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of occurrences since the last line, if there are any and it is time for another one.
    pub(crate) fn line(&self, now: Instant) -> Option<u64> {
        self.line_if(now, |is_due| is_due)
    }

    /// Like [`line`](Self::line), although it may not be time for another one.
    pub(crate) fn line_now(&self, now: Instant) -> Option<u64> {
        self.line_if(now, |_| true)
    }

    fn line_if(&self, now: Instant, may_log: impl Fn(bool) -> bool) -> Option<u64> {
        if self.left_out() == 0 {
            return None;
        }
        let (now, interval) = (self.micros(now), self.interval.as_micros() as u64);
        let next = |next_line| may_log(next_line <= now).then(|| now.saturating_add(interval));
        // Of two threads, one logs the line.
        self.next_line.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(self.left_out.swap(0, Ordering::Relaxed)).filter(|count| *count > 0)
    }

    /// Lets no line through for an interval from now on, as if one had been logged.
    #[cfg(feature = "redis")]
    pub(crate) fn restart(&self, now: Instant) {
        let next_line = self.micros(now).saturating_add(self.interval.as_micros() as u64);
        self.next_line.store(next_line, Ordering::Relaxed);
    }

    /// Returns the number of occurrences since the last line.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Returns the time from which the next line may be logged, or `None` if nothing has occurred yet.
    pub(crate) fn next_line(&self) -> Option<Instant> {
        let since_start = Duration::from_micros(self.next_line.load(Ordering::Relaxed));
        Some(*self.start.get()? + since_start)
    }

    /// Returns true if the next occurrence would be logged.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_line().is_none_or(|next_line| next_line <= now)
    }

    fn micros(&self, now: Instant) -> u64 {
        let start = *self.start.get_or_init(|| now);
        now.saturating_duration_since(start).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    #[test]
    fn the_first_line_comes_at_once_and_the_next_one_counts_what_was_left_out() {
        let (throttle, start) = (LogThrottle::new(INTERVAL), Instant::now());
        let occurred = |seconds| throttle.occurred(start + Duration::from_secs(seconds));
        let lines = [0, 0, 1, 59, 60, 61, 1_000].map(occurred);
        assert_eq!(lines, [Some(1), None, None, None, Some(4), None, Some(2)]);
    }

    #[test]
    fn nothing_is_reported_twice_or_without_an_occurrence() {
        let (throttle, start) = (LogThrottle::new(INTERVAL), Instant::now());
        assert_eq!((throttle.line(start), throttle.line_now(start)), (None, None));
        assert_eq!(throttle.occurred(start), Some(1));
        assert_eq!(throttle.occurred(start), None);
        assert_eq!([start, start].map(|now| throttle.line_now(now)), [Some(1), None]);
        assert_eq!(throttle.line(start + INTERVAL), None);
        assert!(throttle.is_due(start + INTERVAL));
    }

    #[test]
    fn threads_report_each_occurrence_once_and_one_of_them_logs_the_line() {
        let (throttle, now) = (LogThrottle::new(INTERVAL), Instant::now());
        let lines: Vec<u64> = std::thread::scope(|scope| {
            let occurred = || (0..1_000).filter_map(|_| throttle.occurred(now)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(occurred)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0] + throttle.left_out(), 4_000);
    }
}
