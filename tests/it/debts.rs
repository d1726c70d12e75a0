//! What is charged without a check beyond what is left: a debt, which is repaid before the next check is
//! allowed.

use std::time::Duration;

use fleetlimit::{Costs, Limiter, MemoryStore, Policy, Quota, RedisStore};
use tokio::time::advance;

use crate::common::{Clock, Server};
use crate::exact::uncached;
use crate::log::Log;
use crate::metrics::{recorder, value};

const MINUTE: Duration = Duration::from_secs(60);

/// Buckets of 10,000 per minute, of each kind that repays a debt, and in each form of a value.
fn buckets() -> [Quota; 6] {
    let quota = Quota::per_minute(10_000);
    [
        quota,
        quota.burst(10_001).interval_refill(),
        quota.borrow_up_to(10),
        quota.burst(10_000).queue(MINUTE),
        // A tick is a third of a microsecond.
        Quota::new(30_000, 3 * MINUTE).burst(10_000),
        Quota::new(70_000, 7 * MINUTE).burst(10_000),
    ]
}

/// A debt that is forgiven is a limit that is not enforced.
#[tokio::test]
async fn a_charge_of_five_times_the_limit_is_repaid_by_four_more_periods() {
    let server = Server::start().await;
    for quota in buckets() {
        let limiter = uncached(RedisStore::open(server.url()).unwrap(), quota);
        limiter.reset("key").await.unwrap();
        let before = server.time_micros().await;
        limiter.charge("key", 50_000).await.unwrap();
        let denied = limiter.check("key").await.unwrap();
        let passed = Duration::from_micros(server.time_micros().await - before);
        // Until 9,999 are in use.
        let expected = match quota.to_string().contains("interval") {
            true => 4 * MINUTE,
            false => 4 * MINUTE + Duration::from_millis(6),
        };
        let wait = denied.retry_after().unwrap();
        assert!(wait <= expected && wait + passed >= expected, "{quota}: {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_memory_a_charge_of_five_times_the_limit_is_repaid_by_four_more_periods() {
    for quota in buckets() {
        let limiter = Limiter::new(MemoryStore::new(), quota).unwrap();
        limiter.charge("key", 50_000).await.unwrap();
        let wait = limiter.check("key").await.unwrap().retry_after().unwrap();
        assert!(wait >= 4 * MINUTE && wait < 5 * MINUTE, "{quota}: {wait:?}");
        advance(wait - Duration::from_micros(1)).await;
        assert!(limiter.check("key").await.unwrap().is_denied(), "{quota}");
        advance(Duration::from_micros(1)).await;
        assert!(limiter.check("key").await.unwrap().is_allowed(), "{quota}");
    }
}

/// Charges 500 tokens for each stream that ends, and returns how many were taken in so many minutes.
/// A stream starts if a permit is left, and takes ten seconds.
async fn streams(
    limiter: &Limiter,
    count: usize,
    minutes: u64,
    mut advance: impl AsyncFnMut(Duration),
) -> u64 {
    let mut tokens = 0;
    for _ in 0..6 * minutes {
        let checks = (0..count).map(|_| limiter.check_cost("key", Costs::new(0).charged_later()));
        let checks = futures_util::future::join_all(checks).await;
        let started = checks.iter().filter(|check| check.as_ref().unwrap().is_allowed()).count();
        advance(Duration::from_secs(10)).await;
        let charges = (0..started).map(|_| limiter.charge("key", 500));
        for result in futures_util::future::join_all(charges).await {
            result.unwrap();
        }
        tokens += 500 * started as u64;
    }
    tokens
}

/// A burst, and what the streams that had started when it was used up take.
fn most(count: usize, minutes: u64) -> u64 {
    10_000 * (minutes + 1) + 500 * count as u64
}

#[tokio::test]
async fn streams_that_are_charged_at_their_end_stay_at_the_budget() {
    let server = Server::start().await;
    for (count, minutes) in [(100, 60), (400, 100)] {
        for quota in [buckets()[0], buckets()[1], buckets()[5]] {
            let mut clock = Clock::start(&server).await;
            let prefix = format!("{count} {quota}").replace([' ', '/'], "-");
            let limiter = uncached(clock.store(&prefix), quota);
            let elapse = async |time| clock.advance(time).await;
            let on_redis = streams(&limiter, count, minutes, elapse).await;
            let most = most(count, minutes);
            assert!(on_redis <= most && on_redis > most / 2, "{count} {quota}: {on_redis}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_memory_streams_that_are_charged_at_their_end_stay_at_the_budget() {
    for (count, minutes) in [(100, 60), (400, 100)] {
        for quota in buckets() {
            let limiter = Limiter::new(MemoryStore::new(), quota).unwrap();
            let tokens = streams(&limiter, count, minutes, async |time| advance(time).await).await;
            let most = most(count, minutes);
            assert!(tokens <= most && tokens > most / 2, "{count} {quota}: {tokens}");
        }
    }
}

#[tokio::test]
async fn a_refill_repays_a_debt_with_all_permits_of_its_period_on_redis() {
    let server = Server::start().await;
    let mut clock = Clock::start(&server).await;
    let quota = Quota::per_minute(30).burst(10).interval_refill();
    let limiter = uncached(clock.store("refill"), quota);
    assert!(limiter.check_cost("key", 10).await.unwrap().is_allowed());
    limiter.charge("key", 45).await.unwrap();
    for left in [0, 10] {
        clock.advance(MINUTE).await;
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), left);
    }
}

/// On both stores, to the permit.
#[tokio::test]
async fn a_debt_is_as_large_as_the_quota_allows_and_what_is_forgiven_is_counted_and_logged() {
    let server = Server::start().await;
    for (number, quota) in [
        Quota::per_day(100),
        Quota::new(7, Duration::from_secs(86_400)).burst(100),
        Quota::per_day(100).borrow_up_to(50),
        Quota::per_day(100).interval_refill(),
        Quota::per_day(100).fixed_window(),
        Quota::per_day(100).approximate_sliding_window(),
        Quota::per_day(100).sliding_window(6),
    ]
    .into_iter()
    .enumerate()
    {
        let borrowed = if number == 2 { 50 } else { 0 };
        let policy = Policy::new("api").quota("rate", quota.debt_up_to(300));
        let redis = RedisStore::open(server.url()).unwrap().key_prefix(number.to_string());
        for limiter in [uncached(redis, policy.clone()), uncached(MemoryStore::new(), policy)] {
            let (prometheus, _recorder) = recorder();
            let (log, _log) = Log::capture();
            limiter.charge("key", 150).await.unwrap();
            assert_eq!(log.events(), [""; 0], "{quota}");
            for permits in [1_000, 7, u64::MAX] {
                limiter.charge("key", permits).await.unwrap();
            }
            limiter.credit("key", 300 + borrowed).await.unwrap();
            let left = limiter.peek("key").await.unwrap();
            assert_eq!(left.remaining(), 0, "{quota}");
            limiter.credit("key", 1).await.unwrap();
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), 1, "{quota}");

            let forgiven = 150 + 1_000 + 7 + i64::MAX as u64 - 400 - borrowed;
            let text = prometheus.render();
            let labels = [("fleetlimit_policy", "api")];
            let counted = value(&text, "fleetlimit_charges_forgiven_total", &labels);
            assert_eq!(counted, Some(forgiven as f64), "{quota}");
            let lines: Vec<_> =
                log.events().into_iter().filter(|line| line.contains("not charged")).collect();
            assert_eq!(lines.len(), 1, "at a bounded rate: {lines:?}");
            assert!(lines[0].contains("WARN") && lines[0].contains("debt_up_to"), "{lines:?}");
        }
    }
}
