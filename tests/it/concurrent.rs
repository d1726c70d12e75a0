//! Permits that are held at a time, by several instances on a real Redis whose clock the test sets: compared with a
//! list of who holds how many and until when.

use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{Costs, Hold, Limiter, Policy, Quota};
use proptest::prelude::*;

use crate::common::{CLOCK, ClockProxy, Server};
use crate::exact::{fixed_sample, uncached};

const INSTANCES: usize = 3;

/// The time for which permits are held that are not renewed, in microseconds. It is so long that no permits are
/// renewed while the test runs.
const LIFETIME: u64 = 3_600_000_000;

#[derive(Clone, Debug)]
enum What {
    Take(u64),
    /// Gives back what was taken last.
    GiveBack,
}

/// An instance, the time that passes before, and what it does.
type Step = (usize, i64, What);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passes = prop_oneof![
        3 => Just(0),
        3 => 1..=LIFETIME as i64 / 3,
        2 => (-1..=1i64).prop_map(|more| LIFETIME as i64 + more),
        1 => -3 * LIFETIME as i64..0i64,
    ];
    let what = prop_oneof![5 => (1..=3u64).prop_map(What::Take), 3 => Just(What::GiveBack)];
    prop::collection::vec((0..INSTANCES, passes, what), 1..40)
}

/// What the server knows about a key.
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
    /// held now.
    fn at(&self, now: u64) -> Self {
        let back = self.written.map_or(0, |written| written.saturating_sub(now));
        let held = self.held.map(|(permits, end)| match end > now + back {
            true => (permits, end - back),
            false => (0, 0),
        });
        Self { held, written: self.written.map(|written| written - back) }
    }

    /// Changes it by a call of an instance that holds so many permits, and wants more. Returns true if it gets them.
    fn call(&mut self, instance: usize, holds: u64, wants: u64, limit: u64, now: u64) -> bool {
        *self = self.at(now);
        self.written = Some(now);
        self.held[instance] = (holds, now + LIFETIME);
        let is_allowed = self.used() + wants <= limit;
        self.held[instance].0 += if is_allowed { wants } else { 0 };
        is_allowed
    }
}

/// An instance, with what it holds.
struct Instance {
    limiter: Limiter,
    holds: Vec<(u64, Hold)>,
}

impl Instance {
    fn permits(&self) -> u64 {
        self.holds.iter().map(|(permits, _)| permits).sum()
    }
}

async fn run(proxy: &ClockProxy, key: &str, limit: u64, steps: &[Step]) {
    let redis_key = format!("prefix:{{{key}}}:test:t2");
    let quota = Quota::concurrent(limit);
    // The last one has another quota beside it, so its values have another form.
    let policy = |instance| match Policy::new("test").quota("held", quota) {
        policy if instance + 1 == INSTANCES => policy.quota("rate", Quota::per_day(1_000_000)),
        policy => policy,
    };
    let store = || proxy.store("prefix").hold_for(Duration::from_micros(LIFETIME));
    let limiter = |instance| uncached(store(), policy(instance));
    let instance = |instance| Instance { limiter: limiter(instance), holds: Vec::new() };
    let mut instances: Vec<Instance> = (0..INSTANCES).map(instance).collect();
    // Far enough from the time of the server, at which keys expire.
    let mut now = UNIX_EPOCH.elapsed().unwrap().as_micros() as u64 + 10 * 86_400_000_000;
    let mut expected = Expected::default();
    for (number, (index, passes, what)) in steps.iter().enumerate() {
        now = now.saturating_add_signed(*passes);
        proxy.set_time(now).await;
        if proxy.stored(&redis_key).await.is_some_and(|(_, expiry)| expiry <= now) {
            proxy.command(&["DEL", &redis_key]).await;
            assert_eq!(expected.at(now).used(), 0, "it has expired too early");
            expected = Expected::default();
        }
        let instance = &mut instances[*index];
        let place = || format!("step {number} at {now} of {steps:?} with a limit of {limit}");
        match what {
            What::Take(permits) => {
                let holds = instance.permits();
                let costs = Costs::new(1).with("held", *permits);
                let hold = instance.limiter.hold(key.to_owned(), costs).await.unwrap();
                let is_allowed = expected.call(*index, holds, *permits, limit, now);
                assert_eq!(hold.decision().is_allowed(), is_allowed, "{}", place());
                if hold.decision().is_allowed() {
                    instance.holds.push((*permits, hold));
                } else {
                    assert_eq!(hold.decision().retry_after(), None, "{}", place());
                }
            }
            What::GiveBack => {
                let before = proxy.stored(&redis_key).await;
                if instance.holds.pop().is_some() {
                    expected.call(*index, instance.permits(), 0, limit, now);
                    // Nobody waits for it. The number of the call makes each value different.
                    while proxy.stored(&redis_key).await == before {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
        let other = (index + 1) % INSTANCES;
        if expected.written.is_some_and(|written| written > now) {
            // A peek writes it again, too, which renews what its instance holds.
            expected.call(other, expected.at(now).held[other].0, 0, limit, now);
        }
        let other = &instances[other];
        let peeked = other.limiter.peek(key.to_owned()).await.unwrap();
        let left = peeked.quotas().find(|quota| quota.name() == "held").unwrap().remaining();
        let held = expected.at(now).used();
        assert_eq!(left, limit.saturating_sub(held), "{}", place());
        if let Some((_, expiry)) = proxy.stored(&redis_key).await {
            // The expiry is in milliseconds, and at the end of a granule of at most 1/16.
            let end = expected.at(now).last_end().max(now);
            assert!(expiry + 1_000 >= end, "it expires at {expiry}, before {end}: {}", place());
            let most = end + 20 * LIFETIME / 16 + 86_400_000_000 + 1_000_000;
            assert!(expiry <= most, "it expires at {expiry}: {}", place());
        }
    }
}

#[tokio::test]
async fn instances_hold_what_they_have_taken_until_they_give_it_back_or_it_ends() {
    let server = Server::start().await;
    let proxy = ClockProxy::start(&server, &[CLOCK]).await;
    for (number, (limit, steps)) in fixed_sample((3..=9u64, steps()), 300).iter().enumerate() {
        run(&proxy, &format!("key{number}"), *limit, steps).await;
    }
}
