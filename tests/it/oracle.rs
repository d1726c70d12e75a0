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
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub(crate) full_at: i128,
    pub(crate) permit: i128,
    pub(crate) micro: i128,
    /// When it was empty, or will be, whatever its capacity. Part of the debt is doubted then.
    pub(crate) empty_at: Option<i128>,
    /// A value in the short form does not say when it was written, so it was empty by now.
    pub(crate) is_short: bool,
}

/// Whatever the form.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let fields = |state: &Self| (state.full_at, state.permit, state.micro, state.empty_at);
        fields(self) == fields(other)
    }
}

impl Eq for State {}

/// How long until a bucket is full, at a rate.
#[derive(Clone, Copy, Debug)]
struct Debt {
    ticks: i128,
    permit: i128,
    micro: i128,
}

impl Oracle {
    pub(crate) fn quota(self) -> Quota {
        Quota::new(self.permits, Duration::from_micros(self.micros)).burst(self.burst)
    }

    /// The state of a bucket that has always been full.
    pub(crate) fn full(self) -> State {
        let divisor = gcd(self.permits, self.micros);
        let [permit, micro] = [self.micros, self.permits].map(|n| i128::from(n / divisor));
        State { full_at: 0, permit, micro, empty_at: None, is_short: false }
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
        let now = self.time_of(decision, after);
        let (found_debt, doubted) = self.read(found, now);
        // In ticks of the debt, so that nothing is rounded.
        let short = (i128::from(cost) - i128::from(self.burst)) * found_debt.permit;
        let short = found_debt.ticks + short;
        let context =
            format!("{self:?} cost {cost} {found:?} {found_debt:?}: {decision:?} {after:?}");
        let exceeds = cost > self.burst;
        assert_eq!(decision.is_allowed(), cost == 0 || short <= 0, "{context}");
        assert_eq!(decision.exceeds_capacity(), exceeds, "{context}");
        let own = self.full();
        let debt = if decision.is_allowed() && cost > 0 {
            let ticks = self.at_own_rate(found_debt) + self.permits_to_ticks(cost);
            let full_at = now * own.micro + (ticks + doubted).min(1 << 52);
            let empty_at = now * own.micro + ticks - self.capacity();
            let empty_at = (doubted > 0).then_some(empty_at);
            assert_eq!(after, State { full_at, empty_at, ..own }, "{context}");
            Debt { ticks, permit: own.permit, micro: own.micro }
        } else {
            // That it is doubted is written down.
            let noted = (found.is_short && found_debt.ticks < found.full_at - now * found.micro)
                .then_some(now * found.micro);
            assert_eq!(after, State { empty_at: noted.or(found.empty_at), ..found }, "{context}");
            found_debt
        };
        let left = i128::from(self.burst) - -(-debt.ticks).div_euclid(debt.permit);
        assert_eq!(i128::from(decision.remaining()), left.max(0), "{context}");
        assert_eq!(decision.limit(), self.burst);
        // The wait ends at the first microsecond at which it is true that this much is left.
        let is_first = |wait: i128, permits: i128| {
            let left_after =
                |wait: i128| (i128::from(self.burst) - permits) * debt.permit + wait * debt.micro;
            let is_it = debt.ticks <= left_after(wait) && debt.ticks > left_after(wait - 1);
            assert!(is_it, "{context}");
        };
        let micros = |duration: Duration| duration.as_micros() as i128;
        if decision.is_denied() && !exceeds {
            is_first(micros(decision.retry_after().unwrap()), i128::from(cost));
        }
        is_first(micros(decision.refill_after()), left.max(0) + 1);
        u64::try_from(now).unwrap()
    }

    /// When a decision was made that left a bucket in this state: `reset_after` is rounded up to
    /// microseconds, and the server's clock has whole ones. So it was at the first microsecond that is not
    /// earlier than this.
    fn time_of(self, decision: &Decision, after: State) -> i128 {
        let resets = decision.reset_after().as_micros() as i128 * after.micro;
        let believed = after.empty_at.map_or(after.full_at, |at| at + self.capacity_of(after));
        -(resets - after.full_at.min(believed)).div_euclid(after.micro)
    }

    /// In ticks of a state.
    fn capacity_of(self, state: State) -> i128 {
        i128::from(self.burst) * state.permit
    }

    /// The debt that counts, and what is doubted, in own ticks.
    fn read(self, found: State, now: i128) -> (Debt, i128) {
        let State { full_at, permit, micro, .. } = found;
        let all = Debt { ticks: (full_at - now * micro).max(0), permit, micro };
        let empty_at = found.empty_at.or(found.is_short.then_some(now * micro));
        let most = empty_at.map(|at| (self.capacity_of(found) + at - now * micro).max(0));
        let believed = Debt { ticks: all.ticks.min(most.unwrap_or(all.ticks)), ..all };
        (believed, self.at_own_rate(all) - self.at_own_rate(believed))
    }

    /// As many permits in own ticks, rounded up.
    fn at_own_rate(self, debt: Debt) -> i128 {
        let own = self.full();
        -(-debt.ticks * own.permit).div_euclid(debt.permit)
    }
}

impl State {
    pub(crate) async fn read(server: &Server, redis_key: &str) -> Option<Self> {
        let value: Option<Vec<u8>> = server.query(&["GET", redis_key]).await;
        Some(Self::parse(&value?))
    }

    pub(crate) fn parse(value: &[u8]) -> Self {
        let doubles = |bytes: &[u8]| -> Vec<i128> {
            let numbers =
                bytes.chunks(8).map(|bytes| f64::from_be_bytes(bytes.try_into().unwrap()));
            numbers.map(|number| number as i128).collect()
        };
        match value {
            // An entry of a token bucket, and maybe when it was empty: see `lua/packed.lua` and
            // `lua/doubt.lua`.
            [1, count, _, 0, 0, 0, 0, 1, 16, 0, size @ (8 | 16), rest @ ..] => {
                let (rate, rest) = rest.split_at(16);
                let rate = doubles(rate);
                let rest = match count {
                    1 => rest,
                    _ => rest.strip_prefix(&[0, 0, 0, 0, 6, 0, 0, 24]).unwrap(),
                };
                // After the time at which it was written.
                let (full_at, empty_at) = rest[8..].split_at((*size).into());
                let in_ticks =
                    |cells: &[i128]| cells[0] * rate[1] + cells.get(1).copied().unwrap_or_default();
                let full_at = in_ticks(&doubles(full_at));
                let empty_at = (*count > 1).then(|| in_ticks(&doubles(&empty_at[8..])));
                Self { full_at, permit: rate[0], micro: rate[1], empty_at, is_short: false }
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
                let full_at = number(time) - 1_000;
                Self { full_at, permit, micro: 1, empty_at: None, is_short: true }
            }
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
