//! The conversions of docs/migrating.md: each drives another limiter and fleetlimit with the same requests, and
//! compares the decisions. `before`, `after` and `lua` are the snippets of the page.
//!
//! The clock of tower_governor and of axum-governor cannot be set. So the layers are compared by what holds
//! however slow the machine is, and the decisions over time by the crate `governor`, on which both are built,
//! with the quota that they pass to it. redis-cell is a module of Redis, and decides by GCRA too.

#[allow(unused_imports)]
#[path = "../../../tests/it/common/mod.rs"]
mod common;

mod after {
    pub mod axum_governor;
    pub mod express_rate_limit;
    pub mod lua;
    pub mod redis_cell;
    pub mod shadow;
    pub mod tower_governor;
    pub mod tower_rate_limit_redis;
}
mod before {
    pub mod axum_governor;
    pub mod tower_governor;
    pub mod tower_rate_limit_redis {
        // The version that the crate depends on.
        use redis_0_32 as redis;

        include!("before/tower_rate_limit_redis.rs");
    }
}

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use fleetlimit::{FailureMode, Limiter, ManualClock, MemoryStore, Policy, Quota, RedisStore};
use governor::InsufficientCapacity;
use governor::clock::{Clock as _, FakeRelativeClock};
use governor::middleware::StateInformationMiddleware;
use http::{Request, StatusCode};
use redis::aio::MultiplexedConnection;
use tower::ServiceExt;
use tower_governor::governor::{GovernorConfig, GovernorConfigBuilder};
use tower_governor::key_extractor::PeerIpKeyExtractor;

use common::{BOUND, Clock, Server, connect, wait_until};

const PAGE: &str = include_str!("../../../docs/migrating.md");
const MINUTE: Duration = Duration::from_secs(60);

/// The snippets in the order of the page.
const SNIPPETS: [&str; 13] = [
    include_str!("before/tower_governor.rs"),
    include_str!("after/tower_governor.rs"),
    include_str!("before/axum_governor.rs"),
    include_str!("after/axum_governor.rs"),
    include_str!("before/tower_rate_limit_redis.rs"),
    include_str!("after/tower_rate_limit_redis.rs"),
    include_str!("after/redis_cell.rs"),
    include_str!("after/express_rate_limit.rs"),
    COUNTER,
    TOKEN_BUCKET,
    SLIDING_WINDOW,
    include_str!("after/lua.rs"),
    include_str!("after/shadow.rs"),
];
const COUNTER: &str = include_str!("lua/counter.lua");
const TOKEN_BUCKET: &str = include_str!("lua/token_bucket.lua");
const SLIDING_WINDOW: &str = include_str!("lua/sliding_window.lua");

#[test]
fn the_snippets_of_the_page_are_the_code_of_these_tests() {
    let code = |block: &'static str| {
        let code = block.strip_prefix("rust\n").or(block.strip_prefix("lua\n"));
        code.map(str::trim_end)
    };
    let blocks: Vec<_> = PAGE.split("\n```").filter_map(code).collect();
    assert_eq!(blocks, SNIPPETS.map(str::trim_end));
}

#[test]
fn the_page_has_the_versions_of_the_crates_that_are_tested() {
    let manifest = include_str!("../../Cargo.toml");
    for name in ["tower_governor", "axum-governor", "tower-rate-limit-redis"] {
        let dependency = manifest.lines().find(|line| line.starts_with(&format!("{name} = ")));
        let version = dependency.unwrap().split_once("\"=").unwrap().1.split('"').next().unwrap();
        assert!(PAGE.contains(&format!("`{name}` {version}")), "{name} {version}");
    }
}

