//! The state in Redis: each key has a TTL, invalid values are repaired, denials change nothing, and
//! the documented permissions are sufficient and necessary.

use std::time::Duration;

use fleetlimit::{Costs, Decision, ErrorKind, Limiter, Policy, Quota, RedisStore, Source};
use futures_util::future::{join, join_all};

use crate::common::{BOUND, Sentinel, Server, start, wait_until};
use crate::exact::{test_limiter, uncached};
use crate::oracle::{Oracle, State};

const REDIS_KEY: &str = "fleetlimit:{key}:default:t2";
const DAILY: Quota = Quota::per_day(1).burst(10);

/// Of each form of the value and each algorithm, all with 10 permits. The first two are token buckets.
const QUOTAS: [Quota; 7] = [
    DAILY,
    Quota::new(7, Duration::from_secs(86_400)).burst(10),
    DAILY.interval_refill(),
    Quota::new(10, WEEKS).fixed_window(),
    Quota::new(10, WEEKS).calendar(),
    Quota::new(10, WEEKS).approximate_sliding_window(),
    Quota::new(10, WEEKS).sliding_window(60),
];
const WEEKS: Duration = Duration::from_secs(60 * 86_400);

fn limiter(server: &Server, quota: Quota) -> Limiter {
    uncached(RedisStore::open(server.url()).unwrap(), quota)
}

async fn ttl(server: &Server) -> i64 {
    server.query(&["PTTL", REDIS_KEY]).await
}

async fn value(server: &Server) -> Option<Vec<u8>> {
    server.query(&["GET", REDIS_KEY]).await
}

/// The value of a single token bucket with a common rate.
async fn text(server: &Server) -> String {
    server.query(&["GET", REDIS_KEY]).await
}

