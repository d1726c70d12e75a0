//! A clock of Redis that steps back, as after a correction, or on a promoted replica that was behind.

use std::num::NonZeroUsize;
use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{Costs, Limiter, ManualClock, MemoryStore, Policy, Quota};

use crate::common::{CLOCK, Change, Clock, ClockProxy, Server, connect};
use crate::exact::uncached;

const SECOND: Duration = Duration::from_secs(1);
const STEPS: [u64; 4] = [1, 60, 300, 3_600];

/// Each algorithm, and each form of a value: 20 permits, and the longest time until all are back.
fn quotas() -> [(Quota, Duration); 10] {
    let bucket = Quota::per_second(10).burst(20);
    let window = Quota::new(20, 2 * SECOND);
    [
        (bucket, 2 * SECOND),
        // A tick is a third of a microsecond.
        (Quota::new(30, 3 * SECOND + Duration::from_micros(1)).burst(20), 3 * SECOND),
        (bucket.borrow_up_to(5), 2 * SECOND),
        (bucket.queue(5 * SECOND), 2 * SECOND),
        (bucket.interval_refill(), 2 * SECOND),
        (window.fixed_window(), 2 * SECOND),
        (window.calendar(), 2 * SECOND),
        (Quota::new(20, 60 * SECOND).calendar_in("Europe/Berlin"), 60 * SECOND),
        (window.approximate_sliding_window(), 4 * SECOND),
        (window.sliding_window(4), 2 * SECOND + SECOND / 2),
    ]
}

/// How a key was used before the clock steps back.
#[derive(Clone, Copy, Debug)]
enum Used {
    /// One permit of 20.
    NearlyFull,
    Drained,
    /// By 30 permits, which a bucket repays in three seconds.
    InDebt,
}

async fn used(limiter: &Limiter, used: Used) {
    let cost = if matches!(used, Used::NearlyFull) { 1 } else { 20 };
    assert!(limiter.check_cost("key", cost).await.unwrap().is_allowed());
    if matches!(used, Used::InDebt) {
        limiter.charge("key", 30).await.unwrap();
    }
}

async fn wait(limiter: &Limiter, cost: u64) -> Duration {
    let decision = limiter.check_cost("key", cost).await.unwrap();
    decision.retry_after().unwrap_or_default()
}

/// Alone in a policy, and with others.
fn policies(quota: Quota) -> [Policy; 2] {
    let alone = Policy::new("test").quota("q", quota);
    [alone.clone(), alone.quota("other", Quota::per_hour(1_000_000).fixed_window())]
}

#[tokio::test]
async fn a_clock_that_steps_back_locks_no_key_out_longer_than_a_bucket_takes_to_fill() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    for (number, (quota, longest)) in quotas().into_iter().enumerate() {
        for (form, policy) in policies(quota).into_iter().enumerate() {
            for step in STEPS {
                for state in [Used::NearlyFull, Used::Drained, Used::InDebt] {
                    let prefix = format!("{number}-{form}-{step}-{state:?}");
                    let limiter = uncached(clock.store(&prefix), policy.clone());
                    used(&limiter, state).await;
                    clock.step_back(Duration::from_secs(step)).await;
                    let repaid = if matches!(state, Used::InDebt) {
                        3 * SECOND + SECOND
                    } else {
                        SECOND / 1_000
                    };
                    let place = format!("{quota}: {prefix}");
                    let first = wait(&limiter, 20).await;
                    assert!(first <= longest + repaid, "{place}: {first:?}");
                    // One that lends may have allowed it.
                    if first > Duration::ZERO {
                        clock.advance(first).await;
                        assert_eq!(wait(&limiter, 20).await, Duration::ZERO, "{place}");
                    }
                    // The rest of the step is time like any other.
                    clock.advance(Duration::from_secs(step)).await;
                }
            }
        }
    }
}

