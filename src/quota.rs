//! The quota: its numbers, and the `Kind` of its algorithm. Text is in `quota_text`, what is wrong with numbers
//! in `algorithm/validation.rs`.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::calendar::Zone;

/// A limit: a number of permits per period, and the algorithm that enforces it.
///
/// The default algorithm is a token bucket with continuous refill. See the [guide] for the others.
/// The methods that choose an algorithm replace each other; the last one applies.
///
/// A token bucket is full at first and holds at most `burst` permits. It refills at exactly `n` permits
/// per period, evenly: `per_second(3)` gains a permit every third of a second, and nothing is
/// rounded however long it runs. The decisions are those of the generic cell rate algorithm
/// (ITU-T I.371), which is equivalent to a token bucket.
///
/// [guide]: crate::guide#algorithms
///
/// The constructors never fail. Invalid numbers are a [`ConfigError`](crate::ConfigError) from
/// [`Limiter::new`](crate::Limiter::new): a zero, a period that is not a whole number of
/// microseconds, or numbers too large to represent exactly. A rate fits best if it shares large
/// factors with the period: 1,000,000,000,000 permits per 30 days fit, 1 TiB (2^40) per 30 days
/// does not. Count KiB instead. The error says what to reduce. Every quota that is valid has room for a
/// debt of ten times its capacity.
///
/// # Text
///
/// A quota can be written as text and read from it, for configuration files: `10/s burst 20`. The
/// grammar, in EBNF (ISO/IEC 14977):
///
/// ```text
/// quota  = rate | number, space, "concurrent" ;
/// rate   = number, "/", period, [ space, "burst", space, number ], [ space, "borrow", space, number ],
///          [ space, "debt", space, number ], [ space, kind ] ;
/// kind   = "queue", space, time | "interval" | "fixed" | "calendar", [ space, zone ]
///        | "sliding", space, ( number | "approximate" ) ;
/// period = time | "month" ; (* "month" only with "calendar" *)
/// time   = [ number ], unit ;
/// unit   = "week" | "day" | "h" | "hour" | "min" | "minute" | "s" | "second" | "ms" | "us" | "ns" ;
/// zone   = ? the name of a time zone of the IANA, such as Europe/Berlin ? ;
/// number = digit, { digit } ;
/// digit  = "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" ;
/// space  = " ", { " " } ;
/// ```
///
/// With the feature `serde` a quota is serialized as this text. Without `burst`, the burst is the
/// number of permits, or 1 with `queue`. The other words are the methods
/// [`concurrent`](Self::concurrent), [`borrow_up_to`](Self::borrow_up_to),
/// [`debt_up_to`](Self::debt_up_to), [`queue`](Self::queue),
/// [`interval_refill`](Self::interval_refill), [`fixed_window`](Self::fixed_window),
/// [`calendar`](Self::calendar) (with a time zone or a month: feature `jiff`),
/// [`sliding_window`](Self::sliding_window) with the number of segments, and
/// [`approximate_sliding_window`](Self::approximate_sliding_window). The error
/// for any other text is a [`ConfigError`](crate::ConfigError) that says what was expected, and at
/// which character. Permits are at most 2^64 - 1, segments 2^32 - 1. Invalid numbers and
/// combinations are an error from [`Limiter::new`](crate::Limiter::new), as above.
///
/// ```
/// use fleetlimit::Quota;
///
/// let quota: Quota = "100/15min burst 20".parse()?;
/// assert_eq!((quota.permits(), quota.period().as_secs(), quota.capacity()), (100, 900, 20));
/// assert_eq!(Quota::per_day(1_000).to_string(), "1000/day");
/// # Ok::<(), fleetlimit::ConfigError>(())
/// ```
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use fleetlimit::Quota;
///
/// const SEARCH: Quota = Quota::per_second(10).burst(20);
/// const EXPORT: Quota = Quota::new(3, Duration::from_secs(15 * 60));
/// assert_eq!((SEARCH.permits(), SEARCH.capacity()), (10, 20));
/// assert_eq!(EXPORT.period(), Duration::from_secs(900));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    permits: u64,
    period: Duration,
    /// `None` for the default of the kind.
    burst: Option<u64>,
    borrow: u64,
    /// `None` for as much as fits.
    debt: Option<u64>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    TokenBucket,
    /// A token bucket whose checks may wait for so long.
    Queue(Duration),
    IntervalRefill,
    FixedWindow(WindowStart),
    /// The number of segments.
    SlidingWindow(u32),
    ApproximateSlidingWindow,
    /// Permits are held at a time, not used per period.
    Concurrent,
}