#[tokio::test]
async fn a_key_expires_within_a_second_after_its_bucket_is_full_and_not_before() {
    let server = Server::start().await;
    for (permits, micros, burst) in [
        (1, 1, 1),
        (1, 1_500, 1),
        (3, 1_000_000, 7),
        (1_000_000, 1_000_000, 1),
        (1, 86_400_000_000, 4_700),
        (999_983, 1_000_000, 3),
        (1, 100_000_000, 1_000_000),
    ] {
        let oracle = Oracle { permits, micros, burst };
        let limiter = limiter(&server, oracle.quota());
        limiter.reset("key").await.unwrap();
        for cost in [1, burst, burst / 2, 1] {
            let _ = limiter.check_cost("key", cost).await.unwrap();
            let expires = server.expires_at(REDIS_KEY).await;
            if expires == -2 {
                continue;
            }
            let full_at = oracle.full_at(&server, REDIS_KEY).await;
            let Some(full_at) = full_at else { continue };
            let expires = oracle.micros_to_ticks(expires as u64 * 1_000);
            assert!(
                full_at <= expires && expires < full_at + oracle.micros_to_ticks(1_001_001),
                "{oracle:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_key_of_any_algorithm_expires_after_all_its_quotas_are_unused_and_soon() {
    let server = Server::start().await;
    let mut policies: Vec<Policy> = QUOTAS.map(Policy::from).into();
    let add = |policy: Policy, (name, quota): (&'static str, _)| policy.quota(name, quota);
    policies.push(
        ["a", "b", "c", "d", "e", "f", "g"]
            .into_iter()
            .zip(QUOTAS)
            .fold(Policy::new("default"), add),
    );
    for policy in policies {
        let limiter = uncached(RedisStore::open(server.url()).unwrap(), policy.clone());
        limiter.reset("key").await.unwrap();
        for _ in 0..10 {
            let before = server.time_micros().await;
            let decision = limiter.check("key").await.unwrap();
            decision.ensure_allowed().unwrap();
            let resets = decision.quotas().map(|quota| quota.reset_after().as_micros() as u64);
            let expires = server.expires_at(REDIS_KEY).await as u64;
            let needed = before + resets.max().unwrap();
            // An approximate sliding window keeps what it used for two windows.
            let latest = needed + 62 * 86_400_000_000;
            assert!((needed..latest).contains(&(expires * 1_000)), "{policy:?}");
        }
    }
}

/// As until the end of the second, or of the granule, in which a key expires.
#[tokio::test]
async fn what_is_stored_longer_than_it_counts_counts_for_nothing() {
    let server = Server::start().await;
    const PERIOD: u64 = 100_000;
    const SHORT: Quota = Quota::new(10, Duration::from_micros(PERIOD));
    for quota in [
        SHORT,
        Quota::new(7, Duration::from_micros(PERIOD)).burst(5),
        SHORT.interval_refill(),
        SHORT.fixed_window(),
        SHORT.calendar(),
        SHORT.approximate_sliding_window(),
        SHORT.sliding_window(10),
    ] {
        let (limiter, most) = (limiter(&server, quota), quota.capacity());
        limiter.reset("key").await.unwrap();
        // At the starts of windows: each two or three after the one before.
        for (pause, cost) in [(1, most), (1, 1), (2, most)] {
            let from = (server.time_micros().await).div_ceil(PERIOD) * PERIOD + pause * PERIOD;
            let is_later = async || server.time_micros().await >= from;
            wait_until("the quota is unused again", BOUND, is_later).await;
            let decision = limiter.check_cost("key", cost).await.unwrap();
            let found = (decision.is_allowed(), decision.remaining());
            assert_eq!(found, (true, most - cost), "{quota}");
            let is_denied = limiter.check_cost("key", most).await.unwrap().is_denied();
            // Unless the machine has paused.
            let used_until = from + decision.reset_after().as_micros() as u64;
            assert!(is_denied || server.time_micros().await >= used_until, "{quota}");
            server.command(&["PEXPIRE", REDIS_KEY, "60000"]).await;
        }
    }
}

/// `INCRBY` keeps the expiry, and works only on what Redis reads as an integer.
#[tokio::test]
async fn a_key_that_is_changed_by_incrby_never_expires_before_its_bucket_is_full() {
    let server = Server::start().await;
    let oracle = Oracle { permits: 10, micros: 1_000, burst: 20_000 };
    let url = format!("redis://fleetlimit:secret@127.0.0.1:{}/", server.port());
    let has_incremented =
        async || server.command_stats().await.get("incrby").is_some_and(|&calls| calls > 0);
    for (permission, is_granted) in [("-incrby", false), ("+incrby", true)] {
        server.grant(&[&Server::REQUIRED_COMMANDS[..], &[permission]].concat()).await;
        let limiter = uncached(RedisStore::open(url.as_str()).unwrap(), oracle.quota());
        server.command(&["CONFIG", "RESETSTAT"]).await;
        limiter.reset("key").await.unwrap();
        let mut found = oracle.full();
        // From less than a second to more than one.
        for remaining in (0..100).rev() {
            let decision = limiter.check_cost("key", 190).await.unwrap();
            let after = State::read(&server, REDIS_KEY).await.unwrap();
            oracle.verify(found, 190, &decision, after);
            let expires = server.expires_at(REDIS_KEY).await;
            let second = (after.full_at as i64 + 1_000) / 1_000_000;
            let end = (second + 1) * 1_000;
            assert!((end..end + 1_000).contains(&expires), "{remaining} to go");
            found = after;
        }
        // Numbers in forms that fleetlimit never writes, and of which `INCRBY` rejects the second.
        for form in ["0", "+"] {
            let text = self::text(&server).await;
            let expiry = server.expires_at(REDIS_KEY).await.to_string();
            server.command(&["SET", REDIS_KEY, &format!("{form}{text}"), "PXAT", &expiry]).await;
            let decision = limiter.check("key").await.unwrap();
            let after = State::read(&server, REDIS_KEY).await.unwrap();
            oracle.verify(found, 1, &decision, after);
            found = after;
        }
        assert_eq!(has_incremented().await, is_granted);
    }
}

/// `SETRANGE` keeps the expiry.
#[tokio::test]
async fn a_key_that_is_changed_in_place_never_expires_before_its_quotas_are_unused() {
    let server = Server::start().await;
    let url = format!("redis://fleetlimit:secret@127.0.0.1:{}/", server.port());
    let policy = Policy::new("default")
        .quota("fast", Quota::new(10, Duration::from_millis(1)).burst(20_000))
        .quota("slow", Quota::new(2_000_000, Duration::from_secs(20)).burst(4_000_000));
    for (permission, is_granted) in [("-setrange", false), ("+setrange", true)] {
        server.grant(&[&Server::REQUIRED_COMMANDS[..], &[permission]].concat()).await;
        let limiter = uncached(RedisStore::open(url.as_str()).unwrap(), policy.clone());
        server.command(&["CONFIG", "RESETSTAT"]).await;
        limiter.reset("key").await.unwrap();
        for n in 0..100 {
            let before = server.time_micros().await;
            let costs = Costs::new(150).with("slow", 30_000);
            let decision = limiter.check_cost("key", costs).await.unwrap();
            let resets = decision.quotas().map(|quota| quota.reset_after().as_micros() as u64);
            let expires = server.expires_at(REDIS_KEY).await as u64;
            assert!(expires * 1_000 > before + resets.max().unwrap(), "{n}");
        }
        let stats = server.command_stats().await;
        assert_eq!(stats.get("setrange").is_some_and(|&calls| calls > 50), is_granted);
        assert_eq!(stats["set"] > 50, !is_granted);
    }
}

#[tokio::test]
async fn a_denied_check_does_not_change_the_bucket() {
    let server = Server::start().await;
    for quota in QUOTAS {
        let limiter = limiter(&server, quota);
        limiter.reset("key").await.unwrap();
        limiter.check_cost("key", 8).await.unwrap().ensure_allowed().unwrap();
        let before = (value(&server).await, server.expires_at(REDIS_KEY).await);
        for cost in [3, 10, 11, u64::MAX] {
            assert!(!limiter.check_cost("key", cost).await.unwrap().is_allowed());
        }
        limiter.peek("key").await.unwrap().ensure_allowed().unwrap();
        limiter.check_cost("key", 0).await.unwrap().ensure_allowed().unwrap();
        let after = (value(&server).await, server.expires_at(REDIS_KEY).await);
        assert_eq!(before, after);
    }
}

#[tokio::test]
async fn an_invalid_value_becomes_an_empty_bucket_with_a_ttl() {
    repair_invalid_values(&Server::start().await).await;
}

/// # Panics
/// If a value that no revision can have written does not become an empty bucket.
pub(crate) async fn repair_invalid_values(server: &Server) {
    let days = async |n: u64| server.time_micros().await + n * 86_400_000_000;
    let (soon, far, never) = (days(1).await, days(20).await, days(60_000).await);
    let of_daily = [format!("{far}008"), format!("{far}:0:86400000000:1")];
    let of_others = [format!("{far}366"), format!("{far}:5:86400000000:7")];
    let no_quota = [
        format!("{soon}:0:0:1"),
        format!("{soon}:0:1:0"),
        format!("{soon}:0:4503599627370497:1"),
        format!("{soon}:0:1:4503599627370497"),
        format!("{never}366"),
        format!("{never}008"),
        format!("{soon}:9007199254740993:1:7"),
        format!("{soon}:{0}:{0}:{0}", "9".repeat(400)),
    ];
    let unparsable = [
        "",
        "x",
        "008",
        "nan008",
        "inf008",
        "-inf008",
        "-1008",
        "1e300008",
        "9007199254740993008",
        "1.5008",
        "0x7fffffffffffffff008",
        "nan366",
        "-1366",
        "1.5366",
        "0x7fffffff366",
        "1:2:3",
        ":::",
        ":2:3:4",
        "1:2:3:",
        "1:2:3:4:5",
        "1:-2:3:4",
    ];
    let invalid: Vec<&str> =
        [&of_daily[..], &of_others, &no_quota].concat().leak().iter().map(String::as_str).collect();
    let invalid: Vec<&str> = invalid.into_iter().chain(unparsable).collect();
    // A number is a token bucket, which means nothing to other algorithms.
    let malformed =
        ["", "x", "nan008", "1:2:3", "\u{1}", "\u{1}\u{1}", "\u{1}\u{1}\u{0}"].as_slice();
    for quota in QUOTAS {
        let limiter = limiter(server, quota);
        let is_bucket = QUOTAS[..2].contains(&quota);
        for &value in if is_bucket { &invalid } else { malformed } {
            server.command(&["SET", REDIS_KEY, value, "PX", "100000"]).await;
            let decision = limiter.check("key").await.unwrap();
            assert!(!decision.is_allowed(), "{value:?}: {decision:?}");
            assert_eq!(decision.remaining(), 0, "{value:?}");
            assert!(
                ttl(server).await > 100_000,
                "{value:?} is repaired by the check that finds it"
            );
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), 0, "{value:?}");
        }
    }
}

#[tokio::test]
async fn a_value_that_is_too_short_or_too_long_becomes_an_empty_bucket() {
    let server = Server::start().await;
    for quota in &QUOTAS[1..] {
        let limiter = limiter(&server, *quota);
        limiter.reset("key").await.unwrap();
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
        let whole = value(&server).await.unwrap();
        let short = whole.split_last().unwrap().1;
        let long = [&whole, &[0][..]].concat();
        for value in [short, &long] {
            server.command(&[b"SET", REDIS_KEY.as_bytes(), value, b"PX", b"100000"]).await;
            let decision = limiter.check("key").await.unwrap();
            assert!(decision.is_denied() && decision.remaining() == 0, "{quota}: {decision:?}");
            assert!(ttl(&server).await > 100_000, "{quota}");
        }
    }
}

#[tokio::test]
async fn a_value_of_another_type_fails_one_check_and_becomes_an_empty_bucket() {
    let server = Server::start().await;
    for quota in QUOTAS {
        let limiter = limiter(&server, quota);
        let other = async || limiter.check("other").await;
        for command in [&["RPUSH", REDIS_KEY, "x"][..], &["HSET", REDIS_KEY, "field", "x"]] {
            server.command(&["DEL", REDIS_KEY]).await;
            server.command(command).await;
            // Also in one call with another key.
            let (result, _) = join(limiter.check("key"), other()).await;
            let error = result.unwrap_err();
            assert!(error.to_string().starts_with("WRONGTYPE"), "{quota}: {error}");
            let decision = limiter.check("key").await.unwrap();
            assert!(decision.is_denied() && decision.remaining() == 0, "{quota}: {decision:?}");
            assert!(ttl(&server).await > 100_000, "{quota}");
        }
    }
}

/// What a key says about the time must not become the time of the other keys in a call.
#[tokio::test]
async fn an_impossible_time_of_a_value_spoils_no_other_key() {
    let server = Server::start().await;
    let future = 1e6 * 4e9;
    for quota in &QUOTAS[1..] {
        let limiter = limiter(&server, *quota);
        limiter.reset("key").await.unwrap();
        limiter.check("key").await.unwrap().ensure_allowed().unwrap();
        let whole = value(&server).await.unwrap();
        // It stands between the numbers and the cells.
        let at = 11 + usize::from(whole[8]);
        let written =
            |time: f64| [&whole[..at], &time.to_be_bytes()[..], &whole[at + 8..]].concat();
        let too_short = written(future).split_last().unwrap().1.to_vec();
        let impossible = [1e300, f64::INFINITY, f64::NAN, 2f64.powi(70), -1.0, 0.5];
        let values = impossible.map(written).into_iter().chain([too_short]);
        for (n, value) in values.enumerate() {
            server.command(&[b"SET", REDIS_KEY.as_bytes(), &value, b"PX", b"100000"]).await;
            let keys = (0..20).map(|other| format!("{quota} {n} {other}"));
            let keys: Vec<_> = ["key".to_owned()].into_iter().chain(keys).collect();
            // The first check is sent alone.
            let warm = limiter.check("warm");
            let checks = keys.iter().map(|key| limiter.check_cost(key.as_str(), 6));
            let (_, decisions) = join(warm, join_all(checks)).await;
            let is_allowed =
                |decision: &Result<Decision, _>| decision.as_ref().unwrap().is_allowed();
            assert!(!is_allowed(&decisions[0]), "{quota}: {n} is corrupt");
            assert!(decisions[1..].iter().all(is_allowed), "{quota}: {n}");
            for key in &keys[1..] {
                let again = limiter.check_cost(key.as_str(), 6).await.unwrap();
                assert!(again.is_denied(), "{quota}: {n} let {key} have a second burst");
            }
        }
    }
}

#[tokio::test]
async fn a_missing_ttl_is_restored_whether_the_check_is_allowed_or_denied() {
    let server = Server::start().await;
    for quota in &QUOTAS[..2] {
        let limiter = limiter(&server, *quota);
        for consumed in [1, 10] {
            limiter.reset("key").await.unwrap();
            limiter.check_cost("key", consumed).await.unwrap().ensure_allowed().unwrap();
            server.command(&["PERSIST", REDIS_KEY]).await;
            assert_eq!(ttl(&server).await, -1);
            let allowed = limiter.check("key").await.unwrap().is_allowed();
            assert_eq!(allowed, consumed == 1);
            assert!(ttl(&server).await > 0);
        }
        limiter.check_cost("key", 0).await.unwrap().ensure_allowed().unwrap();
        server.command(&["PERSIST", REDIS_KEY]).await;
        let _ = limiter.peek("key").await.unwrap();
        assert!(ttl(&server).await > 0);
    }
}

/// An allowed check may keep the expiry, and does not look whether there is one.
#[tokio::test]
async fn a_denied_check_or_a_peek_restores_a_missing_ttl_for_every_algorithm() {
    let server = Server::start().await;
    for quota in QUOTAS {
        let limiter = limiter(&server, quota);
        limiter.reset("key").await.unwrap();
        limiter.check_cost("key", 9).await.unwrap().ensure_allowed().unwrap();
        server.command(&["PERSIST", REDIS_KEY]).await;
        assert!(limiter.check_cost("key", 2).await.unwrap().is_denied());
        assert!(ttl(&server).await > 0, "{quota}");
        server.command(&["PERSIST", REDIS_KEY]).await;
        let _ = limiter.peek("key").await.unwrap();
        assert!(ttl(&server).await > 0, "{quota}");
        // A bucket that would never have been full has no permits, whatever its value says.
        limiter.reset("key").await.unwrap();
        limiter.check_cost("key", 9).await.unwrap().ensure_allowed().unwrap();
        server.command(&["PERSIST", REDIS_KEY]).await;
        assert_eq!(limiter.peek("key").await.unwrap().remaining(), 0, "{quota}");
    }
}

/// Somebody else wrote the value or the expiry. A debt that the quota never allows would deny the key
/// for a long time.
#[tokio::test]
async fn a_debt_that_would_outlive_its_key_is_repaired() {
    let server = Server::start().await;
    for quota in QUOTAS {
        let limiter = limiter(&server, quota);
        limiter.reset("key").await.unwrap();
        limiter.charge("key", 15).await.unwrap();
        let before = value(&server).await;
        assert!(limiter.check("key").await.unwrap().is_denied());
        assert_eq!(value(&server).await, before, "{quota}");
        // The debt lasts for days. As seconds, this would be longer.
        server.command(&["PEXPIRE", REDIS_KEY, "900000"]).await;
        assert!(limiter.check("key").await.unwrap().is_denied());
        assert!(ttl(&server).await > 900_000, "{quota}");
        assert_ne!(value(&server).await, before, "{quota}");
    }
}

#[tokio::test]
async fn a_client_that_returns_after_the_wait_is_allowed_and_charged_by_any_algorithm() {
    const PERIOD: Duration = Duration::from_millis(150);
    let quota = Quota::new(3, PERIOD);
    let quotas = [
        quota,
        quota.interval_refill(),
        quota.fixed_window(),
        quota.calendar(),
        quota.approximate_sliding_window(),
        quota.sliding_window(3),
    ];
    let server = Server::start().await;
    for quota in quotas {
        let limiter = limiter(&server, quota);
        limiter.reset("key").await.unwrap();
        for _ in 0..3 {
            let mut denial = limiter.check("key").await.unwrap();
            let mut allowed = 0;
            while denial.is_allowed() {
                allowed += 1;
                // A period may end meanwhile.
                assert!(allowed <= 2 * 3, "{quota}");
                denial = limiter.check("key").await.unwrap();
            }
            tokio::time::sleep(denial.retry_after().unwrap()).await;
            assert!(limiter.check("key").await.unwrap().is_allowed(), "{quota}: {denial:?}");
        }
    }
}

/// Checks in the first segment in which no permit counts any more.
#[tokio::test]
async fn segments_that_have_just_ended_are_not_read() {
    let server = Server::start().await;
    let quota = Quota::new(10, Duration::from_millis(60)).sliding_window(3);
    let limiter = limiter(&server, quota);
    for _ in 0..10 {
        limiter.check_cost("key", 9).await.unwrap().ensure_allowed().unwrap();
        tokio::time::sleep(Duration::from_millis(4 * 20)).await;
        let decision = limiter.check("key").await.unwrap();
        assert_eq!((decision.remaining(), decision.source()), (9, Source::Store));
        limiter.reset("key").await.unwrap();
    }
}

/// Also if the bucket is full in the same second as before.
#[tokio::test]
async fn a_denied_check_restores_a_missing_ttl_at_any_rate() {
    let server = Server::start().await;
    let limiter = limiter(&server, Quota::per_second(20).burst(10));
    for _ in 0..5 {
        limiter.reset("key").await.unwrap();
        limiter.check_cost("key", 9).await.unwrap().ensure_allowed().unwrap();
        server.command(&["PERSIST", REDIS_KEY]).await;
        assert!(limiter.check_cost("key", 10).await.unwrap().is_denied());
        assert!(ttl(&server).await > 0);
    }
}

/// Up to 2^52 / 11 microseconds per permit.
#[tokio::test]
async fn large_numbers_survive_the_round_trip_through_redis() {
    let server = Server::start().await;
    for micros in [100_000_000u64, 1_000_000_000, 100_000_000_000_000, (1 << 52) / 11] {
        let oracle = Oracle { permits: 1, micros, burst: 1 };
        let limiter = limiter(&server, oracle.quota());
        limiter.reset("key").await.unwrap();
        let decision = limiter.check("key").await.unwrap();
        assert_eq!(decision.reset_after(), Duration::from_micros(micros));
        let state = State::read(&server, REDIS_KEY).await.unwrap();
        oracle.verify(oracle.full(), 1, &decision, state);
        let denied = limiter.check("key").await.unwrap();
        oracle.verify(state, 1, &denied, state);
    }
}

/// Two limiters that were built with other numbers, as two processes are during a deployment.
fn revisions(server: &Server, old: Quota, new: Quota) -> [Limiter; 2] {
    [old, new].map(|quota| limiter(server, quota))
}

#[tokio::test]
async fn used_permits_stay_used_at_other_numbers() {
    let server = Server::start().await;
    let (fast, slow) = (Quota::per_hour(12), Quota::new(7, Duration::from_secs(86_400)));
    // The old and the new quota, the permits used, and those left.
    for (old, new, used, left) in [
        (DAILY.burst(3), DAILY.burst(6), 3, 3),
        (DAILY.burst(6), DAILY.burst(3), 3, 0),
        (DAILY.burst(6), DAILY.burst(3), 2, 1),
        (DAILY.burst(3), fast.burst(6), 3, 3),
        (fast.burst(6), DAILY.burst(3), 3, 0),
        (slow.burst(3), fast.burst(6), 3, 3),
        (fast.burst(6), slow.burst(3), 2, 1),
        (slow.burst(6), DAILY.burst(6), 5, 1),
    ] {
        let [old, new] = revisions(&server, old, new);
        new.reset("key").await.unwrap();
        assert!(old.check_cost("key", used).await.unwrap().is_allowed());
        assert_eq!(new.peek("key").await.unwrap().remaining(), left);
        assert!(new.check_cost("key", left + 1).await.unwrap().is_denied());
        assert!(new.check_cost("key", left).await.unwrap().is_allowed());
        let denied = new.check("key").await.unwrap();
        assert!(denied.is_denied() && denied.remaining() == 0, "{denied:?}");
    }
}

/// Otherwise a limit per day would be one per hour while both are in use.
#[tokio::test]
async fn a_longer_window_lengthens_the_one_that_a_shorter_one_started() {
    let server = Server::start().await;
    let hour = Duration::from_secs(3_600);
    let [short, long] = [Quota::per_hour(10), Quota::per_day(10)].map(Quota::fixed_window);
    let [short, long] = revisions(&server, short, long);
    short.check("key").await.unwrap().ensure_allowed().unwrap();
    assert!(short.peek("key").await.unwrap().reset_after() <= hour);
    long.check("key").await.unwrap().ensure_allowed().unwrap();
    let found = short.peek("key").await.unwrap();
    assert_eq!(found.remaining(), 8);
    assert!(found.reset_after() > 23 * hour, "{found:?}");
}

/// Lua has at most 200 variables, and 250 registers.
#[tokio::test]
async fn the_script_of_the_largest_policies_runs() {
    run_the_largest_policies(&Server::start().await).await;
}

/// # Panics
/// If a decision by one of the policies with the most variables is wrong.
pub(crate) async fn run_the_largest_policies(server: &Server) {
    let store = RedisStore::open(server.url()).unwrap();
    let window = Quota::new(10, WEEKS);
    let large =
        [window.approximate_sliding_window(), window.sliding_window(60), Quota::per_month(10)];
    let others = [
        QUOTAS[1],
        DAILY.borrow_up_to(1),
        Quota::new(7, WEEKS).burst(10).borrow_up_to(1),
        DAILY.interval_refill(),
        window.fixed_window(),
    ];
    let mut mixes: Vec<Vec<Quota>> = others.iter().map(|other| vec![*other; 16]).collect();
    for large in large {
        mixes.extend(others.iter().map(|other| [[large; 8], [*other; 8]].concat()));
        mixes.extend(others.iter().map(|other| [[*other; 8], [large; 8]].concat()));
    }
    for (n, mix) in mixes.into_iter().enumerate() {
        let policy = |name: String| {
            let quotas = mix.iter().enumerate();
            quotas.fold(Policy::new(name), |policy, (n, quota)| policy.quota(n.to_string(), *quota))
        };
        let limiters =
            ["a", "b", "c"].map(|name| uncached(store.clone(), policy(format!("{name}{n}"))));
        for remaining in [9, 8] {
            // In one call, except for the first.
            let checks = limiters.each_ref().map(|limiter| start(limiter.check("key")));
            for check in checks {
                let decision = check.await.unwrap();
                assert!(
                    decision.quotas().all(|quota| quota.remaining() == remaining),
                    "{decision:?}"
                );
            }
        }
        // Other quotas in the same key.
        let fewer = Policy::new(format!("a{n}")).quota("3", mix[3]);
        let other_process = RedisStore::open(server.url()).unwrap();
        let decision = uncached(other_process, fewer).check("key").await.unwrap();
        assert_eq!(decision.remaining(), 7, "{decision:?}");
        let decision = limiters[0].check("key").await.unwrap();
        let left: Vec<_> = decision.quotas().map(|quota| quota.remaining()).collect();
        assert!(
            left.iter().enumerate().all(|(n, left)| *left == if n == 3 { 6 } else { 7 }),
            "{left:?}"
        );
    }
    let ninth = [[large[0], large[1], large[2]]; 3].concat();
    let add = |policy: Policy, (n, quota): (usize, &Quota)| policy.quota(n.to_string(), *quota);
    let policy = ninth.iter().enumerate().fold(Policy::new("p"), add);
    let error = Limiter::new(store, policy).unwrap_err().to_string();
    assert!(
        error.contains("9 sliding windows, calendars and concurrent quotas: give it at most 8"),
        "{error}"
    );
}

/// A script has at most 200 variables.
#[tokio::test]
async fn the_script_of_the_largest_policies_with_holds_runs() {
    let server = Server::start().await;
    let store = RedisStore::open(server.url()).unwrap();
    let (held, window) = (Quota::concurrent(10), Quota::new(10, WEEKS));
    let bucket = Quota::new(7, WEEKS).burst(10).borrow_up_to(1);
    let others =
        [QUOTAS[1], DAILY.borrow_up_to(1), bucket, DAILY.interval_refill(), window.fixed_window()];
    for (n, other) in others.into_iter().enumerate() {
        for mix in [[[held; 8], [other; 8]].concat(), [[other; 8], [held; 8]].concat()] {
            let policy = |name: String| {
                let quotas = mix.iter().enumerate();
                quotas.fold(Policy::new(name), |policy, (n, quota)| {
                    policy.quota(n.to_string(), *quota)
                })
            };
            let (order, mut holds) = (mix[0].is_concurrent(), Vec::new());
            let limiters = ["a", "b", "c"]
                .map(|name| uncached(store.clone(), policy(format!("{name}{n}{order}"))));
            for remaining in [9, 8] {
                // In one call, except for the first.
                for hold in join_all(limiters.iter().map(|limiter| limiter.hold("key", 1))).await {
                    let hold = hold.unwrap();
                    let quotas = hold.decision().quotas().map(|quota| quota.remaining());
                    assert_eq!(quotas.collect::<Vec<_>>(), [remaining; 16]);
                    holds.push(hold);
                }
            }
        }
    }
}

/// While a revision uses the key that has other quotas than those that are asked about here.
#[tokio::test]
async fn quotas_that_are_added_or_removed_leave_the_others_as_they_are() {
    let server = Server::start().await;
    let limiter = |names: &[&'static str]| {
        let quotas = names.iter().zip([Quota::new(10, WEEKS).fixed_window(), DAILY]);
        let add = |policy: Policy, (name, quota): (&&'static str, _)| policy.quota(*name, quota);
        let policy = quotas.fold(Policy::new("default"), add);
        uncached(RedisStore::open(server.url()).unwrap(), policy)
    };
    let (window, both, other) = (limiter(&["a"]), limiter(&["a", "b"]), limiter(&["c", "b"]));
    let left = async |limiter: &Limiter| {
        let decision = limiter.peek("key").await.unwrap();
        decision.quotas().map(|quota| quota.remaining()).collect::<Vec<_>>()
    };
    both.check_cost("key", 3).await.unwrap().ensure_allowed().unwrap();
    assert_eq!(left(&other).await, [10, 7]);
    other.check_cost("key", 2).await.unwrap().ensure_allowed().unwrap();
    assert_eq!((left(&both).await, left(&window).await), (vec![7, 5], vec![7]));
    window.check_cost("key", 4).await.unwrap().ensure_allowed().unwrap();
    assert_eq!((left(&both).await, left(&other).await), (vec![3, 5], vec![8, 5]));
    // An algorithm that changes starts full.
    let changed = Policy::new("default").quota("a", DAILY).quota("b", DAILY);
    let changed = uncached(RedisStore::open(server.url()).unwrap(), changed);
    assert_eq!(left(&changed).await, [10, 5]);
}

/// A policy with a single token bucket does not store its name, so another finds it by its rate.
#[tokio::test]
async fn a_quota_that_is_added_before_a_lone_bucket_does_not_take_its_place() {
    let server = Server::start().await;
    // In the short form, in the packed form, and with ticks below a microsecond.
    let below = Quota::new(7, Duration::from_secs(86_400)).burst(10);
    for (n, lone) in [DAILY, Quota::new(10, WEEKS), below].into_iter().enumerate() {
        let (other, window) = (Quota::per_hour(10), Quota::per_hour(10).fixed_window());
        for (quotas, left) in [
            (vec![other, lone], vec![10, 4]),
            (vec![other, lone.borrow_up_to(1)], vec![10, 4]),
            (vec![window, other, lone.burst(9)], vec![10, 10, 3]),
            (vec![lone, lone], vec![4, 10]),
            ([vec![other; 15], vec![lone]].concat(), [vec![10; 15], vec![4]].concat()),
            // Of another rate: the first inherits what was used.
            (vec![window, other, other], vec![10, 4, 10]),
        ] {
            let key = format!("{n} {quotas:?}");
            let old = Policy::new("default").quota("lone", lone);
            let old = uncached(RedisStore::open(server.url()).unwrap(), old);
            old.check_cost(&*key, 6).await.unwrap().ensure_allowed().unwrap();
            let names = quotas.iter().enumerate();
            let new = names.fold(Policy::new("default"), |policy, (n, quota)| {
                policy.quota(n.to_string(), *quota)
            });
            let new = uncached(RedisStore::open(server.url()).unwrap(), new);
            // The last one reads what the script has made of the old value.
            for (cost, taken) in [(0, 0), (1, 1), (1, 2)] {
                let decision = new.check_cost(&*key, cost).await.unwrap();
                let found: Vec<_> = decision.quotas().map(|quota| quota.remaining()).collect();
                let left: Vec<_> = left.iter().map(|left| left - taken).collect();
                assert_eq!(found, left, "{quotas:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_debt_is_paid_before_the_next_check_is_allowed() {
    let server = Server::start().await;
    let limiter = limiter(&server, Quota::per_second(10).burst(10).borrow_up_to(20));
    let before = server.time_micros().await;
    let exceeding = limiter.check_cost("key", 31).await.unwrap();
    assert!(exceeding.exceeds_capacity());
    assert!(limiter.check_cost("key", 30).await.unwrap().is_allowed());
    let denied = limiter.check("key").await.unwrap();
    assert_eq!((denied.limit(), denied.remaining()), (10, 0));
    // 20 permits that are owed, and one for the check.
    let wait = denied.retry_after().unwrap().as_micros() as u64;
    let after = server.time_micros().await;
    assert!(wait <= 2_100_000 && wait + (after - before) >= 2_100_000, "{wait}");
    // With one permit left, all that may be owed can be taken again.
    wait_until("a permit", BOUND, async || {
        limiter.check_cost("key", 21).await.unwrap().is_allowed()
    })
    .await;
    assert!(server.time_micros().await >= before + 2_100_000);
    assert!(limiter.check("key").await.unwrap().retry_after().unwrap() > Duration::from_secs(1));
}

#[tokio::test]
async fn a_lowered_limit_denies_until_the_true_wait_has_passed() {
    let server = Server::start().await;
    // 100 ms a permit, then a day.
    let [old, new] = revisions(&server, Quota::per_second(10).burst(6), DAILY.burst(3));
    assert!(old.check_cost("key", 5).await.unwrap().is_allowed());
    let before = server.time_micros().await;
    let first = new.check("key").await.unwrap();
    let after = server.time_micros().await;
    assert!(first.is_denied() && first.remaining() == 0, "{first:?}");
    // Three permits of the old rate until two are used, and five until none is.
    let wait = first.retry_after().unwrap();
    assert_eq!(first.reset_after() - wait, Duration::from_millis(200));
    assert!(wait <= Duration::from_millis(300), "{wait:?}");
    assert_eq!(wait, first.refill_after());
    let mut last_denied = after;
    loop {
        let now = server.time_micros().await;
        if new.check("key").await.unwrap().is_allowed() {
            break;
        }
        last_denied = now;
    }
    let wait = wait.as_micros() as u64;
    assert!(last_denied < after + wait, "the reported wait ended without a permit");
    assert!(server.time_micros().await >= before + wait, "a permit before the reported wait");
    // The allowed check is charged at the new rate.
    assert!(new.check("key").await.unwrap().retry_after().unwrap() > Duration::from_secs(80_000));
}

#[tokio::test]
async fn a_denied_check_does_not_change_what_another_revision_wrote() {
    let server = Server::start().await;
    for (old_quota, new_quota) in [
        // The same rate with a larger burst.
        (DAILY.burst(20), DAILY),
        (Quota::per_hour(1).burst(20), DAILY),
        (QUOTAS[1].burst(20), DAILY),
        (DAILY.burst(20), QUOTAS[1]),
        (QUOTAS[1].burst(20), QUOTAS[1]),
    ] {
        for used in [10, 15] {
            let [old, new] = revisions(&server, old_quota, new_quota);
            new.reset("key").await.unwrap();
            assert!(old.check_cost("key", used).await.unwrap().is_allowed());
            let expiry = async || server.expires_at(REDIS_KEY).await;
            let before = (value(&server).await, expiry().await);
            for cost in [1, 10, 11] {
                assert!(new.check_cost("key", cost).await.unwrap().is_denied());
            }
            assert!(new.check_cost("key", 0).await.unwrap().is_allowed());
            assert!(new.peek("key").await.unwrap().is_denied());
            // Together in one call with a key that has no bucket.
            for check in ["key", "other", "key"].map(|key| start(new.check_cost(key, 0))) {
                assert!(check.await.unwrap().is_allowed());
            }
            for check in ["key", "other"].map(|key| start(new.check(key))) {
                let _ = check.await.unwrap();
            }
            let after = (value(&server).await, expiry().await);
            // More than the capacity of the new one, in the short form: that it is doubted is written down.
            let [found, left] = [&before.0, &after.0].map(|value| value.as_deref().unwrap());
            if used > 10 && found[0].is_ascii_digit() {
                let [before, noted] = [found, left].map(State::parse);
                assert!(noted.empty_at.is_some());
                assert_eq!(State { empty_at: None, ..noted }, before, "{used}");
            } else {
                assert_eq!(left, found, "{used}");
            }
            assert_eq!(after.1, before.1, "{used}");
            assert_eq!(old.peek("key").await.unwrap().remaining(), 20 - used);
        }
    }
}

#[tokio::test]
async fn the_rate_of_a_common_quota_takes_no_memory() {
    let server = Server::start().await;
    let bytes = async || server.query::<u64>(&["MEMORY", "USAGE", REDIS_KEY]).await;
    // By a script, because Valkey 9 then stores integers as text.
    let set = "redis.call('SET', KEYS[1], ARGV[1], 'PX', '100000')";
    server.command(&["EVAL", set, "1", REDIS_KEY, "1790000000000000"]).await;
    let without_rate = bytes().await;
    for quota in [Quota::per_second(10), Quota::per_minute(60), Quota::per_hour(100), DAILY] {
        let limiter = limiter(&server, quota.burst(1_000));
        limiter.reset("key").await.unwrap();
        limiter.check_cost("key", 900).await.unwrap().ensure_allowed().unwrap();
        let encoding: String = server.query(&["OBJECT", "ENCODING", REDIS_KEY]).await;
        match encoding.as_str() {
            "int" => assert_eq!(bytes().await, without_rate, "{quota:?}"),
            _ => assert!(bytes().await <= without_rate + 16, "{quota:?}"),
        }
    }
}

#[tokio::test]
async fn limiters_share_buckets_only_with_the_same_policy_name_and_key_prefix() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let policy = |name: &'static str| fleetlimit::Policy::new(name).quota("q", DAILY);
    let search = test_limiter(store(), policy("search"));
    assert_eq!(search.check("key").await.unwrap().remaining(), 9);
    for other in [
        test_limiter(store(), policy("other")),
        test_limiter(store().key_prefix("other"), policy("search")),
    ] {
        assert_eq!(other.check("key").await.unwrap().remaining(), 9);
    }
    assert_eq!(test_limiter(store(), policy("search")).check("key").await.unwrap().remaining(), 8);
}

#[tokio::test]
async fn the_documented_permissions_are_sufficient_and_necessary() {
    let permissions = Server::REQUIRED_COMMANDS;
    let server = Server::start().await;
    let url = format!("redis://fleetlimit:secret@127.0.0.1:{}/", server.port());
    // All operations of a limiter: load the script, reset, allow, and deny (which reads the TTL).
    let run_all_operations = async || {
        server.command(&["SCRIPT", "FLUSH"]).await;
        let limiter = uncached(RedisStore::open(url.as_str()).unwrap(), DAILY);
        limiter.reset("key").await?;
        for expected in [10, 1, 0] {
            assert_eq!(limiter.check_cost("key", expected).await?.is_allowed(), expected != 1);
        }
        server.command(&["PERSIST", REDIS_KEY]).await;
        let _ = limiter.check("key").await?;
        if ttl(&server).await < 0 {
            return Err("no TTL".into());
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    server.grant(&permissions).await;
    run_all_operations().await.unwrap();
    for permission in permissions {
        let others: Vec<_> = permissions.into_iter().filter(|other| *other != permission).collect();
        server.grant(&others).await;
        assert!(run_all_operations().await.is_err(), "{permission} is not necessary");
    }
    server.grant(&permissions).await;
    // Without the permission for MGET, the script reads keys one by one.
    let limiter = test_limiter(RedisStore::open(url.as_str()).unwrap(), DAILY);
    for remaining in [9, 8] {
        for check in ["a", "b", "c"].map(|key| start(limiter.check(key))) {
            assert_eq!(check.await.unwrap().remaining(), remaining);
        }
    }
    let other = test_limiter(RedisStore::open(url.as_str()).unwrap().key_prefix("other"), DAILY);
    assert_eq!(other.check("key").await.unwrap_err().kind(), ErrorKind::Server);
}

#[tokio::test]
async fn the_documented_permissions_are_sufficient_for_another_database() {
    let server = Server::start().await;
    server.grant(&[&Server::REQUIRED_COMMANDS[..], &["+select"]].concat()).await;
    let url = format!("redis://fleetlimit:secret@127.0.0.1:{}/3", server.port());
    let limiter = test_limiter(RedisStore::open(url).unwrap(), DAILY);
    assert!(limiter.check("key").await.unwrap().is_allowed());
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn the_documented_permissions_are_sufficient_through_sentinel() {
    let sentinel = Sentinel::start().await;
    sentinel.primary().grant(&[&Server::REQUIRED_COMMANDS[..], &["+role"]].concat()).await;
    for n in 0..3 {
        sentinel.sentinel(n).grant(&["+sentinel", "+subscribe", "&+switch-master"]).await;
    }
    let urls = sentinel
        .urls()
        .into_iter()
        .map(|url| url.replace("redis://", "redis://fleetlimit:secret@"));
    let store = RedisStore::open_sentinel(urls, sentinel.service_name()).unwrap();
    let limiter = test_limiter(store, DAILY);
    assert!(limiter.check("key").await.unwrap().is_allowed());
    wait_until("the sentinels are watched", BOUND, async || sentinel.subscribers().await == 3)
        .await;
}