/// The permits that are admitted in ten seconds after a key was drained and the clock stepped back, which
/// is tried every 100 ms.
#[tokio::test]
async fn a_clock_that_steps_back_admits_at_most_one_more_burst_and_the_limit_goes_on() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    for (number, (quota, longest)) in quotas().into_iter().enumerate() {
        for (form, policy) in policies(quota).into_iter().enumerate() {
            for step in [1, 60, 3_600] {
                let prefix = format!("{number}-{form}-{step}");
                let limiter = uncached(clock.store(&prefix), policy.clone());
                used(&limiter, Used::Drained).await;
                clock.step_back(Duration::from_secs(step)).await;
                let mut admitted = 0;
                for _ in 0..100 {
                    for _ in 0..3 {
                        let costs = Costs::new(1);
                        let decision = limiter.check_cost("key", costs).await.unwrap();
                        admitted += u64::from(decision.is_allowed());
                    }
                    clock.advance(SECOND / 10).await;
                }
                let (most, least) = match longest > 10 * SECOND {
                    true => (20, 0),
                    // 10 per second, and a burst of 20.
                    false => (100 + 20, 100 - 40),
                };
                assert!((least..=most).contains(&admitted), "{quota} {prefix}: {admitted}");
            }
        }
    }
}

/// Not only the first step, and whatever happens between them.
#[tokio::test]
async fn many_steps_back_do_not_add_up() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    for (number, (quota, longest)) in quotas().into_iter().enumerate() {
        let limiter = uncached(clock.store(&number.to_string()), quota);
        used(&limiter, Used::Drained).await;
        for _ in 0..20 {
            clock.step_back(Duration::from_secs(70)).await;
            assert!(wait(&limiter, 20).await <= longest, "{quota}");
            clock.advance(SECOND / 7).await;
            let _ = limiter.check("key").await.unwrap();
        }
        clock.advance(longest).await;
        assert!(wait(&limiter, 1).await <= longest, "{quota}");
        clock.advance(longest).await;
        assert!(limiter.check("key").await.unwrap().is_allowed(), "{quota}");
    }
}

/// A revision with a larger burst may have left the same value. For it all permits stay used.
#[tokio::test]
async fn what_a_larger_burst_has_used_still_counts_for_it_when_a_smaller_one_cannot_tell() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    // A value of the other form says when it was written, so that all of it counts.
    let other_form = Quota::new(30, 3 * SECOND + Duration::from_micros(1));
    for (quota, expected) in [(Quota::per_second(10), 100), (other_form, 3_100)] {
        let prefix = quota.permits().to_string();
        let [large, small] =
            [40, 10].map(|burst| uncached(clock.store(&prefix), quota.burst(burst)));
        assert!(large.check_cost("key", 40).await.unwrap().is_allowed());
        let wait = small.check("key").await.unwrap().retry_after().unwrap();
        assert_eq!(wait.as_millis(), expected);
        let mut admitted = 0;
        for _ in 0..60 {
            clock.advance(SECOND / 10).await;
            for limiter in [&small, &large, &small] {
                admitted += u64::from(limiter.check("key").await.unwrap().is_allowed());
            }
        }
        // What refills, and not what the smaller one takes for forgiven.
        assert!((50..=61).contains(&admitted), "{quota}: {admitted}");
    }
}

/// Revisions of 20 permits whose empty bucket fills within two seconds, with other numbers and quotas.
fn revisions() -> [Policy; 11] {
    let alone = |quota| Policy::new("test").quota("q", quota);
    let window = Quota::new(20, 2 * SECOND);
    let bucket = Quota::per_second(10).burst(20);
    let other = Quota::per_hour(1_000_000).fixed_window();
    [
        alone(bucket),
        alone(Quota::per_second(20).burst(20)),
        // A tick is a third of a microsecond.
        alone(Quota::new(30, 3 * SECOND + Duration::from_micros(1)).burst(20)),
        alone(bucket.borrow_up_to(5)),
        alone(bucket.queue(SECOND)),
        alone(bucket).quota("other", other),
        Policy::new("test").quota("first", other).quota("second", Quota::per_second(20).burst(20)),
        alone(Quota::per_second(10).burst(20)).quota("r", Quota::per_second(11).burst(20)),
        // These keep the buckets of the others.
        alone(window.fixed_window()),
        alone(bucket.interval_refill()),
        Policy::new("test").quota("w", window.sliding_window(4)),
    ]
}