#[tokio::test]
async fn per_second_of_tower_governor_is_a_period_and_not_a_rate() {
    type Config = GovernorConfig<PeerIpKeyExtractor, StateInformationMiddleware>;
    type Builder = GovernorConfigBuilder<PeerIpKeyExtractor, StateInformationMiddleware>;
    let builder = || GovernorConfigBuilder::default().use_headers();
    let config = |builder: &mut Builder| builder.finish().unwrap();
    let cases: [(Config, Quota); 6] = [
        (config(builder().per_second(60).burst_size(5)), Quota::per_minute(1).burst(5)),
        (
            config(builder().per_second(2).burst_size(5)),
            Quota::new(1, Duration::from_secs(2)).burst(5),
        ),
        (config(builder().per_millisecond(100).burst_size(20)), Quota::per_second(10).burst(20)),
        (
            config(builder().period(Duration::from_secs(900)).burst_size(3)),
            Quota::new(1, Duration::from_secs(900)).burst(3),
        ),
        (config(&mut builder()), Quota::per_second(2).burst(8)),
        (Config::secure(), Quota::new(1, Duration::from_secs(4)).burst(2)),
    ];
    for (config, quota) in cases {
        let snapshot = config.limiter().check_key(&IpAddr::from([10, 0, 0, 1])).unwrap();
        assert_same_as_governor(snapshot.quota(), |store| Limiter::new(store, quota).unwrap())
            .await;
    }
}

#[tokio::test]
async fn quotas_of_axum_governor_are_rates_except_seconds_per_request() {
    use axum_governor::{Quota as Old, nz};
    let cases = [
        (Old::requests_per_second(nz!(10u32)), Quota::per_second(10)),
        (Old::requests_per_minute(nz!(60u32)).burst(nz!(5u32)), Quota::per_minute(60).burst(5)),
        (Old::requests_per_hour(nz!(1000u32)), Quota::per_hour(1_000)),
        (Old::seconds_per_request(nz!(5u32)), Quota::new(1, Duration::from_secs(5))),
    ];
    for (old, quota) in cases {
        assert_same_as_governor(old.into(), |store| Limiter::new(store, quota).unwrap()).await;
    }
}

/// `CL.THROTTLE user:7 15 30 60`: its capacity is `max_burst` + 1.
#[tokio::test]
async fn a_max_burst_of_redis_cell_is_one_less_than_the_burst() {
    let (max_burst, count, period) = (15, 30, 60);
    let interval = Duration::from_secs(period) / count;
    let old = governor::Quota::with_period(interval).unwrap();
    let old = old.allow_burst(NonZeroU32::new(max_burst + 1).unwrap());
    assert_same_as_governor(old, |store| after::redis_cell::limiter(store).unwrap()).await;

    let limiter = after::redis_cell::limiter(MemoryStore::new()).unwrap();
    after::redis_cell::action(&limiter, 7, 16).await.unwrap();
    assert!(after::redis_cell::action(&limiter, 7, 16).await.is_err());
}

#[tokio::test]
async fn the_layer_of_tower_governor_admits_the_same_burst() {
    let old = before::tower_governor::app();
    let new = after::tower_governor::app(MemoryStore::new()).unwrap();
    let start = Instant::now();
    for client in 1..=3 {
        for _ in 0..5 {
            assert!(is_allowed(&send(&old, client).await));
            assert!(is_allowed(&send(&new, client).await));
        }
        let (old, new) = (send(&old, client).await, send(&new, client).await);
        assert!(!is_allowed(&old) && !is_allowed(&new));
        // One rounds the wait down, and the other up, with a random delay of up to a quarter.
        let elapsed = start.elapsed().as_secs() + 1;
        let (old, new) = (retry_after(&old), retry_after(&new));
        assert!((60 - elapsed..60).contains(&old), "{old} after {elapsed} s");
        assert!((61 - elapsed..=75).contains(&new), "{new} after {elapsed} s");
    }
}

#[tokio::test]
async fn a_denial_of_axum_governor_takes_from_the_quotas_before_the_one_that_denies() {
    let old = before::axum_governor::app();
    let new = after::axum_governor::app(MemoryStore::new()).unwrap();
    for app in [&old, &new] {
        assert!(is_allowed(&send(app, 1).await));
    }
    let (mut old_denial, mut new_denial) = (send(&old, 1).await, send(&new, 1).await);
    for _ in 0..3 {
        assert!(!is_allowed(&old_denial) && !is_allowed(&new_denial));
        (old_denial, new_denial) = (send(&old, 1).await, send(&new, 1).await);
    }
    // One request was allowed by each. The denied ones have used up the hour of axum-governor.
    for (denial, expected) in [(old_denial, "\"client:1h\";r=0;"), (new_denial, "\"hour\";r=2,")] {
        let field = header(&denial, "ratelimit");
        assert!(field.starts_with(expected), "{field}");
    }
}