/// The time at which a fixed window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowStart {
    FirstCheck,
    /// A multiple of the period on the clock.
    Clock,
    /// The start of the day or the week in a time zone.
    Zone(Zone),
    /// The start of the month in a time zone. The period is that of a long month.
    Month(Zone),
}

impl Quota {
    /// The name of a quota, and of its policy, for which no other was chosen.
    pub(crate) const DEFAULT_NAME: &str = "default";
    pub(crate) const MONTH: Duration = Duration::from_secs(31 * 86_400);

    /// `n` permits per `period`, with a burst of `n`.
    pub const fn new(n: u64, period: Duration) -> Self {
        Self { permits: n, period, burst: None, borrow: 0, debt: None, kind: Kind::TokenBucket }
    }

    /// At most `n` permits held at a time, by all processes together, such as one for each request in flight.
    ///
    /// There is no period: permits are free again when they are given back. Take them with
    /// [`Limiter::hold`](crate::Limiter::hold), or with a layer, which holds one for each request until the body of the
    /// response has ended or is dropped. [`Limiter::check`](crate::Limiter::check) returns an error, because nobody
    /// would give them back.
    ///
    /// If this quota denies, there is no [`retry_after`](crate::Decision::retry_after), because nobody knows when a permit
    /// is given back.
    ///
    /// On Redis, each process renews the permits that it holds. Permits that it has not renewed for
    /// [`RedisStore::hold_for`](crate::RedisStore::hold_for) are free again; the docs of that method list what can exceed
    /// the limit. A key takes 28 bytes in Redis for each instance that holds permits of it, and for the one that changed
    /// it last. At most 1,024 instances can hold permits of a key.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("exports")
    ///     .quota("in_flight", Quota::concurrent(5))
    ///     .quota("rate", Quota::per_minute(100));
    /// let limiter = Limiter::new(MemoryStore::new(), policy)?;
    ///
    /// let hold = limiter.hold("user:7", 1).await?.ensure_allowed()?;
    /// // The export runs.
    /// drop(hold);
    /// # Ok(()) }
    /// ```
    ///
    /// It cannot be combined with a [`queue`](Self::queue) in a policy.
    pub const fn concurrent(n: u64) -> Self {
        Self::new(n, Duration::ZERO).with_kind(Kind::Concurrent)
    }

    /// `n` permits per second, with a burst of `n`.
    pub const fn per_second(n: u64) -> Self {
        Self::new(n, Duration::from_secs(1))
    }

    /// `n` permits per minute, with a burst of `n`.
    pub const fn per_minute(n: u64) -> Self {
        Self::new(n, Duration::from_secs(60))
    }

    /// `n` permits per hour, with a burst of `n`.
    pub const fn per_hour(n: u64) -> Self {
        Self::new(n, Duration::from_secs(60 * 60))
    }

    /// `n` permits per day of 24 hours, with a burst of `n`.
    pub const fn per_day(n: u64) -> Self {
        Self::new(n, Duration::from_secs(24 * 60 * 60))
    }