/// While a key is at its limit, what is doubted does not become less.
#[tokio::test]
async fn a_deploy_after_a_step_locks_no_key_out_whatever_it_changes() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    // With what one of them lends.
    let longest = 2 * SECOND + SECOND / 2 + Duration::from_micros(1);
    for (number, old) in revisions().into_iter().enumerate() {
        for (other, new) in revisions().into_iter().enumerate() {
            // Checks of the old revision between the step and the deploy.
            for checks in [0, 1, 40] {
                let prefix = format!("{number}-{other}-{checks}");
                let old = uncached(clock.store(&prefix), old.clone());
                let new = uncached(clock.store(&prefix), new.clone());
                used(&old, Used::Drained).await;
                clock.step_back(Duration::from_secs(600)).await;
                for _ in 0..checks {
                    let _ = old.check("key").await.unwrap();
                    clock.advance(SECOND / 11).await;
                }
                // And back.
                for limiter in [&new, &old, &new] {
                    let first = wait(limiter, 20).await;
                    assert!(first <= longest, "{prefix}: {first:?}");
                    if first > Duration::ZERO {
                        clock.advance(first).await;
                        assert_eq!(wait(limiter, 20).await, Duration::ZERO, "{prefix}");
                    }
                }
                clock.advance(Duration::from_secs(600)).await;
            }
        }
    }
}

/// A debt is no reason to wait longer than it takes to repay, and none to wait less.
#[tokio::test]
async fn a_deploy_forgives_no_debt_also_after_a_step() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    // All of a bucket of 10 per second under this name.
    let kept = revisions().into_iter().filter(|policy| {
        let text: Vec<_> = policy.quotas().map(|(name, quota)| format!("{name} {quota}")).collect();
        text[0].starts_with("q 10/s") && !text[0].contains("interval")
    });
    let kept: Vec<_> = kept.collect();
    assert_eq!(kept.len(), 5);
    for (number, old) in kept.iter().enumerate() {
        for (other, new) in kept.iter().enumerate() {
            for step in [0, 600] {
                let prefix = format!("{number}-{other}-{step}");
                let old = uncached(clock.store(&prefix), old.clone());
                let new = uncached(clock.store(&prefix), new.clone());
                old.charge("key", 100).await.unwrap();
                clock.step_back(Duration::from_secs(step)).await;
                // Until 19 are in use.
                let expected = Duration::from_millis(8_100);
                assert_eq!(wait(&new, 1).await, expected, "{prefix}");
                assert_eq!(wait(&old, 1).await, expected, "{prefix}");
                clock.advance(expected).await;
                assert_eq!(wait(&new, 1).await, Duration::ZERO, "{prefix}");
                clock.advance(Duration::from_secs(600)).await;
            }
        }
    }
}

