//! Policies of several quotas: on Redis and in memory they decide as if nothing else were in the key,
//! also while revisions with other quotas use it.

use std::env;
use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{
    Costs, Decision, Hold, Limiter, MemoryStore, Policy, Quota, RedisStore, Reservation, Source,
};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::common::Server;
use crate::exact::{paused_runtime, sample, uncached};

const REDIS_KEY: &str = "fleetlimit:{key}:test:t2";

/// Policies that are used in turn on one key, and the checks.
#[derive(Clone, Debug)]
struct Case {
    revisions: Vec<Policy>,
    checks: Vec<Check>,
}

#[derive(Clone, Debug)]
struct Check {
    /// The index of a policy.
    revision: usize,
    cost: u64,
    /// Of one of the quotas.
    of_a: u64,
    is_charged_later: bool,
    may_wait: bool,
    /// Done at the same time, before the check. Then its cost is 1.
    adjustment: Option<Adjustment>,
}

#[derive(Clone, Debug)]
enum Adjustment {
    Charge(u64),
    Credit(u64),
    /// Cancels the reservation of this number, if it is far from its time.
    Cancel(usize),
}

/// Every policy has this quota first. It tells the time: a permit refills in at least ten minutes.
const CLOCK: &str = "clock";

fn clock() -> impl Strategy<Value = Quota> {
    (1..=7u64, 4_200_000_000..=100_000_000_000u64, 1..=40u64).prop_map(
        |(permits, micros, burst)| Quota::new(permits, Duration::from_micros(micros)).burst(burst),
    )
}

fn bucket() -> impl Strategy<Value = Quota> {
    let permits = prop_oneof![Just(1u64), Just(3), Just(7), 1..=1_000_000u64];
    let micros = prop_oneof![1..=100_000u64, Just(3_600_000_000), 1..=1u64 << 48];
    let burst = prop_oneof![1..=20u64, 1_000..=2_000_000u64];
    let quota = (permits, micros, burst).prop_map(|(permits, micros, burst)| {
        Quota::new(permits, Duration::from_micros(micros)).burst(burst)
    });
    quota.prop_filter("too large to represent exactly", |quota| {
        Limiter::new(MemoryStore::new(), *quota).is_ok()
    })
}

/// One of each kind.
pub(crate) fn quotas() -> Vec<BoxedStrategy<Quota>> {
    let limit = prop_oneof![1..=20u64, 1_000..=1u64 << 48];
    let micros = prop_oneof![1_000..=100_000u64, Just(604_800_000_000), 1_000..=1u64 << 52];
    let window = (limit, micros, any::<bool>()).prop_map(|(limit, micros, is_on_clock)| {
        let quota = Quota::new(limit, Duration::from_micros(micros));
        if is_on_clock { quota.calendar() } else { quota.fixed_window() }
    });
    let calendar = (1..=20u64, 0..4).prop_map(|(limit, kind)| match kind {
        0 => Quota::per_day(limit).calendar_in("Europe/Berlin"),
        1 => Quota::new(limit, Duration::from_secs(604_800)).calendar_in("Pacific/Apia"),
        2 => Quota::per_month(limit).calendar_in("America/Santiago"),
        _ => Quota::per_month(limit),
    });
    let borrowing =
        (bucket(), 1..=40u64).prop_map(|(bucket, permits)| bucket.borrow_up_to(permits));
    let wait = prop_oneof![1..=50_000u64, Just(3_600_000_000), 1..=1u64 << 52];
    let queue =
        (bucket(), wait).prop_map(|(bucket, micros)| bucket.queue(Duration::from_micros(micros)));
    let micros = prop_oneof![1_000..=100_000u64, Just(3_600_000_000), Just(1 << 48)];
    let interval = (1..=50u64, micros, prop_oneof![1..=50u64, Just(2_000_000)]);
    let interval = interval.prop_map(|(permits, micros, burst)| {
        Quota::new(permits, Duration::from_micros(micros)).burst(burst).interval_refill()
    });
    let limit = prop_oneof![1..=20u64, 1..=780_903_144u64];
    let micros = prop_oneof![1_000..=100_000u64, Just(86_400_000_000), 1_000..=1u64 << 51];
    let approximate = (limit, micros).prop_map(|(limit, micros)| {
        Quota::new(limit, Duration::from_micros(micros)).approximate_sliding_window()
    });
    let width = prop_oneof![1_000..=20_000u64, Just(3_600_000_000)];
    let sliding = (1..=20u64, width, prop_oneof![Just(1u32), 2..=5u32, Just(60)]);
    let sliding = sliding.prop_map(|(limit, width, segments)| {
        let micros = width * u64::from(segments);
        Quota::new(limit, Duration::from_micros(micros)).sliding_window(segments)
    });
    let concurrent = (1..=40u64).prop_map(Quota::concurrent);
    let quotas = [
        bucket().boxed(),
        borrowing.boxed(),
        queue.boxed(),
        interval.boxed(),
        window.boxed(),
        calendar.boxed(),
        approximate.boxed(),
        sliding.boxed(),
        concurrent.boxed(),
    ];
    quotas.map(|quota| quota.prop_filter("too large", is_possible).boxed()).into()
}

