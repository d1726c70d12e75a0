//! A token bucket in the tests' own arithmetic, and what Redis keeps of one: the values in Redis
//! are compared with the decisions by somebody who took part in neither.

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

    pub(crate) fn price(self, cost: u64) -> i128 {
        i128::from(self.micros) * i128::from(cost)
    }

    pub(crate) fn capacity(self) -> i128 {
        self.price(self.burst)
    }

    pub(crate) fn ticks(self, micros: u64) -> i128 {
        i128::from(micros) * i128::from(self.permits)
    }

    /// When the bucket is full, in ticks of the server's clock.
    pub(crate) async fn full_at(self, server: &Server, name: &str) -> Option<i128> {
        let value: Option<String> = server.query(&["GET", name]).await;
        let value = value?;
        let (micros, part) = value.split_once(':').unwrap_or((&value, "0"));
        // What is kept is a millisecond later, when the key expires.
        let micros = micros.parse::<u64>().unwrap() - 1_000;
        // The store counts the part in lowest terms.
        let lowest = gcd(self.permits, self.micros);
        Some(self.ticks(micros) + part.parse::<i128>().unwrap() * i128::from(lowest))
    }

    /// Panics unless the decision is the one owed by a bucket that was to be full at `full_at`, and
    /// will be at `after`, which is still to come. Returns the time of the decision, in ticks.
    pub(crate) fn verify(self, full_at: i128, cost: u64, decision: &Decision, after: i128) -> i128 {
        let micros = |duration: Duration| self.ticks(duration.as_micros() as u64);
        // Whole microseconds, like the wait, which is rounded up: so the decision was made at the
        // first one that is not earlier than this.
        let now = after - micros(decision.reset_after());
        let now = -(-now).div_euclid(self.ticks(1)) * self.ticks(1);
        let debt = (full_at - now).max(0);
        let short = debt + self.price(cost) - self.capacity();
        let what = format!("{self:?} cost {cost} debt {debt}: {decision:?}");
        assert_eq!(decision.is_allowed(), short <= 0, "{what}");
        let charged = if decision.is_allowed() { self.price(cost) } else { 0 };
        if decision.is_allowed() && cost > 0 {
            assert_eq!(after, now + debt + charged, "{what}");
        }
        let left = self.capacity() - debt - charged;
        assert_eq!(i128::from(decision.remaining()), left / self.price(1), "{what}");
        assert_eq!(decision.limit(), self.burst);
        if let Some(wait) = decision.retry_after() {
            let wait = micros(wait);
            assert!(wait >= short && wait - self.ticks(1) < short, "{what}");
        }
        now
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
