//! What is in Redis: every key with a TTL, broken values mended, denials without a trace, and
//! exactly the rights that the documentation names.

use std::time::Duration;

use tollgate::{ErrorKind, Limiter, Quota, RedisStore};

use crate::common::{Server, start};
use crate::exact::{patient, uncached};
use crate::oracle::Oracle;

const NAME: &str = "tollgate:{key}:default:t1";
const DAILY: Quota = Quota::per_day(1).burst(10);

/// Whole microseconds, and a remainder: the two pieces of the script.
const SHAPES: [Quota; 2] = [DAILY, Quota::new(7, Duration::from_secs(86_400)).burst(10)];

fn limiter(server: &Server, quota: Quota) -> Limiter {
    uncached(RedisStore::open(server.url()).unwrap(), quota)
}

async fn ttl(server: &Server) -> i64 {
    server.query(&["PTTL", NAME]).await
}

async fn value(server: &Server) -> Option<String> {
    server.query(&["GET", NAME]).await
}

#[tokio::test]
async fn every_key_expires_when_its_bucket_is_full_and_not_before() {
    let server = Server::start().await;
    for (permits, micros, burst) in [
        (1, 1, 1),
        (1, 1_500, 1),
        (3, 1_000_000, 7),
        (1_000_000, 1_000_000, 1),
        (1, 86_400_000_000, 52_000),
        (999_983, 1_000_000, 3),
        (1, 100_000_000, 1_000_000),
    ] {
        let oracle = Oracle { permits, micros, burst };
        let limiter = limiter(&server, oracle.quota());
        limiter.reset("key").await.unwrap();
        for cost in [1, burst, burst / 2, 1] {
            let _ = limiter.check_cost("key", cost).await.unwrap();
            let expires: i64 = server.query(&["PEXPIRETIME", NAME]).await;
            if expires == -2 {
                continue;
            }
            let full_at = oracle.full_at(&server, NAME).await;
            let Some(full_at) = full_at else { continue };
            let expires = oracle.ticks(expires as u64 * 1_000);
            assert!(full_at <= expires && expires < full_at + oracle.ticks(1_001), "{oracle:?}");
        }
    }
}

#[tokio::test]
async fn a_denied_check_changes_nothing() {
    let server = Server::start().await;
    for quota in SHAPES {
        let limiter = limiter(&server, quota);
        limiter.reset("key").await.unwrap();
        limiter.check_cost("key", 8).await.unwrap().ensure_allowed().unwrap();
        let before = (value(&server).await, server.query::<i64>(&["PEXPIRETIME", NAME]).await);
        for cost in [3, 10, 11, u64::MAX] {
            assert!(!limiter.check_cost("key", cost).await.unwrap().is_allowed());
        }
        limiter.peek("key").await.unwrap().ensure_allowed().unwrap();
        limiter.check_cost("key", 0).await.unwrap().ensure_allowed().unwrap();
        let after = (value(&server).await, server.query::<i64>(&["PEXPIRETIME", NAME]).await);
        assert_eq!(before, after);
    }
}

#[tokio::test]
async fn a_value_that_no_run_could_have_left_becomes_an_empty_bucket_with_a_ttl() {
    let server = Server::start().await;
    let far = (server.time_micros().await + 20 * 86_400_000_000).to_string();
    let broken = [
        "",
        "x",
        "nan",
        "inf",
        "-inf",
        "-1",
        "1e300",
        "9007199254740993",
        "1.5",
        "1:2:3",
        ":",
        "0x7fffffffffffffff",
        &far,
    ];
    for quota in SHAPES {
        let limiter = limiter(&server, quota);
        for value in broken {
            server.command(&["SET", NAME, value, "PX", "100000"]).await;
            let decision = limiter.check("key").await.unwrap();
            assert!(!decision.is_allowed(), "{value:?}: {decision:?}");
            assert_eq!(decision.remaining(), 0, "{value:?}");
            assert!(ttl(&server).await > 100_000, "{value:?} is mended by the call that found it");
            assert_eq!(limiter.peek("key").await.unwrap().remaining(), 0, "{value:?}");
        }
    }
}

#[tokio::test]
async fn a_key_without_a_ttl_heals_whether_the_check_is_allowed_or_denied() {
    let server = Server::start().await;
    for quota in SHAPES {
        let limiter = limiter(&server, quota);
        for taken in [1, 10] {
            limiter.reset("key").await.unwrap();
            limiter.check_cost("key", taken).await.unwrap().ensure_allowed().unwrap();
            server.command(&["PERSIST", NAME]).await;
            assert_eq!(ttl(&server).await, -1);
            let allowed = limiter.check("key").await.unwrap().is_allowed();
            assert_eq!(allowed, taken == 1);
            assert!(ttl(&server).await > 0);
        }
        limiter.check_cost("key", 0).await.unwrap().ensure_allowed().unwrap();
        server.command(&["PERSIST", NAME]).await;
        let _ = limiter.peek("key").await.unwrap();
        assert!(ttl(&server).await > 0);
    }
}