/// Whether the process computes its windows, around its own time, and sends them.
pub(crate) fn has_time_zone(quota: &Quota) -> bool {
    let text = quota.to_string();
    text.contains("calendar ") || text.contains("month")
}

/// The index of the algorithm in [`quotas`].
fn algorithm(quota: &Quota) -> usize {
    let text = quota.to_string();
    let is = |word| text.contains(word);
    match () {
        () if is("borrow") => 1,
        () if is("queue") => 2,
        () if is("interval") => 3,
        () if has_time_zone(quota) => 5,
        () if is("fixed") || is("calendar") => 4,
        () if is("sliding approximate") => 6,
        () if is("sliding") => 7,
        () if is("concurrent") => 8,
        () => 0,
    }
}

/// Each algorithm is in a sixth of the cases, of which these are the policies that are used.
pub(crate) fn assert_all_algorithms<'a>(cases: impl Iterator<Item = Vec<&'a Policy>>) {
    let (mut counts, mut all) = ([0; 9], 0);
    for policies in cases {
        let mut is_here = [false; 9];
        let quotas = policies.iter().flat_map(|policy| policy.quotas());
        quotas.for_each(|(_, quota)| is_here[algorithm(quota)] = true);
        counts.iter_mut().zip(is_here).for_each(|(count, is_here)| *count += usize::from(is_here));
        all += 1;
    }
    // Of a few cases there may be fewer by chance.
    assert!(all < 10_000 || counts.iter().all(|count| count * 6 >= all), "{counts:?} of {all}");
}

pub(crate) fn is_possible(quota: &Quota) -> bool {
    Limiter::new(MemoryStore::new(), *quota).is_ok()
}

pub(crate) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Most revisions have quotas of the same kind under a name, with other numbers.
fn revisions() -> impl Strategy<Value = Vec<Policy>> {
    let other = (0..NAMES.len(), quotas(), 0..40usize);
    let revision = (clock(), prop::collection::vec(other, 0..=3));
    let kinds = prop::collection::vec(0..9usize, NAMES.len());
    (kinds, prop::collection::vec(revision, 1..=3)).prop_map(|(kinds, revisions)| {
        let policy = |(clock, mut others): (Quota, Vec<(usize, Vec<Quota>, usize)>)| {
            others.sort_by_key(|(name, ..)| *name);
            others.dedup_by_key(|(name, ..)| *name);
            let policy = Policy::new("test").quota(CLOCK, clock);
            others.iter().fold(policy, |policy, (name, quotas, any)| {
                let quota = quotas.get(*any).unwrap_or(&quotas[kinds[*name]]);
                policy.quota(NAMES[*name], *quota)
            })
        };
        let mut revisions: Vec<_> =
            revisions.into_iter().map(policy).map(without_queues_if_held).collect();
        // A hold makes what it finds that of its revision, also if it is denied. In memory it does not.
        if revisions.iter().any(is_held) {
            revisions.truncate(1);
        }
        revisions
    })
}

