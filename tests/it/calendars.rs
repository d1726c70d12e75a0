//! Days, weeks and months of time zones.

use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore};
use tokio::time::advance;

use crate::common::Server;
use crate::exact::uncached;

const HOUR: Duration = Duration::from_secs(3_600);

/// At a time in seconds since 1970.
fn at(seconds: u64, quota: Quota) -> Limiter {
    let store = MemoryStore::starting_at(UNIX_EPOCH + Duration::from_secs(seconds));
    Limiter::new(store, quota).unwrap()
}

/// The hours until the quota is as if it had not been used.
async fn hours_left(limiter: &Limiter) -> u64 {
    limiter.check("key").await.unwrap().reset_after().as_secs().div_ceil(3_600)
}

/// The limiter computes new windows while it runs.
#[tokio::test(start_paused = true)]
async fn windows_end_when_a_day_of_25_hours_and_the_days_after_it_end() {
    // Noon of 2026-10-24 in Berlin, the day before the end of summer time.
    let limiter = at(1_792_836_000, Quota::per_day(3).calendar_in("Europe/Berlin"));
    assert_eq!(hours_left(&limiter).await, 12);
    advance(12 * HOUR).await;
    assert_eq!(hours_left(&limiter).await, 25);
    advance(24 * HOUR).await;
    let decision = limiter.check("key").await.unwrap();
    assert_eq!((decision.remaining(), decision.reset_after()), (1, HOUR), "the same day");
    assert!(limiter.check_cost("key", 2).await.unwrap().is_denied());
    advance(HOUR).await;
    let mut midnight: jiff::Zoned = "2026-10-26T00:00[Europe/Berlin]".parse().unwrap();
    for day in 0..400 {
        assert!(limiter.check_cost("key", 3).await.unwrap().is_allowed(), "{midnight}: a new day");
        let next = midnight.tomorrow().unwrap();
        let length = midnight.duration_until(&next).unsigned_abs();
        advance(length - Duration::from_micros(1)).await;
        assert!(limiter.check("key").await.unwrap().is_denied(), "{day} days later: the same day");
        advance(Duration::from_micros(1)).await;
        midnight = next;
    }
}

#[tokio::test(start_paused = true)]
async fn a_month_ends_with_the_month_also_for_a_quota_per_request() {
    // 2027-02-01 00:00 UTC.
    let limiter = at(1_801_440_000, Quota::per_month(5));
    let other = limiter.with_quota(Quota::per_month(9)).unwrap();
    assert_eq!(hours_left(&limiter).await, 28 * 24);
    assert_eq!(other.check("key").await.unwrap().remaining(), 7);
    advance(28 * 24 * HOUR).await;
    assert_eq!(hours_left(&other).await, 31 * 24);
    assert_eq!(limiter.check("key").await.unwrap().remaining(), 3);
}

#[tokio::test]
async fn on_redis_a_day_ends_at_midnight_of_the_time_zone() {
    let server = Server::start().await;
    let limiter = |zone: &'static str, name: &'static str| {
        let policy = Policy::new(name).quota("daily", Quota::per_day(5).calendar_in(zone));
        uncached(RedisStore::open(server.url()).unwrap(), policy)
    };
    let left = async |zone, name| {
        let before = server.time_micros().await;
        let decision = limiter(zone, name).check("key").await.unwrap();
        let after = server.time_micros().await;
        let reset = decision.reset_after().as_micros() as u64;
        (before + reset, after + reset)
    };
    // No summer time here.
    for (zone, name, offset) in [("Asia/Tokyo", "a", 9), ("Asia/Kolkata", "b", 5), ("UTC", "c", 0)]
    {
        let (from, to) = left(zone, name).await;
        let day = 24 * HOUR.as_micros() as u64;
        let offset = offset * HOUR.as_micros() as u64;
        let offset = offset + if name == "b" { HOUR.as_micros() as u64 / 2 } else { 0 };
        // The end is a midnight.
        let midnight = (to + offset) / day * day - offset;
        assert!((from..=to).contains(&midnight), "{zone}: {midnight} in {from}..={to}");
    }
}

#[tokio::test]
async fn an_hour_ends_when_the_clocks_of_the_time_zone_say_so_and_a_minute_as_everywhere() {
    let server = Server::start().await;
    for (quota, name, micros, offset) in [
        (Quota::per_hour(5), "hour", HOUR.as_micros() as u64, HOUR.as_micros() as u64 / 2),
        (Quota::per_minute(5), "minute", 60_000_000, 0),
        (Quota::per_second(5), "second", 1_000_000, 0),
    ] {
        let policy = Policy::new(name).quota("q", quota.calendar_in("Asia/Kolkata"));
        let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy);
        let before = server.time_micros().await;
        let reset = limiter.check("key").await.unwrap().reset_after().as_micros() as u64;
        let (from, to) = (before + reset, server.time_micros().await + reset);
        let end = (to + offset) / micros * micros - offset;
        assert!((from..=to).contains(&end), "{name}: {end} in {from}..={to}");
    }
}

#[test]
fn a_window_that_no_calendar_has_is_an_error_that_says_what_to_change() {
    for (quota, says) in [
        (
            Quota::new(5, 2 * HOUR).calendar_in("Europe/Berlin"),
            "a second, a minute, an hour, a day, a week or a month",
        ),
        (Quota::per_day(5).calendar_in("Berlin"), "there is no time zone `Berlin`"),
        (Quota::per_month(5).burst(6), "a window has no burst"),
        (Quota::per_month(0), "use 1 or more"),
    ] {
        let error = Limiter::new(MemoryStore::new(), quota).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_header_has_the_length_of_this_day() {
    use axum::body::Body;
    use axum::extract::Request;
    use tower::ServiceExt;

    let limiter = at(1_792_836_000, Quota::per_day(3).calendar_in("Europe/Berlin"));
    let app = axum::Router::new()
        .route("/", axum::routing::get(async || "hello"))
        .layer(RateLimitLayer::new(limiter, fleetlimit::resolve::Global));
    for hours in [24, 25, 24] {
        let request = Request::new(Body::empty());
        let response = app.clone().oneshot(request).await.unwrap();
        let policy = response.headers()["ratelimit-policy"].to_str().unwrap();
        assert_eq!(policy, format!("\"default\";q=3;w={}", hours * 3_600));
        advance(24 * HOUR + HOUR / 2).await;
    }
}
