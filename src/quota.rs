use std::time::Duration;

/// A rate and a burst: a token bucket with continuous refill.
///
/// The bucket is full at first and holds at most `burst` permits. It refills at exactly `n`
/// permits per period, spread evenly: `per_second(3)` gains a permit every third of a second, with
/// no rounding however long it runs. Decisions are those of the generic cell rate algorithm
/// (ITU-T I.371), which is equal to a token bucket.
///
/// The constructors never fail. What cannot work is a [`ConfigError`](crate::ConfigError) from
/// [`Limiter::new`](crate::Limiter::new): a zero, a period that is not in whole microseconds, or
/// numbers beyond what the arithmetic carries exactly.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// const SEARCH: Quota = Quota::per_second(10).burst(20);
/// const EXPORT: Quota = Quota::new(3, Duration::from_secs(15 * 60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    pub(crate) permits: u32,
    pub(crate) period: Duration,
    pub(crate) burst: u32,
}

impl Quota {
    /// `n` permits per `period`, with a burst of `n`.
    pub const fn new(n: u32, period: Duration) -> Self {
        Self { permits: n, period, burst: n }
    }

    /// `n` permits per second, with a burst of `n`.
    pub const fn per_second(n: u32) -> Self {
        Self::new(n, Duration::from_secs(1))
    }

    /// `n` permits per minute, with a burst of `n`.
    pub const fn per_minute(n: u32) -> Self {
        Self::new(n, Duration::from_secs(60))
    }

    /// `n` permits per hour, with a burst of `n`.
    pub const fn per_hour(n: u32) -> Self {
        Self::new(n, Duration::from_secs(60 * 60))
    }

    /// `n` permits per day of 24 hours, with a burst of `n`.
    pub const fn per_day(n: u32) -> Self {
        Self::new(n, Duration::from_secs(24 * 60 * 60))
    }

    /// The most permits that the bucket holds, so the most that can be taken at once.
    #[must_use]
    pub const fn burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }
}