fn cases() -> impl Strategy<Value = Case> {
    revisions().prop_flat_map(|revisions| {
        let cost = prop_oneof![8 => 0..=3u64, 2 => 1..=41u64, 1 => Just(u32::MAX.into())];
        let permits = prop_oneof![
            16 => 1..=30u64, 1 => 1..=1u64 << 52, 1 => (1u64 << 53) - 1..=(1 << 53) + 1, 2 => Just(u64::MAX)
        ];
        let adjustment = prop_oneof![
            permits.clone().prop_map(Adjustment::Charge),
            permits.prop_map(Adjustment::Credit),
            (0..4usize).prop_map(Adjustment::Cancel),
        ];
        let adjustment = prop::option::weighted(0.2, adjustment);
        let check = (0..revisions.len(), cost, 0..=5u64, any::<(bool, bool)>(), adjustment)
            .prop_map(|(revision, cost, of_a, (is_charged_later, may_wait), adjustment)| Check {
                revision,
                cost,
                of_a,
                is_charged_later,
                may_wait,
                adjustment,
            });
        // A hold is not sent with an adjustment.
        let is_held = revisions.iter().any(is_held);
        let check = check.prop_map(move |check| match is_held {
            true => Check { adjustment: None, ..check },
            false => check,
        });
        let checks = prop::collection::vec(check, 1..20);
        checks.prop_map(move |checks| Case { revisions: revisions.clone(), checks })
    })
}

fn costs(policy: &Policy, check: &Check) -> Costs {
    let cost = if check.adjustment.is_some() { 1 } else { check.cost };
    let costs = match check.is_charged_later {
        true => Costs::new(cost).charged_later(),
        false => Costs::new(cost),
    };
    // The clock only runs after it was charged.
    match policy.quotas().any(|(name, _)| name == "a") && cost > 0 && check.adjustment.is_none() {
        true => costs.with("a", check.of_a),
        false => costs,
    }
}

/// Returns whether a reservation was there to be cancelled and far from its time.
async fn adjust(
    limiter: &Limiter,
    adjustment: &Adjustment,
    reserved: &mut Vec<Reservation>,
    may_cancel: bool,
) -> bool {
    match *adjustment {
        Adjustment::Charge(permits) => {
            limiter.charge("key", Costs::new(permits).with(CLOCK, 1)).await.unwrap();
        }
        Adjustment::Credit(permits) => {
            limiter.credit("key", Costs::new(permits).with(CLOCK, 0)).await.unwrap();
        }
        Adjustment::Cancel(number) => {
            let far = Duration::from_secs(60);
            let is_far = reserved.get(number).is_some_and(|reserved| reserved.delay() > far);
            if is_far && may_cancel {
                reserved.remove(number).cancel().await.unwrap();
                return true;
            }
        }
    }
    false
}

/// The 32-bit FNV-1a hash of a name.
fn identity(name: &str) -> [u8; 4] {
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    name.bytes().fold(2_166_136_261, hash).to_be_bytes()
}

/// When the clock will be full, in ticks, and the ticks in a microsecond.
fn clock_of(value: &[u8]) -> (i128, i128) {
    if value[0] != 1 {
        let digits = str::from_utf8(&value[..value.len() - 3]).unwrap();
        return (digits.parse::<i128>().unwrap() - 1_000, 1);
    }
    let (mut rest, mut entries) = (&value[3..], Vec::new());
    for _ in 0..value[1] {
        let (numbers, cells) = (usize::from(rest[5]), usize::from(rest[7]));
        entries.push((&rest[..4], &rest[8..8 + numbers], cells));
        rest = &rest[8 + numbers..];
    }
    let number = |bytes: &[u8]| f64::from_be_bytes(bytes.try_into().unwrap()) as i128;
    // A value that a policy with a single bucket wrote may have an entry without an identity.
    let of = |id: [u8; 4]| entries.iter().position(|(other, ..)| **other == id);
    let index = of(identity(CLOCK)).or_else(|| of([0; 4])).unwrap();
    // After the time at which it was written.
    let start = 8 + entries[..index].iter().map(|(_, _, cells)| cells).sum::<usize>();
    let scale = number(&entries[index].1[8..]);
    let cells = &rest[start..];
    let ticks = if entries[index].2 == 16 { number(&cells[8..16]) } else { 0 };
    (number(&cells[..8]) * scale + ticks, scale)
}

