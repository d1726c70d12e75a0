//! More checks than Redis decides in time. Whoever sends them must not lift the limits of others.

use std::time::{Duration, Instant};

use fleetlimit::{
    Decision, ErrorKind, FailureMode, Limiter, LimiterBuilder, Policy, Quota, RedisStore, Source,
};
use futures_util::future::join_all;

use super::transport::{Remote, multi_thread};
use crate::common::{BOUND, wait_until};
use crate::log::Log;

const LIMIT: u64 = 10;

/// At this distance, so many checks at once are too many on a machine of any speed.
const ROUND_TRIP: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_millis(600);
const FLOOD: u32 = 4_096;

fn builder(store: &RedisStore, name: &'static str, quota: Quota) -> LimiterBuilder {
    let policy = Policy::new(name).quota("rate", quota);
    Limiter::builder(store.clone(), policy).timeout(TIMEOUT).cache_denials(Duration::ZERO)
}

/// Connects, and then moves the server away.
async fn connect(remote: &Remote, limiter: &Limiter) {
    wait_until_decided(limiter).await;
    remote.proxy.delay(ROUND_TRIP);
}

async fn wait_until_decided(limiter: &Limiter) {
    wait_until("Redis decides", BOUND, async || {
        limiter.check("warm").await.is_ok_and(|decision| decision.source() == Source::Store)
    })
    .await;
}

/// Many keys, each within its limit, until the other future ends.
async fn flooded<T>(limiter: &Limiter, other: impl Future<Output = T>) -> T {
    let flood = async {
        loop {
            join_all((0..FLOOD).map(|key| limiter.check(key))).await;
        }
    };
    tokio::select! {
        result = other => result,
        () = flood => unreachable!("it does not end"),
    }
}

#[test]
fn a_flood_that_overloads_the_store_does_not_lift_the_limits_of_others() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let store = remote.store();
        let search = builder(&store, "search", Quota::per_second(1_000_000)).build().unwrap();
        let login = builder(&store, "login", Quota::per_day(LIMIT));
        let login = login.failure_mode(FailureMode::Open).build().unwrap();
        connect(&remote, &login).await;
        let (log, _guard) = Log::capture();
        let attempts = async {
            let (start, mut tick) = (Instant::now(), tokio::time::interval(TIMEOUT / 100));
            let (mut decisions, mut local) = (Vec::new(), 0);
            // On a busy machine there are few at first.
            while start.elapsed() < 5 * TIMEOUT || (local <= 5 * LIMIT && start.elapsed() < BOUND) {
                tick.tick().await;
                let decision = login.check("alice").await.unwrap();
                local += u64::from(decision.source() == Source::Local);
                decisions.push(decision);
            }
            (decisions, local)
        };
        let (decisions, local) = flooded(&search, attempts).await;
        let count = |is: &dyn Fn(&Decision) -> bool| decisions.iter().filter(|one| is(one)).count();
        let opened = count(&|decision| decision.source() == Source::FailureMode);
        assert_eq!(opened, 0, "of {} decisions", decisions.len());
        let allowed = count(&|decision| decision.is_allowed());
        assert!(allowed as u64 <= 2 * LIMIT, "{allowed} are allowed");
        assert!(local > 5 * LIMIT, "the store is not overloaded: {local}");
        let is_reported = |event: &String| {
            event.contains("rate limit enforced locally") && event.contains("too many checks")
        };
        assert!(log.events().iter().any(is_reported), "{:#?}", log.events());

        // An outage is another matter.
        remote.proxy.swallow(true);
        wait_until("an outage opens", BOUND, async || {
            let decision = login.check("alice").await.unwrap();
            decision.is_allowed() && decision.source() == Source::FailureMode
        })
        .await;
    });
}

/// Otherwise responses would cost nothing for a client that floods.
#[test]
fn a_flood_that_overloads_the_store_does_not_make_charges_free() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let store = remote.store();
        let search = builder(&store, "search", Quota::per_second(1_000_000)).build().unwrap();
        let tokens = builder(&store, "tokens", Quota::per_day(LIMIT));
        let tokens = tokens.failure_mode(FailureMode::Open).build().unwrap();
        connect(&remote, &tokens).await;
        flooded(&search, async {
            wait_until("the store is overloaded", BOUND, async || {
                tokens.check("alice").await.unwrap().source() == Source::Local
            })
            .await;
            tokens.charge("alice", LIMIT).await.unwrap();
        })
        .await;
        wait_until_decided(&tokens).await;
        assert!(tokens.check("alice").await.unwrap().is_denied());
    });
}

#[test]
fn checks_that_are_too_many_fail_in_the_failure_mode_closed_and_say_why() {
    let remote = Remote::start(Duration::ZERO);
    multi_thread(2).block_on(async {
        let store = remote.store();
        let search = builder(&store, "search", Quota::per_second(1_000_000)).build().unwrap();
        let closed = builder(&store, "closed", Quota::per_day(1_000_000));
        let closed = closed.failure_mode(FailureMode::Closed).build().unwrap();
        connect(&remote, &closed).await;
        let error = flooded(&search, async {
            loop {
                let result = closed.check("alice").await;
                if let Some(error) = result.err().filter(|e| e.kind() == ErrorKind::Overloaded) {
                    return error;
                }
            }
        });
        let error = tokio::time::timeout(BOUND, error).await.expect("it says why checks fail");
        assert!(error.is_transient());
    });
}
