//! Permits that are held at a time, by several instances on a real Redis whose clock the test sets: compared with a
//! list of who holds how many and until when.

use std::time::UNIX_EPOCH;

use fleetlimit::{Limiter, Quota};
use proptest::prelude::*;

use crate::common::{CLOCK, ClockProxy, Server};
use crate::exact::{fixed_sample, uncached};

const KEY: &str = "prefix:{key}:default:t2";
const INSTANCES: usize = 3;

/// The time for which permits are held that are not renewed, in microseconds.
const LIFETIME: u64 = 10_000_000;

#[derive(Clone, Debug)]
enum What {
    Take(u64),
    GiveBack(u64),
}

/// An instance, the time that passes before, and what it does.
type Step = (usize, i64, What);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passes = prop_oneof![
        3 => Just(0),
        3 => 1..=3_000_000i64,
        2 => (-1..=1i64).prop_map(|more| LIFETIME as i64 + more),
        1 => -30_000_000..0i64,
    ];
    let what = prop_oneof![
        5 => (1..=3u64).prop_map(What::Take),
        3 => (1..=4u64).prop_map(What::GiveBack),
    ];
    prop::collection::vec((0..INSTANCES, passes, what), 1..40)
}

/// What is known about a key.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// The permits of each instance, and when they end.
    held: [(u64, u64); INSTANCES],
    /// The time of the last change. `None` if there was none.
    written: Option<u64>,
}

impl Expected {
    fn used(&self) -> u64 {
        self.held.iter().map(|(permits, _)| permits).sum()
    }

    fn last_end(&self) -> u64 {
        self.held.iter().filter(|(permits, _)| *permits > 0).map(|(_, end)| *end).max().unwrap_or(0)
    }

    /// Returns what counts at this time. If the clock has stepped back since the last change, what was held then is
    /// held now, and this is a change.
    fn at(&self, now: u64) -> Self {
        let back = self.written.map_or(0, |written| written.saturating_sub(now));
        let held = self.held.map(|(permits, end)| match end > now + back {
            true => (permits, end - back),
            false => (0, 0),
        });
        Self { held, written: self.written.map(|written| written - back) }
    }

    /// Changes it at this time. Returns `None` if that is denied.
    fn after(&self, instance: usize, what: &What, limit: u64, now: u64) -> Option<Self> {
        let mut after = self.at(now);
        let used = after.used();
        let own = &mut after.held[instance];
        match what {
            What::Take(permits) if used + permits > limit => return None,
            What::Take(permits) => own.0 += permits,
            // A key that was never used has nothing to give back.
            What::GiveBack(_) if self.written.is_none() => return Some(after),
            What::GiveBack(permits) => own.0 -= own.0.min(*permits),
        }
        own.1 = now + LIFETIME;
        after.written = Some(now);
        Some(after)
    }
}

async fn run(proxy: &ClockProxy, limit: u64, steps: &[Step]) {
    proxy.command(&["DEL", KEY]).await;
    let quota = Quota::concurrent(limit);
    let limiters: Vec<Limiter> =
        (0..INSTANCES).map(|_| uncached(proxy.store("prefix"), quota)).collect();
    // Far enough from the time of the server, at which keys expire.
    let mut now = UNIX_EPOCH.elapsed().unwrap().as_micros() as u64 + 10 * 86_400_000_000;
    let mut expected = Expected::default();
    for (number, (instance, passes, what)) in steps.iter().enumerate() {
        now = now.saturating_add_signed(*passes);
        proxy.set_time(now).await;
        if proxy.stored(KEY).await.is_some_and(|(_, expiry)| expiry <= now) {
            proxy.command(&["DEL", KEY]).await;
            assert_eq!(expected.at(now).used(), 0, "it has expired too early");
            expected = Expected::default();
        }
        let after = expected.after(*instance, what, limit, now);
        if expected.written.is_some_and(|written| written > now) {
            // A denied check writes it again, too, which renews what the instance holds.
            expected = expected.at(now);
            expected.held[*instance].1 = now + LIFETIME;
        }
        expected = after.unwrap_or(expected);
        let limiter = &limiters[*instance];
        let place = || format!("step {number} at {now} of {steps:?}");
        match what {
            What::Take(permits) => {
                let decision = limiter.check_cost("key", *permits).await.unwrap();
                assert_eq!(decision.is_allowed(), after.is_some(), "{}", place());
                assert_eq!(decision.retry_after(), None, "{}", place());
            }
            What::GiveBack(permits) => limiter.credit("key", *permits).await.unwrap(),
        }
        let other = &limiters[(instance + 1) % INSTANCES];
        let left = other.peek("key").await.unwrap().remaining();
        assert_eq!(left, limit - expected.at(now).used(), "{}", place());
        if let Some((_, expiry)) = proxy.stored(KEY).await {
            // The expiry is in milliseconds, and at the end of a second.
            let end = expected.at(now).last_end().max(now);
            assert!(expiry + 1_000 >= end, "it expires at {expiry}, before {end}: {}", place());
            assert!(expiry <= end + 31_000_000, "it expires at {expiry}: {}", place());
        }
    }
}

#[tokio::test]
async fn instances_hold_what_they_have_taken_until_they_give_it_back_or_it_ends() {
    let server = Server::start().await;
    let proxy = ClockProxy::start(&server, &[CLOCK]).await;
    for (limit, steps) in fixed_sample((3..=9u64, steps()), 300) {
        run(&proxy, limit, &steps).await;
    }
}