/// What a script says of a value, and what the client replays, is the same for any value.
#[tokio::test]
async fn a_hostile_value_lets_no_check_pass_that_is_not_charged() {
    let server = Server::start().await;
    let clock = Clock::start(&server).await;
    let mut admin = connect(&server.url()).await.unwrap();
    struct Value {
        burst: u64,
        /// The ticks of a permit and of a microsecond.
        rate: [f64; 2],
        /// When the bucket is full: in microseconds from now, and ticks.
        full: [f64; 2],
        /// When it was empty, in the same way.
        empty: &'static [[f64; 2]],
    }
    let value = |full, empty| Value { burst: 20, rate: [1e5, 1.0], full, empty };
    let largest = [52, 40].map(|exponent| (1u64 << exponent) as f64);
    let values = [
        value([2e6, 0.0], &[[0.0, 0.0], [-1e6, 0.0]]),
        value([2e6, 0.0], &[[f64::NEG_INFINITY, 0.0], [-1e6, 0.0]]),
        value([2e6, 0.0], &[[0.5, 0.0], [-1e6, 0.0]]),
        value([2e6, 0.0], &[[-1e6, 0.5]]),
        value([2e6, 0.0], &[[-1e6, f64::NAN]]),
        value([2e6 + 0.5, 0.0], &[]),
        value([9e6, 0.0], &[[1e300, 0.0]]),
        Value { rate: [1e5, 7.0], ..value([2e6, 0.5], &[[-1e6, 0.0]]) },
        Value { burst: 1 << 20, rate: largest, ..value([1e3, 0.0], &[[-67_108_864.0, 0.0]]) },
    ];
    for (number, Value { burst, rate, full, empty }) in values.into_iter().enumerate() {
        let (prefix, now) = (number.to_string(), clock.now() as f64);
        let mut bytes = vec![1, 1 + empty.len() as u8, 0, 0, 0, 0, 0, 1, 16, 0, 16];
        let push = |numbers: &[f64]| {
            numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>()
        };
        bytes.extend(push(&rate));
        empty.iter().for_each(|_| bytes.extend([0, 0, 0, 0, 6, 0, 0, 24]));
        bytes.extend(push(&[now, now + full[0], full[1]]));
        empty.iter().for_each(|at| bytes.extend(push(&[now + full[0], now + at[0], at[1]])));
        let key = format!("{prefix}:{{key}}:default:t2");
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(bytes).arg("PX").arg(100_000);
        set.query_async::<()>(&mut admin).await.unwrap();
        let quota = Quota::per_second(20).burst(burst);
        let limiter = uncached(clock.store(&prefix), quota);
        let decision = limiter.check("key").await.unwrap();
        let peeked = limiter.peek("key").await.unwrap();
        assert_eq!(decision.remaining(), peeked.remaining(), "{number}: {decision:?}");
        assert_eq!(decision.reset_after(), peeked.reset_after(), "{number}: {decision:?}");
    }
}

/// The server keeps what it would expire at its own time.
const FOREVER: Change = ("'PXAT',", "'PXAT', '9000000000000000' or");

/// Nothing can have happened before 1970.
#[tokio::test]
async fn a_clock_that_steps_back_beyond_the_start_of_a_window_or_to_1970_locks_no_key_out() {
    let server = Server::start().await;
    let clock = ClockProxy::start(&server, &[CLOCK, FOREVER]).await;
    let now = UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    clock.set_time(now).await;
    let [bucket, slower] = [Quota::per_second(10), Quota::per_day(1)]
        .map(|quota| uncached(clock.store("1970"), quota.burst(20)));
    // 1970 is in the window, or in the one before.
    let year = Duration::from_secs(365 * 86_400);
    let [calendar, sliding] = [97, 70].map(|years| Quota::new(20, years * year));
    let windows =
        [calendar.fixed_window(), calendar.calendar(), sliding.approximate_sliding_window()];
    let windows = windows
        .map(|quota| uncached(clock.store(&quota.to_string().replace([' ', '/'], "-")), quota));
    used(&bucket, Used::Drained).await;
    for limiter in &windows {
        used(limiter, Used::NearlyFull).await;
    }
    clock.set_time(now - 1_000_000).await;
    for limiter in &windows {
        assert_eq!(limiter.check("key").await.unwrap().remaining(), 18);
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), 18);
    }
    clock.set_time(60_000_000).await;
    assert!(wait(&bucket, 20).await <= 2 * SECOND);
    clock.set_time(61_000_000).await;
    assert_eq!(wait(&slower, 1).await, Duration::ZERO);
    let day = Duration::from_secs(86_400);
    for limiter in [&slower, &bucket] {
        let wait = wait(limiter, 20).await;
        assert!(wait <= 20 * day, "{wait:?}");
    }
}

/// The memory store has a clock that never steps back.
#[tokio::test]
async fn a_manual_clock_that_is_set_back_locks_nobody_out() {
    let start = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    for (quota, longest) in quotas() {
        let clock = ManualClock::new(start);
        let keys = NonZeroUsize::new(10).unwrap();
        let limiter = uncached(MemoryStore::with_manual_clock(keys, clock.clone()), quota);
        used(&limiter, Used::Drained).await;
        clock.advance_to(start - Duration::from_secs(300));
        assert!(wait(&limiter, 20).await <= longest, "{quota}");
    }
}