/// The state of tower-rate-limit-redis is a time: moving it back is the same as waiting. All waits are whole
/// minutes, so the real time that passes meanwhile changes no decision.
#[tokio::test]
async fn tower_rate_limit_redis_decides_the_same() {
    let server = Server::start().await;
    let old = before::tower_rate_limit_redis::app(connect_0_32(&server).await);
    let (store, clock) = memory();
    let new = after::tower_rate_limit_redis::app(store).unwrap();
    let mut admin = connect(&server.url()).await.unwrap();
    let (mut random, mut count) = (Random(1), [0; 2]);
    for n in 0..1_000 {
        let client = 1 + random.below(2) as u8;
        let allowed = is_allowed(&send(&new, client).await);
        assert_eq!(is_allowed(&send(&old, client).await), allowed, "request {n}");
        count[usize::from(allowed)] += 1;

        let wait = MINUTE * random.below(3) as u32;
        advance(&clock, wait);
        for client in 1..=2 {
            let key = format!("api:10.0.0.{client}");
            let exists: bool = command("EXISTS", &key).query_async(&mut admin).await.unwrap();
            if exists {
                let micros = wait.as_micros() as u64;
                command("DECRBY", &key).arg(micros).exec_async(&mut admin).await.unwrap();
            }
        }
    }
    assert!(count.into_iter().min() > Some(100), "denied, allowed: {count:?}");

    // On the same server, too.
    server.command(&["FLUSHALL"]).await;
    let new = after::tower_rate_limit_redis::app(redis_store(&server)).unwrap();
    for client in (1..=3).cycle().take(30) {
        assert_eq!(is_allowed(&send(&old, client).await), is_allowed(&send(&new, client).await));
    }
}