/// 2^53 and its neighbours, and numbers that some servers write with an exponent.
#[tokio::test]
async fn numbers_survive_their_way_through_the_server() {
    let server = Server::start().await;
    for micros in [100_000_000u64, 1_000_000_000, 100_000_000_000_000, 1 << 52] {
        let oracle = Oracle { permits: 1, micros, burst: 1 };
        let limiter = limiter(&server, oracle.quota());
        limiter.reset("key").await.unwrap();
        let decision = limiter.check("key").await.unwrap();
        assert_eq!(decision.reset_after(), Duration::from_micros(micros));
        let full_at = oracle.full_at(&server, NAME).await.unwrap();
        oracle.verify(0, 1, &decision, full_at);
        let denied = limiter.check("key").await.unwrap();
        oracle.verify(full_at, 1, &denied, full_at);
    }
    // As another server would have written it.
    let limiter = limiter(&server, Quota::per_day(1).burst(10));
    let now = server.time_micros().await;
    let rounded = (now / 1_000_000_000 + 1) * 1_000_000_000;
    server.command(&["SET", NAME, &format!("{:e}", rounded as f64), "PX", "100000"]).await;
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn other_numbers_keep_what_was_used_up_as_far_as_they_can() {
    let server = Server::start().await;
    let [whole, part] = SHAPES.map(|quota| limiter(&server, quota));
    whole.check_cost("key", 4).await.unwrap().ensure_allowed().unwrap();
    // Four days until it is full are 28 permits of the other, which holds ten.
    assert_eq!(part.peek("key").await.unwrap().remaining(), 0);
    part.reset("key").await.unwrap();
    part.check_cost("key", 4).await.unwrap().ensure_allowed().unwrap();
    // Four sevenths of a day are less than one permit.
    assert_eq!(whole.peek("key").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn policies_and_prefixes_do_not_share_buckets_and_names_do() {
    let server = Server::start().await;
    let store = || RedisStore::open(server.url()).unwrap();
    let policy = |name: &'static str| tollgate::Policy::new(name).quota("q", DAILY);
    let search = patient(store(), policy("search"));
    assert_eq!(search.check("key").await.unwrap().remaining(), 9);
    for other in
        [patient(store(), policy("other")), patient(store().key_prefix("other"), policy("search"))]
    {
        assert_eq!(other.check("key").await.unwrap().remaining(), 9);
    }
    assert_eq!(patient(store(), policy("search")).check("key").await.unwrap().remaining(), 8);
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_all_are_needed() {
    let rights = Server::NEEDED;
    let server = Server::start().await;
    let url = format!("redis://tollgate:secret@127.0.0.1:{}/", server.port());
    // Everything that a limiter does: allow, deny (which looks at the TTL), reset, load the script.
    let works = async || {
        server.command(&["SCRIPT", "FLUSH"]).await;
        let limiter = uncached(RedisStore::open(url.as_str()).unwrap(), DAILY);
        limiter.reset("key").await?;
        for expected in [10, 1, 0] {
            assert_eq!(limiter.check_cost("key", expected).await?.is_allowed(), expected != 1);
        }
        server.command(&["PERSIST", NAME]).await;
        let _ = limiter.check("key").await?;
        if ttl(&server).await < 0 {
            return Err("no TTL".into());
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    server.grant(&rights).await;
    works().await.unwrap();
    for right in rights {
        let others: Vec<_> = rights.into_iter().filter(|other| *other != right).collect();
        server.grant(&others).await;
        assert!(works().await.is_err(), "{right} is not needed");
    }
    server.grant(&rights).await;
    // Without MGET the keys of a call are read one by one.
    let limiter = patient(RedisStore::open(url.as_str()).unwrap(), DAILY);
    for remaining in [9, 8] {
        for check in ["a", "b", "c"].map(|key| start(limiter.check(key))) {
            assert_eq!(check.await.unwrap().remaining(), remaining);
        }
    }
    let other = patient(RedisStore::open(url.as_str()).unwrap().key_prefix("other"), DAILY);
    assert_eq!(other.check("key").await.unwrap_err().kind(), ErrorKind::Server);
}