/// A policy has queues, or permits that are held.
pub(crate) fn without_queues_if_held(policy: Policy) -> Policy {
    if !is_held(&policy) {
        return policy;
    }
    let quotas = policy.quotas().filter(|(_, quota)| !quota.to_string().contains("queue"));
    quotas.fold(Policy::new("test"), |policy, (name, quota)| policy.quota(name.to_owned(), *quota))
}

/// Returns true if checks of a policy have to be holds.
pub(crate) fn is_held(policy: &Policy) -> bool {
    policy.quotas().any(|(_, quota)| quota.to_string().contains("concurrent"))
}

/// Checks, and keeps what was reserved or is held until the end of the case.
async fn check(
    limiter: &Limiter,
    costs: Costs,
    may_wait: bool,
    reserved: &mut Vec<Reservation>,
    held: &mut Vec<Hold>,
) -> Decision {
    if is_held(&limiter.policy()) {
        let hold = limiter.hold("key", costs).await.unwrap();
        let decision = hold.decision().clone();
        held.push(hold);
        return decision;
    }
    if !may_wait {
        return limiter.check_cost("key", costs).await.unwrap();
    }
    let reservation = limiter.reserve("key", costs).await.unwrap();
    let decision = reservation.decision().clone();
    reserved.push(reservation);
    decision
}

/// Runs a case on Redis. Returns the decisions, each with its time on the server's clock in
/// microseconds. A decision for which the server was not asked has the time of the one before.
async fn decide_on_redis(server: &Server, prefix: &str, case: &Case) -> Vec<(u64, Decision, bool)> {
    let limiters = case.revisions.iter().map(|policy| {
        // A store of its own, as in another process.
        let store = RedisStore::open(server.url()).unwrap().key_prefix(prefix.to_owned());
        uncached(store, policy.clone())
    });
    let limiters: Vec<Limiter> = limiters.collect();
    let redis_key = REDIS_KEY.replace("fleetlimit", prefix);
    let (mut last, mut decisions) = (0, Vec::new());
    // The reservations, and the revision of each.
    let (mut reserved, mut reserved_by) = (Vec::new(), Vec::new());
    let mut held = Vec::new();
    // Whether a short window still counts, and how much a bucket that lends gets back, depends on how
    // long the process took.
    let is_certain = |(_, quota): (&str, &Quota)| {
        quota.period() > Duration::from_secs(10) && !quota.to_string().contains("borrow")
    };
    let may_cancel = case.revisions.iter().all(|policy| policy.quotas().all(is_certain));
    for step in &case.checks {
        let mut is_cancelled = false;
        let (limiter, policy) = (&limiters[step.revision], &case.revisions[step.revision]);
        let costs = costs(policy, step);
        let decision = match &step.adjustment {
            None => check(limiter, costs, step.may_wait, &mut reserved, &mut held).await,
            Some(adjustment) => {
                let is_here = |number: usize| reserved_by.get(number) == Some(&step.revision);
                let mut new = Vec::new();
                let decision = match adjustment {
                    // On another connection, so its order would be left to chance.
                    Adjustment::Cancel(number) if !is_here(*number) => {
                        is_cancelled = adjust(limiter, adjustment, &mut reserved, may_cancel).await;
                        check(limiter, costs, step.may_wait, &mut new, &mut held).await
                    }
                    // While the first is in flight, the other two wait, and then share a call.
                    _ => {
                        let (_, cancelled, decision) = tokio::join!(
                            limiter.check("other key"),
                            adjust(limiter, adjustment, &mut reserved, may_cancel),
                            check(limiter, costs, step.may_wait, &mut new, &mut held),
                        );
                        is_cancelled = cancelled;
                        decision
                    }
                };
                if let (true, Adjustment::Cancel(number)) = (is_cancelled, adjustment) {
                    reserved_by.remove(*number);
                }
                reserved.extend(new);
                decision
            }
        };
        reserved_by.resize(reserved.len(), step.revision);
        let value: Option<Vec<u8>> = server.query(&["GET", &redis_key]).await;
        if let (Some(value), Source::Store) = (value, decision.source()) {
            let (full_at, scale) = clock_of(&value);
            let clock = decision.quotas().find(|quota| quota.name() == CLOCK).unwrap();
            let now = full_at - clock.reset_after().as_micros() as i128 * scale;
            last = -(-now).div_euclid(scale) as u64;
        }
        decisions.push((last, decision, is_cancelled));
    }
    decisions
}