    /// `n` permits per calendar month, in UTC. [`calendar_in`](Self::calendar_in) chooses another
    /// time zone. The [`period`](Self::period) is 31 days, also if another algorithm is chosen
    /// afterwards.
    ///
    /// ```
    /// use fleetlimit::Quota;
    ///
    /// let quota = Quota::per_month(1_000_000);
    /// assert_eq!(quota.to_string(), "1000000/month calendar");
    /// ```
    #[cfg(feature = "jiff")]
    #[cfg_attr(docsrs, doc(cfg(feature = "jiff")))]
    pub const fn per_month(n: u64) -> Self {
        Self::new(n, Self::MONTH).in_month()
    }

    /// Sets the capacity of a token bucket, with continuous or [interval](Self::interval_refill)
    /// refill: the most permits that it can hold.
    ///
    /// A window has no burst: [`Limiter::new`](crate::Limiter::new) returns an error if this
    /// differs from the number of permits.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        Self { burst: Some(burst), ..self }
    }

    /// Lets a check overdraw the bucket by up to `permits`, provided that at least one permit is
    /// left. Later checks are denied until the debt is repaid and a permit is available again. So
    /// an expensive request starts at once and is paid for afterwards.
    ///
    /// Any span of time admits at most `burst + permits`, and what refills in it. 0, the default, lends
    /// nothing. Only for token buckets with continuous refill: with another algorithm
    /// [`Limiter::new`](crate::Limiter::new) returns an error.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::per_second(1).burst(10).borrow_up_to(50);
    /// let limiter = Limiter::new(MemoryStore::new(), quota)?;
    /// assert!(limiter.check_cost("user:7", 60).await?.is_allowed());
    ///
    /// // 50 seconds until nothing is owed, and one for the next permit.
    /// let wait = limiter.check("user:7").await?.retry_after().unwrap();
    /// assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(51));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn borrow_up_to(self, permits: u64) -> Self {
        Self { borrow: permits, ..self }
    }

    /// Limits what a key can owe to `permits`. What [`charge`](crate::Limiter::charge) and costs by response
    /// take beyond that is forgiven.
    ///
    /// A key is in debt if more of its permits are in use than checks can take. By default the whole debt is
    /// kept, up to what can be represented exactly: at least ten times the capacity. So a key that spends five
    /// times the limit of a bucket at once waits five times as long, and the limit holds on average. (Windows
    /// forget a debt: see [`Limiter::charge`](crate::Limiter::charge).)
    ///
    /// A limit of the debt bounds the wait instead, and lets more through. With 0 there are no debts: a charge
    /// takes at most what is left. What is forgiven is logged, and counted by the metric
    /// `fleetlimit.charges.forgiven`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::per_minute(1_000).debt_up_to(2_000);
    /// let limiter = Limiter::new(MemoryStore::new(), quota)?;
    /// limiter.charge("user:7", 50_000).await?;
    ///
    /// // Two minutes until nothing is owed, instead of 49.
    /// let wait = limiter.check("user:7").await?.retry_after().unwrap();
    /// assert!(wait > Duration::from_secs(119) && wait <= Duration::from_secs(121));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn debt_up_to(self, permits: u64) -> Self {
        Self { debt: Some(permits), ..self }
    }

    /// Refills the bucket with all permits of a period at the end of each period, instead of evenly.
    /// The first period starts with the first check that takes from a full bucket. Any span of time admits
    /// at most the burst, and the permits of a period for each refill in it.
    ///
    /// A period is a whole number of microseconds, at least 1 ms long, and an empty bucket must refill
    /// within 12 years.
    ///
    /// ```
    /// use fleetlimit::Quota;
    ///
    /// let quota = Quota::per_minute(10).burst(30).interval_refill();
    /// assert_eq!(quota.to_string(), "10/min burst 30 interval");
    /// ```
    #[must_use]
    pub const fn interval_refill(self) -> Self {
        Self { kind: Kind::IntervalRefill, ..self }
    }

    /// Counts permits in a sliding window: no span of one period admits more than the permits.
    ///
    /// The period is divided into equal segments, and the permits of each are counted. A permit becomes
    /// available again when the whole segment in which it was taken is older than the period, so up to one
    /// segment late. More segments are more precise and take more memory: 4 bytes each per key in Redis.
    /// There are 1 to 60 segments, and each is a whole number of microseconds, at least 1 ms. A period is at
    /// most 71 years long, and has at most 390,451,572 permits.
    ///
    /// This has the plain name because it does what the name promises. The algorithm that is known as
    /// "sliding window counter" does not: see
    /// [`approximate_sliding_window`](Self::approximate_sliding_window).
    ///
    /// ```
    /// use fleetlimit::Quota;
    ///
    /// let quota = Quota::per_minute(100).sliding_window(12);
    /// assert_eq!(quota.to_string(), "100/min sliding 12");
    /// ```
    #[must_use]
    pub const fn sliding_window(self, segments: u32) -> Self {
        Self { kind: Kind::SlidingWindow(segments), ..self }
    }

    /// Estimates the permits in a sliding window from two counters, in less memory than
    /// [`sliding_window`](Self::sliding_window) takes. It can admit up to twice the permits.
    ///
    /// The estimate is the number of permits taken in the current period, plus a fraction of those taken in the
    /// previous one. The fraction is the part of the previous period that the window still covers. The result
    /// is rounded down to whole permits. It is right if the permits of the previous period were taken evenly. If
    /// not, a window can admit twice the permits: all at the end of one period, and nearly all again during the
    /// next. With few permits the rounding matters: `per_minute(1)` can admit two requests around the end of a
    /// period.
    ///
    /// The algorithm is known as "sliding window counter". Its name says here that it is approximate, because
    /// that is easily overlooked.
    ///
    /// Periods start at multiples of the period since 1970. A period is a whole number of microseconds,
    /// 1 ms to 71 years, and has at most 780,903,144 permits.
    ///
    /// ```
    /// use fleetlimit::Quota;
    ///
    /// let quota = Quota::per_minute(100).approximate_sliding_window();
    /// assert_eq!(quota.to_string(), "100/min sliding approximate");
    /// ```
    #[must_use]
    pub const fn approximate_sliding_window(self) -> Self {
        Self { kind: Kind::ApproximateSlidingWindow, ..self }
    }

    /// Lets checks wait for their permits, in the order of arrival, instead of denying them: a leaky bucket as
    /// a queue. A check that would have to wait longer than this is denied at once. So requests proceed evenly,
    /// one per `period / n`, for all instances together.
    ///
    /// [`Limiter::acquire`](crate::Limiter::acquire) and a [`RateLimitLayer`](crate::RateLimitLayer)
    /// wait. [`Limiter::check`](crate::Limiter::check) does not: it allows what can proceed at
    /// once. A limiter also bounds the [number of waiters](crate::LimiterBuilder::max_waiters) in
    /// its process.
    ///
    /// If a waiting check is dropped, those behind it in its process move up. A process that is killed leaves
    /// its places behind, and no check takes them: for each key at most as many as the process had
    /// [waiters](crate::LimiterBuilder::max_waiters_per_key). Each such place delays the others by
    /// `period / n`, and all together by at most the longest wait.
    ///
    /// A check that has to wait needs the timers of a Tokio runtime
    /// ([`enable_time`](tokio::runtime::Builder::enable_time)). Without them it panics.
    ///
    /// The burst is 1 unless [`burst`](Self::burst) sets it: an unused key can take that many
    /// permits without waiting. A cost above the burst waits for the rest of it.
    /// [`Limiter::new`](crate::Limiter::new) returns an error for a queue that also
    /// [lends](Self::borrow_up_to) permits, and for a wait of zero, of more than 142 years, or with a part of a
    /// microsecond.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::per_second(5).queue(Duration::from_secs(30));
    /// assert_eq!(quota.to_string(), "5/s queue 30s");
    ///
    /// let limiter = Limiter::new(MemoryStore::new(), quota)?;
    /// let start = tokio::time::Instant::now();
    /// for _ in 0..11 {
    ///     limiter.acquire("api.example.com").await?.ensure_allowed()?;
    /// }
    /// assert_eq!(start.elapsed().as_secs(), 2);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn queue(self, longest_wait: Duration) -> Self {
        Self { kind: Kind::Queue(longest_wait), ..self }
    }

    /// Counts permits in windows of the period instead of refilling a bucket. A window starts with the
    /// first check that takes a permit, and ends a period later.
    ///
    /// Around the end of a window, `2 × n - 1` permits can be taken in a moment: see the
    /// [guide](crate::guide#fixed-window). A window is a whole number of microseconds, 1 ms to 142
    /// years, and has at most 409,418,147,942,772 permits and no [`burst`](Self::burst).
    ///
    /// ```
    /// use fleetlimit::Quota;
    ///
    /// let quota = Quota::per_minute(100).fixed_window();
    /// assert_eq!(quota.to_string(), "100/min fixed");
    /// ```
    #[must_use]
    pub const fn fixed_window(self) -> Self {
        Self { kind: Kind::FixedWindow(WindowStart::FirstCheck), ..self }
    }

    /// Like [`calendar`](Self::calendar), for seconds, minutes, hours, days, weeks and months of a time
    /// zone, such as `Europe/Berlin`. A day of 23 or 25 hours is one day. Weeks start on Mondays.
    ///
    /// The process computes the windows around its own time, and the clock of the Redis server
    /// selects one. So the clock of the process must be right to within about a window. The time
    /// zone comes from the system's database or, if there is none, from the one that this crate was
    /// built with.
    ///
    /// [`Limiter::new`](crate::Limiter::new) returns an error if there is no time zone of this name, or if the
    /// period is not one second, minute, hour, day, week, or [month](Self::per_month). For a name that is
    /// not `'static`, parse a [text](Self#text).
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// let daily = Quota::per_day(1_000).calendar_in("Europe/Berlin");
    /// assert_eq!(daily.to_string(), "1000/day calendar Europe/Berlin");
    /// assert!(Limiter::new(MemoryStore::new(), daily).is_ok());
    ///
    /// let unknown = Quota::per_day(1_000).calendar_in("Europe/Berln");
    /// assert!(Limiter::new(MemoryStore::new(), unknown).is_err());
    /// ```
    #[cfg(feature = "jiff")]
    #[cfg_attr(docsrs, doc(cfg(feature = "jiff")))]
    #[must_use]
    pub const fn calendar_in(self, time_zone: &'static str) -> Self {
        self.in_zone(Zone(time_zone))
    }

    pub(crate) const fn in_month(self) -> Self {
        self.with_kind(Kind::FixedWindow(WindowStart::Month(Zone::UTC)))
    }

    pub(crate) const fn in_zone(self, zone: Zone) -> Self {
        let start = match self.kind {
            Kind::FixedWindow(WindowStart::Month(_)) => WindowStart::Month(zone),
            _ => WindowStart::Zone(zone),
        };
        self.with_kind(Kind::FixedWindow(start))
    }

    /// Like [`fixed_window`](Self::fixed_window), but windows are aligned to the clock, in UTC.
    /// They start at multiples of the period since 1970-01-01 00:00; those of whole weeks start on
    /// a Monday, counted from 1970-01-05. So a day starts at midnight. A period of 30 days is not a
    /// calendar month. Around the end of a window, `2 × n` permits can be taken in a moment: see the
    /// [guide](crate::guide#fixed-window).
    ///
    /// The clock is the Redis server's. A [`MemoryStore`](crate::MemoryStore) reads the system
    /// clock once, when it is created, and then counts with Tokio's clock, so later changes of the
    /// system clock have no effect.
    ///
    /// If a deployment changes the period, old and new instances count separately from the next window on. So
    /// until the deployment has ended, a key can use up both limits. The window that they both charge when the
    /// deployment begins ends with the later of both ends.
    ///
    /// ```
    /// use fleetlimit::Quota;
    ///
    /// let quota = Quota::per_day(1_000).calendar();
    /// assert_eq!(quota.to_string(), "1000/day calendar");
    /// ```
    #[must_use]
    pub const fn calendar(self) -> Self {
        let start = match self.kind {
            Kind::FixedWindow(WindowStart::Month(_)) => WindowStart::Month(Zone::UTC),
            _ => WindowStart::Clock,
        };
        self.with_kind(Kind::FixedWindow(start))
    }

    pub(crate) const fn borrowed(&self) -> u64 {
        self.borrow
    }

    /// The most permits that a key can owe.
    pub(crate) const fn most_debt(&self) -> Option<u64> {
        self.debt
    }

    pub(crate) const fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    pub(crate) const fn is_sliding(&self) -> bool {
        matches!(self.kind, Kind::SlidingWindow(_) | Kind::ApproximateSlidingWindow)
    }

    pub(crate) const fn is_queue(&self) -> bool {
        matches!(self.kind, Kind::Queue(_))
    }

    /// Returns true if it is [`concurrent`](Self::concurrent).
    pub const fn is_concurrent(&self) -> bool {
        matches!(self.kind, Kind::Concurrent)
    }

    pub(crate) const fn is_calendar(&self) -> bool {
        matches!(self.kind, Kind::FixedWindow(start) if !matches!(start, WindowStart::FirstCheck))
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// The permits per [`period`](Self::period).
    pub const fn permits(&self) -> u64 {
        self.permits
    }

    /// The time in which there are [`permits`](Self::permits) more, or the length of a window.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// The most permits that the quota can hold: the burst, or the permits of a window.
    pub const fn capacity(&self) -> u64 {
        match self.burst {
            Some(burst) => burst,
            None => self.default_burst(),
        }
    }

    pub(crate) const fn default_burst(&self) -> u64 {
        match self.kind {
            Kind::Queue(_) => 1,
            _ => self.permits,
        }
    }

    fn parts(&self) -> (u64, Duration, u64, u64, Option<u64>, Kind) {
        (self.permits, self.period, self.capacity(), self.borrow, self.debt, self.kind)
    }
}