#[tokio::test]
async fn tower_rate_limit_redis_fails_until_the_process_restarts_once_redis_has() {
    let server = Server::start().await;
    let old = before::tower_rate_limit_redis::app(connect_0_32(&server).await);
    let new = after::tower_rate_limit_redis::app(redis_store(&server)).unwrap();
    assert!(is_allowed(&send(&old, 1).await) && is_allowed(&send(&new, 1).await));

    server.stop();
    assert_eq!(send(&old, 1).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(send(&new, 1).await.status(), StatusCode::SERVICE_UNAVAILABLE);

    server.restart().await;
    wait_until("fleetlimit has connected again", BOUND, async || {
        send(&new, 1).await.status() == StatusCode::OK
    })
    .await;
    for _ in 0..10 {
        assert_eq!(send(&old, 1).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}

#[tokio::test]
async fn a_window_of_express_rate_limit_starts_with_the_first_request() {
    let (store, clock) = memory();
    let app = after::express_rate_limit::app(store).unwrap();
    for wait in [0, 14, 1, 14] {
        advance(&clock, MINUTE * wait);
        let allowed = match wait {
            0 => 99,
            14 => 1,
            _ => 99,
        };
        for _ in 0..allowed {
            assert!(is_allowed(&send(&app, 1).await), "after {wait} minutes");
        }
    }
    assert!(!is_allowed(&send(&app, 1).await));
}

/// The remaining time of the counter is moved, as the state of tower-rate-limit-redis above.
#[tokio::test]
async fn the_counter_in_lua_is_a_fixed_window() {
    let (server, key) = (Server::start().await, "counter");
    let (mut clock, mut redis) =
        (Clock::start(&server).await, connect(&server.url()).await.unwrap());
    let limiter = uncached(&clock, after::lua::COUNTER);
    let (mut random, mut count) = (Random(1), [0; 2]);
    for n in 0..1_000 {
        let new = limiter.check("client").await.unwrap().is_allowed();
        let arguments = ["5".to_owned(), "900000".to_owned()];
        assert_eq!(eval(&mut redis, COUNTER, key, &arguments).await, new, "request {n}");
        count[usize::from(new)] += 1;

        let wait = MINUTE * random.below(4) as u32;
        clock.advance(wait).await;
        let ttl: i64 = command("PTTL", key).query_async(&mut redis).await.unwrap();
        let ttl = (ttl - wait.as_millis() as i64).max(0);
        command("PEXPIRE", key).arg(ttl).exec_async(&mut redis).await.unwrap();
    }
    assert!(count.into_iter().min() > Some(100), "denied, allowed: {count:?}");
}

#[tokio::test]
async fn the_bucket_in_lua_is_a_token_bucket() {
    let server = Server::start().await;
    let (mut clock, mut redis) =
        (Clock::start(&server).await, connect(&server.url()).await.unwrap());
    let limiter = uncached(&clock, after::lua::TOKEN_BUCKET);
    // The key expires by the server's own clock.
    let script = changed(TOKEN_BUCKET, "math.ceil(burst / rate)", "3600");
    let script = changed(&script, "redis.call('TIME')", CLOCK);
    // At times that the numbers of Lua represent exactly.
    clock.advance(Duration::from_micros(1_000_000 - clock.now() % 1_000_000)).await;
    let (mut random, mut count) = (Random(1), [0; 2]);
    for n in 0..1_000 {
        let cost = 1 + random.below(8);
        let new = limiter.check_cost("client", cost).await.unwrap().is_allowed();
        let arguments = ["10".to_owned(), "20".to_owned(), cost.to_string()];
        assert_eq!(eval(&mut redis, &script, "bucket", &arguments).await, new, "request {n}");
        count[usize::from(new)] += 1;
        clock.advance(Duration::from_millis(125) * random.below(6) as u32).await;
    }
    assert!(count.into_iter().min() > Some(100), "denied, allowed: {count:?}");
}

/// fleetlimit counts by segments: no window admits more than the script would, and a permit comes back at most
/// a segment later.
#[tokio::test]
async fn a_permit_comes_back_up_to_a_segment_later_than_with_the_log_in_lua() {
    let server = Server::start().await;
    let (mut clock, mut redis) =
        (Clock::start(&server).await, connect(&server.url()).await.unwrap());
    let limiter = uncached(&clock, after::lua::SLIDING_WINDOW);
    let script = changed(SLIDING_WINDOW, "redis.call('TIME')", CLOCK);
    let script = changed(&script, "math.ceil(window / 1000)", "3600000");
    let (window, segment) = (MINUTE.as_micros() as u64, MINUTE.as_micros() as u64 / 12);
    let (mut random, mut admitted, mut old, mut late) = (Random(1), Vec::new(), 0, 0);
    for n in 0..1_000u64 {
        let now = clock.now();
        let within =
            |admitted: &[u64], span| admitted.iter().filter(|at| **at + span > now).count();
        let new = limiter.check("client").await.unwrap().is_allowed();
        let arguments = ["5".to_owned(), window.to_string(), n.to_string()];
        old += u64::from(eval(&mut redis, &script, "log", &arguments).await);
        if new {
            assert!(within(&admitted, window) < 5, "request {n}");
            admitted.push(now);
        } else {
            assert!(within(&admitted, window + segment) >= 5, "request {n}");
            late += u64::from(within(&admitted, window) < 5);
        }
        clock.advance(Duration::from_secs(random.below(13))).await;
    }
    let new = admitted.len() as u64;
    assert!(late > 0 && new <= old && old - new < old / 10, "{new} of {old}, {late} late");
}

#[tokio::test]
async fn shadow_mode_counts_the_requests_that_only_one_limiter_would_deny() {
    use after::shadow::{ONLY_NEW_DENIES, ONLY_OLD_DENIES, app};
    let per_minute = Quota::per_minute(1);
    // The last one takes the number of `per_second(60)` for a rate.
    for (quota, only_old, only_new) in [
        (per_minute.burst(5), 0, 0),
        (per_minute.burst(3), 0, 2),
        (per_minute.burst(7), 2, 0),
        (Quota::per_second(60), 5, 0),
    ] {
        let app = app(MemoryStore::new(), quota).unwrap();
        for n in 0..10 {
            let response = send(&app, 1).await;
            assert_eq!(is_allowed(&response), n < 5, "only the old limiter denies");
            assert!(!response.headers().contains_key("ratelimit"));
        }
        let counted = [&ONLY_OLD_DENIES, &ONLY_NEW_DENIES].map(|n| n.swap(0, Ordering::Relaxed));
        assert_eq!(counted, [only_old, only_new], "{quota}");
    }

    // The buckets are up to date at the switch.
    let store = MemoryStore::new();
    let shadow = app(store.clone(), per_minute.burst(5)).unwrap();
    for _ in 0..5 {
        assert!(is_allowed(&send(&shadow, 1).await));
    }
    let enforced = after::tower_governor::app(store).unwrap();
    assert!(!is_allowed(&send(&enforced, 1).await) && is_allowed(&send(&enforced, 2).await));
}

/// Compares random requests, many of them exactly when a permit refills.
async fn assert_same_as_governor(old: governor::Quota, new: impl FnOnce(MemoryStore) -> Limiter) {
    let old_clock = FakeRelativeClock::default();
    let limiter = governor::RateLimiter::direct_with_clock(old, old_clock.clone());
    let (interval, burst) = (old.replenish_interval(), u64::from(old.burst_size().get()));
    let (store, clock) = memory();
    let new = new(store);
    let (mut random, mut count) = (Random(1), [0; 2]);
    for n in 0..2_000 {
        let cost = if random.below(4) == 0 { 1 + random.below(burst + 1) } else { 1 };
        let decision = new.check_cost("client", cost).await.unwrap();
        let message = format!("{old:?}, request {n}, cost {cost}: {decision:?}");
        match limiter.check_n(NonZeroU32::new(cost as u32).unwrap()) {
            Ok(Ok(())) => assert!(decision.is_allowed(), "{message}"),
            Ok(Err(denial)) => {
                let wait = denial.wait_time_from(old_clock.now());
                assert_eq!(decision.retry_after(), Some(wait), "{message}");
            }
            Err(InsufficientCapacity(_)) => assert!(decision.exceeds_capacity(), "{message}"),
        }
        count[usize::from(decision.is_allowed())] += 1;

        let wait = match random.below(4) {
            0 => Duration::ZERO,
            1 => interval,
            2 => interval * random.below(burst) as u32,
            _ => Duration::from_micros(random.below(2 * interval.as_micros() as u64)),
        };
        old_clock.advance(wait);
        advance(&clock, wait);
    }
    assert!(count.into_iter().min() > Some(100), "denied, allowed: {count:?}");
}

fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(UNIX_EPOCH + Duration::from_secs(1_800_000_000));
    (MemoryStore::with_manual_clock(NonZeroUsize::new(10_000).unwrap(), clock.clone()), clock)
}

fn advance(clock: &ManualClock, time: Duration) {
    clock.advance_to(clock.now() + time);
}

fn redis_store(server: &Server) -> RedisStore {
    RedisStore::open(server.url()).unwrap()
}

/// A limiter on Redis, at the time of the test.
fn uncached(clock: &Clock, quota: Quota) -> Limiter {
    Limiter::builder(clock.store("new"), Policy::new("api").quota("requests", quota))
        .timeout(Duration::from_secs(10))
        .failure_mode(FailureMode::Closed)
        .cache_denials(Duration::ZERO)
        .build()
        .unwrap()
}

async fn connect_0_32(server: &Server) -> redis_0_32::aio::MultiplexedConnection {
    let client = redis_0_32::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// The time of `Clock`, for scripts that read it.
const CLOCK: &str = "redis.call('MGET', 's', 'us')";

fn changed(script: &str, from: &str, to: &str) -> String {
    assert_eq!(script.matches(from).count(), 1, "{from}");
    script.replace(from, to)
}

async fn eval(
    redis: &mut MultiplexedConnection,
    script: &str,
    key: &str,
    arguments: &[String],
) -> bool {
    let mut command = command("EVAL", script);
    command.arg(1).arg(key).arg(arguments).query_async(redis).await.unwrap()
}

fn command(name: &str, key: &str) -> redis::Cmd {
    let mut command = redis::cmd(name);
    command.arg(key);
    command
}

/// Sends a request of a client, with its address as the peer and from a proxy.
async fn send(app: &Router, client: u8) -> Response {
    let address = SocketAddr::from(([10, 0, 0, client], 4_711));
    let request = Request::get("/").header("x-forwarded-for", address.ip().to_string());
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(ConnectInfo(address));
    app.clone().oneshot(request).await.unwrap()
}

fn is_allowed(response: &Response) -> bool {
    match response.status() {
        StatusCode::OK => true,
        StatusCode::TOO_MANY_REQUESTS => false,
        status => panic!("unexpected status: {status}"),
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}

fn retry_after(response: &Response) -> u64 {
    header(response, "retry-after").parse().unwrap()
}

/// Xorshift, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