#[test]
fn redis_and_the_memory_store_make_the_same_decisions_for_any_mix_of_quotas() {
    let real = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = real.block_on(Server::start());
    // `make test-servers` compares more of them.
    let count = env::var("FLEETLIMIT_MIX_CASES").map_or(300, |count| count.parse().unwrap());
    compare(&real, &server, count);
}

/// Compares a server and the memory store in so many random cases.
///
/// # Panics
/// If a decision differs.
pub(crate) fn compare(real: &Runtime, server: &Server, count: usize) {
    let mut skipped = 0;
    let cases = sample(cases(), count);
    assert_all_algorithms(
        cases
            .iter()
            .map(|case| case.checks.iter().map(|check| &case.revisions[check.revision]).collect()),
    );
    for (n, case) in cases.iter().enumerate() {
        let decisions = real.block_on(decide_on_redis(server, &format!("case{n}"), case));
        paused_runtime().block_on(async {
            let first = decisions.iter().map(|(at, ..)| *at).find(|at| *at > 0);
            // Without a time the windows of calendars have to be those of the present all the same.
            let now = || UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
            let first = first.unwrap_or_else(now);
            let store = MemoryStore::starting_at(UNIX_EPOCH + Duration::from_micros(first));
            let limiter = Limiter::new(store, case.revisions[0].clone()).unwrap();
            let start = tokio::time::Instant::now();
            let (mut reserved, mut held) = (Vec::new(), Vec::new());
            for (step, (at, expected, is_cancelled)) in case.checks.iter().zip(decisions) {
                // Unlike a timer, which has milliseconds, `advance` is exact to the microsecond.
                let elapsed = Duration::from_micros(at.saturating_sub(first));
                let Some(pause) = elapsed.checked_sub(start.elapsed()) else {
                    // The clock of the machine has been set back, which that of the memory store is
                    // never.
                    skipped += 1;
                    return;
                };
                tokio::time::advance(pause).await;
                let policy = &case.revisions[step.revision];
                limiter.update(policy.clone()).unwrap();
                if let Some(adjustment) = &step.adjustment {
                    let cancelled = adjust(&limiter, adjustment, &mut reserved, is_cancelled).await;
                    assert_eq!(cancelled, is_cancelled, "{step:?} {case:?}");
                }
                let costs = costs(policy, step);
                let decision =
                    check(&limiter, costs, step.may_wait, &mut reserved, &mut held).await;
                let quotas =
                    |decision: &Decision| format!("{:?}", decision.quotas().collect::<Vec<_>>());
                assert_eq!(quotas(&decision), quotas(&expected), "{at} {step:?} {case:?}");
                assert_eq!(decision, expected, "{at} {step:?} {case:?}");
            }
        });
    }
    assert!(skipped <= 1 + count / 1_000, "{skipped} of {count} cases were skipped");
}