impl PartialEq for Quota {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Quota {}

impl Hash for Quota {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.parts().hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limiter, MemoryStore};

    /// As the docs of both say.
    #[tokio::test(start_paused = true)]
    async fn in_a_moment_a_calendar_admits_twice_its_limit_and_a_fixed_window_one_less() {
        const MOMENT: Duration = Duration::from_millis(1);
        let calendar = Quota::per_hour(3).calendar();
        for (quota, most) in [(calendar, 6), (Quota::per_hour(3).fixed_window(), 5)] {
            let limiter = Limiter::new(MemoryStore::new(), quota).unwrap();
            // Windows of a calendar end together, others an hour after the first permit of their key.
            let key = if quota == calendar { "another" } else { "key" };
            let end = limiter.check(key).await.unwrap().reset_after();
            tokio::time::advance(end - MOMENT).await;
            let mut admitted = 0;
            for _before_and_after_the_end in 0..2 {
                while limiter.check("key").await.unwrap().is_allowed() {
                    admitted += 1;
                }
                tokio::time::advance(MOMENT).await;
            }
            assert_eq!(admitted, most, "{quota}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_per_second_is_so_many_in_a_second() {
        let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(3)).unwrap();
        for _second in 0..2 {
            for permit in 0..4 {
                let decision = limiter.check("key").await.unwrap();
                assert_eq!(decision.is_allowed(), permit < 3);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
}
