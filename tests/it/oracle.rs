//! An independent implementation of the token bucket. It verifies decisions against the values in
//! Redis.

use std::time::Duration;

use tollgate::{Decision, Quota};

use crate::common::Server;

/// `permits` per `micros` microseconds. A tick is a microsecond divided by `permits`, so that a
/// permit takes exactly `micros` ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oracle {
    pub(crate) permits: u64,
    pub(crate) micros: u64,
    pub(crate) burst: u64,
}

impl Oracle {
    pub(crate) fn quota(self) -> Quota {
        Quota::new(self.permits, Duration::from_micros(self.micros)).burst(self.burst)
    }

    /// Returns the time that permits take to refill.
    pub(crate) fn permits_to_ticks(self, permits: u64) -> i128 {
        i128::from(self.micros) * i128::from(permits)
    }

    pub(crate) fn capacity(self) -> i128 {
        self.permits_to_ticks(self.burst)
    }

    pub(crate) fn micros_to_ticks(self, micros: u64) -> i128 {
        i128::from(micros) * i128::from(self.permits)
    }

    /// Returns when the bucket will be full, in ticks of the server's clock.
    pub(crate) async fn full_at(self, server: &Server, redis_key: &str) -> Option<i128> {
        let value: Option<String> = server.query(&["GET", redis_key]).await;
        let value = value?;
        let (micros, fraction) = value.split_once(':').unwrap_or((&value, "0"));
        // The value is a millisecond later: it is the time at which the key expires.
        let micros = micros.parse::<u64>().unwrap() - 1_000;
        // The store reduces the fraction to lowest terms.
        let divisor = gcd(self.permits, self.micros);
        Some(self.micros_to_ticks(micros) + fraction.parse::<i128>().unwrap() * i128::from(divisor))
    }

    /// Verifies a decision. Before it, the bucket was to be full at `full_at`; since then, at
    /// `after`, which must be in the future. Returns the time of the decision, in ticks.
    ///
    /// # Panics
    /// If the decision is wrong.
    pub(crate) fn verify(self, full_at: i128, cost: u64, decision: &Decision, after: i128) -> i128 {
        let to_ticks = |duration: Duration| self.micros_to_ticks(duration.as_micros() as u64);
        // `reset_after` is rounded up to microseconds, and the server's clock has whole ones. So
        // the decision was made at the first microsecond that is not earlier than this.
        let now = after - to_ticks(decision.reset_after());
        let now = -(-now).div_euclid(self.micros_to_ticks(1)) * self.micros_to_ticks(1);
        let debt = (full_at - now).max(0);
        let short = debt + self.permits_to_ticks(cost) - self.capacity();
        let context = format!("{self:?} cost {cost} debt {debt}: {decision:?}");
        assert_eq!(decision.is_allowed(), short <= 0, "{context}");
        let charged = if decision.is_allowed() { self.permits_to_ticks(cost) } else { 0 };
        if decision.is_allowed() && cost > 0 {
            assert_eq!(after, now + debt + charged, "{context}");
        }
        let left = self.capacity() - debt - charged;
        assert_eq!(i128::from(decision.remaining()), left / self.permits_to_ticks(1), "{context}");
        assert_eq!(decision.limit(), self.burst);
        if let Some(wait) = decision.retry_after() {
            let wait = to_ticks(wait);
            assert!(wait >= short && wait - self.micros_to_ticks(1) < short, "{context}");
        }
        now
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
