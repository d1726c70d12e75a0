//! An independent implementation of the token bucket. It verifies decisions against the values in
//! Redis.

use std::time::Duration;

use fleetlimit::{Decision, Quota};

use crate::common::Server;

/// `permits` per `micros` microseconds. A tick is the longest time of which a permit and a
/// microsecond are multiples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oracle {
    pub(crate) permits: u64,
    pub(crate) micros: u64,
    pub(crate) burst: u64,
}

/// When a bucket will be full, in ticks of the server's clock. The lengths of a permit and of a
/// microsecond in ticks are those of the quota that was charged last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) full_at: i128,
    pub(crate) permit: i128,
    pub(crate) micro: i128,
}

impl Oracle {
    pub(crate) fn quota(self) -> Quota {
        Quota::new(self.permits, Duration::from_micros(self.micros)).burst(self.burst)
    }

    /// The state of a bucket that has always been full.
    pub(crate) fn full(self) -> State {
        let divisor = gcd(self.permits, self.micros);
        let [permit, micro] = [self.micros, self.permits].map(|n| i128::from(n / divisor));
        State { full_at: 0, permit, micro }
    }

    /// Returns the time that permits take to refill.
    pub(crate) fn permits_to_ticks(self, permits: u64) -> i128 {
        self.full().permit * i128::from(permits)
    }

    pub(crate) fn capacity(self) -> i128 {
        self.permits_to_ticks(self.burst)
    }

    pub(crate) fn micros_to_ticks(self, micros: u64) -> i128 {
        self.full().micro * i128::from(micros)
    }

    /// Returns when the bucket will be full, in ticks of the server's clock.
    ///
    /// # Panics
    /// If the value was written at another rate.
    pub(crate) async fn full_at(self, server: &Server, redis_key: &str) -> Option<i128> {
        let state = State::read(server, redis_key).await?;
        assert_eq!(State { full_at: 0, ..state }, self.full());
        Some(state.full_at)
    }

    /// Verifies a decision, which found the bucket in the state `found` and left it as `after`. That
    /// must be full in the future. Returns the time of the decision, in microseconds of the server's
    /// clock.
    ///
    /// # Panics
    /// If the decision is wrong.
    pub(crate) fn verify(self, found: State, cost: u64, decision: &Decision, after: State) -> u64 {
        let micros = |duration: Duration| duration.as_micros() as i128;
        // `reset_after` is rounded up to microseconds, and the server's clock has whole ones. So
        // the decision was made at the first microsecond that is not earlier than this.
        let now = after.full_at - micros(decision.reset_after()) * after.micro;
        let now = -(-now).div_euclid(after.micro);
        let debt = (found.full_at - now * found.micro).max(0);
        // In ticks of the state, so that nothing is rounded.
        let short = debt + (i128::from(cost) - i128::from(self.burst)) * found.permit;
        let context = format!("{self:?} cost {cost} {found:?} debt {debt}: {decision:?} {after:?}");
        let exceeds = cost > self.burst;
        assert_eq!(decision.is_allowed(), cost == 0 || short <= 0, "{context}");
        assert_eq!(decision.exceeds_capacity(), exceeds, "{context}");
        if decision.is_allowed() && cost > 0 {
            let own = self.full();
            // Rounded up to the next tick.
            let debt = -(-debt * own.permit).div_euclid(found.permit);
            let full_at = now * own.micro + debt + self.permits_to_ticks(cost);
            assert_eq!(after, State { full_at, ..own }, "{context}");
        } else {
            assert_eq!(after, found, "{context}");
        }
        let debt = after.full_at - now * after.micro;
        let left = i128::from(self.burst) - -(-debt).div_euclid(after.permit);
        assert_eq!(i128::from(decision.remaining()), left.max(0), "{context}");
        assert_eq!(decision.limit(), self.burst);
        // The wait ends at the first microsecond at which it is true that this much is left.
        let is_first = |wait: i128, permits: i128| {
            let left_after =
                |wait: i128| (i128::from(self.burst) - permits) * after.permit + wait * after.micro;
            assert!(debt <= left_after(wait) && debt > left_after(wait - 1), "{context}");
        };
        if decision.is_denied() && !exceeds {
            is_first(micros(decision.retry_after().unwrap()), i128::from(cost));
        }
        is_first(micros(decision.refill_after()), left.max(0) + 1);
        u64::try_from(now).unwrap()
    }
}

impl State {
    pub(crate) async fn read(server: &Server, redis_key: &str) -> Option<Self> {
        let value: Option<Vec<u8>> = server.query(&["GET", redis_key]).await;
        Some(Self::parse(&value?))
    }

    fn parse(value: &[u8]) -> Self {
        match value {
            // One entry of a token bucket: see `lua/packed.lua`.
            [1, 1, _, _, _, _, _, 1, 16, 0, 8 | 16, numbers @ ..] => {
                let numbers: Vec<i128> = numbers
                    .chunks(8)
                    .map(|bytes| f64::from_be_bytes(bytes.try_into().unwrap()) as i128)
                    .collect();
                // After the time at which it was written.
                let (permit, micro, micros) = (numbers[0], numbers[1], numbers[3]);
                let ticks = numbers.get(4).copied().unwrap_or(0);
                Self { full_at: micros * micro + ticks, permit, micro }
            }
            _ => {
                let value = str::from_utf8(value).unwrap();
                let number = |text: &str| text.parse::<i128>().unwrap();
                let (time, rate) = value.split_at(value.len() - 3);
                let (digits, zeros) = rate.split_at(2);
                let digits = if digits == "00" { 864 } else { number(digits) };
                let permit = digits * 10i128.pow(zeros.parse().unwrap());
                // The value is a millisecond later, so that its expiry in milliseconds is never too
                // early.
                Self { full_at: number(time) - 1_000, permit, micro: 1 }
            }
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
