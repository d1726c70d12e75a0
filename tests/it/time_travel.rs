//! Redis with a clock that a test sets: it stands still, jumps and steps back. So the scripts are compared
//! with the pure functions at any time, and in calls of many checks.

use std::env;
use std::fmt;
use std::num::NonZeroUsize;
use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{
    Costs, Decision, Hold, Limiter, ManualClock, MemoryStore, Policy, Quota, Reservation, Source,
};
use futures_util::future::join_all;
use proptest::prelude::*;

use crate::common::{CLOCK, ClockProxy, NO_EXPIRY, Server};
use crate::exact::{fixed_sample, sample, uncached};
use crate::mixes::{
    NAMES, assert_all_algorithms, has_time_zone, is_held, is_possible, quotas,
    without_queues_if_held,
};
use crate::oracle::State;

/// The most permits of a window, or microseconds in which a bucket refills.
const MOST: u64 = (1 << 52) / 11;

#[derive(Clone)]
struct Case {
    revisions: Vec<Policy>,
    steps: Vec<Step>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for policy in &self.revisions {
            let quotas = policy.quotas().map(|(name, quota)| format!("{name} = {quota}"));
            writeln!(f, "{}", quotas.collect::<Vec<_>>().join(", "))?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step:?}"))
    }
}

#[derive(Clone, Debug)]
struct Step {
    revision: usize,
    /// In microseconds since the step before. Less than 0 if the clock steps back.
    passes: i64,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// At once, of these costs.
    Checks {
        costs: Vec<u64>,
        is_charged_later: bool,
        may_wait: bool,
    },
    Charge(u64),
    Credit(u64),
}

/// A bucket whose value is short, if it is the only quota, and limits at the end of the range.
fn more_quotas() -> impl Strategy<Value = Quota> {
    let most = prop_oneof![Just(MOST), Just(MOST - 1)];
    let short = prop_oneof![Just(1u64), Just(10), Just(50)];
    prop_oneof![
        4 => (short, 1..=30u64).prop_map(|(n, burst)| Quota::per_second(n).burst(burst)),
        1 => most.clone().prop_map(|most| Quota::new(1, Duration::from_micros(1)).burst(most)),
        1 => most.clone().prop_map(|most| Quota::per_hour(most).fixed_window()),
        1 => most.prop_map(|most| Quota::per_minute(most).calendar()),
    ]
    .prop_filter("too large", is_possible)
}

/// The index of a name; a quota of each kind, and another; and the index of one of them.
type Drawn = (usize, Vec<Quota>, Quota, usize);

/// Half of them have a single quota, which is of any kind.
fn revisions() -> impl Strategy<Value = Vec<Policy>> {
    let kinds = quotas().len();
    let other = (0..NAMES.len(), quotas(), more_quotas().boxed(), 0..kinds + 4);
    let count = prop_oneof![Just(1usize), 2..=4usize];
    let same = prop::collection::vec(0..kinds + 4, NAMES.len());
    (count, same, 1..=3usize).prop_flat_map(move |(count, same, revisions)| {
        let revision = prop::collection::vec((other.clone(), any::<prop::sample::Index>()), count);
        prop::collection::vec(revision, revisions).prop_map(move |revisions| {
            let policy = |mut quotas: Vec<(Drawn, prop::sample::Index)>| {
                quotas.sort_by_key(|((name, ..), _)| *name);
                quotas.dedup_by_key(|((name, ..), _)| *name);
                let policy = Policy::new("test");
                quotas.iter().fold(policy, |policy, ((name, kinds, more, any), changes)| {
                    // Mostly the kind that the others have under this name.
                    let kind = if changes.index(5) == 0 { *any } else { same[*name] };
                    policy.quota(NAMES[*name], *kinds.get(kind).unwrap_or(more))
                })
            };
            revisions.into_iter().map(policy).map(without_queues_if_held).collect()
        })
    })
}

/// Where numbers stop being exact.
fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(u32::MAX.into()),
        (1u64 << 52) - 1..=(1 << 52) + 1,
        (1u64 << 53) - 1..=(1 << 53) + 1,
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    const HOUR: i64 = 3_600_000_000;
    revisions().prop_flat_map(|revisions| {
        let cost = prop_oneof![
            16 => 0..=3u64, 4 => 1..=41u64, 2 => edge(), 1 => Just(u64::MAX)
        ];
        let costs = prop_oneof![
            6 => cost.clone().prop_map(|cost| vec![cost]),
            2 => (cost.clone(), 2..=40usize).prop_map(|(cost, count)| vec![cost; count]),
            1 => prop::collection::vec(cost, 2..=12),
        ];
        let permits =
            prop_oneof![16 => 1..=30u64, 1 => 1..=1u64 << 52, 1 => edge(), 2 => Just(u64::MAX)];
        let what = prop_oneof![
            8 => (costs, any::<(bool, bool)>()).prop_map(
                |(costs, (is_charged_later, may_wait))|
                    What::Checks { costs, is_charged_later, may_wait }
            ),
            1 => permits.clone().prop_map(What::Charge),
            1 => permits.prop_map(What::Credit),
        ];
        let passes = prop_oneof![
            4 => Just(0),
            4 => 1..=100_000i64,
            2 => 1..=HOUR,
            1 => 1..=400 * 24 * HOUR,
            1 => -HOUR..0,
        ];
        let step = (0..revisions.len(), passes, what).prop_map(|(revision, passes, what)| Step {
            revision,
            passes,
            what,
        });
        prop::collection::vec(step, 1..16)
            .prop_map(move |steps| Case { revisions: revisions.clone(), steps })
    })
}

/// What a value in the packed form says: see `lua/packed.lua`.
struct Packed {
    tags: Vec<u8>,
    written: u64,
    /// When its last entry is as if it had never been used.
    last: u64,
}

impl Packed {
    fn parse(value: &[u8]) -> Option<Self> {
        let &[1, count, _, ref heads @ ..] = value else { return None };
        let (mut rest, mut tags, mut sizes) = (heads, Vec::new(), Vec::new());
        for _ in 0..count {
            let &[_, _, _, _, tag, numbers, high, low, ref after @ ..] = rest else { return None };
            tags.push(tag);
            sizes.push(usize::from(u16::from_be_bytes([high, low])));
            rest = &after[numbers.into()..];
        }
        let time = |bytes: &[u8]| f64::from_be_bytes(bytes[..8].try_into().unwrap()) as u64;
        let (written, mut cells) = (time(rest), &rest[8..]);
        let ends = sizes.into_iter().map(|size| {
            let end = time(cells);
            cells = &cells[size..];
            end
        });
        Some(Self { tags, written, last: ends.max()? })
    }

    /// Whether it says when a bucket was empty: see `lua/doubt.lua`.
    fn is_doubted(&self) -> bool {
        self.tags.contains(&6)
    }
}

async fn act(
    limiter: &Limiter,
    what: &What,
    reserved: &mut Vec<Reservation>,
    held: &mut Vec<Hold>,
) -> Vec<Decision> {
    match what {
        What::Checks { costs, is_charged_later, may_wait } => {
            let costs = costs.iter().map(|&cost| match is_charged_later {
                true => Costs::new(cost).charged_later(),
                false => Costs::new(cost),
            });
            if is_held(&limiter.policy()) {
                let all = join_all(costs.map(|costs| limiter.hold("key", costs))).await;
                let new: Vec<_> = all.into_iter().map(Result::unwrap).collect();
                let decisions = new.iter().map(|hold| hold.decision().clone()).collect();
                held.extend(new);
                return decisions;
            }
            if *may_wait {
                let all = costs.map(|costs| limiter.reserve("key", costs));
                let new: Vec<_> = join_all(all).await.into_iter().map(Result::unwrap).collect();
                let decisions = new.iter().map(|one| one.decision().clone()).collect();
                reserved.extend(new);
                return decisions;
            }
            let all = join_all(costs.map(|costs| limiter.check_cost("key", costs))).await;
            return all.into_iter().map(Result::unwrap).collect();
        }
        What::Charge(permits) => limiter.charge("key", *permits).await.unwrap(),
        What::Credit(permits) => limiter.credit("key", *permits).await.unwrap(),
    };
    Vec::new()
}

/// The longest time for which a quota can be in use, in microseconds, and somewhat more. A queue can be
/// as long as time itself.
fn longest(policy: &Policy) -> u64 {
    let of = |quota: &Quota| {
        if quota.to_string().contains("queue") {
            return u64::MAX / 4;
        }
        let capacity = u128::from(quota.capacity()).max(1) + 64;
        let periods = capacity.div_ceil(quota.permits().into());
        u64::try_from(quota.period().as_micros() * periods * 2).unwrap_or(u64::MAX / 4)
    };
    policy.quotas().map(|(_, quota)| of(quota)).max().unwrap_or(0)
}

/// The time for which permits are held that are not renewed, in microseconds.
const LIFETIME: u64 = 10_000_000;

fn standing(decision: &Decision) -> Vec<String> {
    let quotas = decision.quotas();
    let quotas =
        quotas.map(|quota| (quota.name().to_owned(), quota.remaining(), quota.reset_after()));
    quotas.map(|quota| format!("{quota:?}")).collect()
}

async fn run(proxy: &ClockProxy, prefix: &str, case: &Case) {
    let limiter = |policy: &Policy| uncached(proxy.store(prefix), policy.clone());
    let limiters: Vec<_> = case.revisions.iter().map(limiter).collect();
    let others: Vec<_> = case.revisions.iter().map(limiter).collect();
    let redis_key = format!("{prefix}:{{key}}:test:t2");
    // Far enough from the time of the server, at which keys expire.
    let mut now = UNIX_EPOCH.elapsed().unwrap().as_micros() as u64 + 10 * 86_400_000_000;
    let clock = ManualClock::new(UNIX_EPOCH + Duration::from_micros(now));
    let memory = MemoryStore::with_manual_clock(NonZeroUsize::new(10).unwrap(), clock.clone());
    let memory = uncached(memory, case.revisions[0].clone());
    let mut quotas = case.revisions.iter().flat_map(|policy| policy.quotas());
    let is_held = case.revisions.iter().any(is_held);
    // In memory, permits are held until they are given back.
    let mut is_comparable = !is_held && !quotas.any(|(_, quota)| has_time_zone(quota));
    let lifetime = if is_held { LIFETIME } else { 0 };
    let (mut reserved, mut in_memory) = (Vec::new(), Vec::new());
    let mut held = Vec::new();
    let longest = case.revisions.iter().map(longest).max().unwrap();
    // A sliding window keeps its counters for longer than they count.
    let is_sliding = |(_, quota): (&str, &Quota)| quota.to_string().contains("sliding");
    let is_sliding = case.revisions.iter().any(|policy| policy.quotas().any(is_sliding));
    let granule = if is_sliding { longest } else { longest / 16 };
    let mut latest = 0;
    for (number, step) in case.steps.iter().enumerate() {
        now = now.saturating_add_signed(step.passes);
        is_comparable &= step.passes >= 0;
        proxy.set_time(now).await;
        if proxy.stored(&redis_key).await.is_some_and(|(_, expiry)| expiry <= now) {
            proxy.command(&["DEL", &redis_key]).await;
        }
        let before = proxy.stored(&redis_key).await;
        let decisions = act(&limiters[step.revision], &step.what, &mut reserved, &mut held).await;
        let place = || format!("step {number} at {now} of\n{case:?}");

        // What the script has written is what the pure functions say.
        let peeked = others[step.revision].peek("key").await.unwrap();
        let last = decisions.last().filter(|last| last.source() == Source::Store);
        if let Some(last) = last {
            assert_eq!(standing(last), standing(&peeked), "{}", place());
        }
        let after = proxy.stored(&redis_key).await;
        let is_denied = !decisions.is_empty() && decisions.iter().all(Decision::is_denied);
        let value =
            |stored: &Option<(Vec<u8>, u64)>| stored.as_ref().map(|(value, _)| value.clone());
        let (before, value) =
            (value(&before).unwrap_or_default(), value(&after).unwrap_or_default());
        let packed = Packed::parse(&value);
        let is_doubted = packed.as_ref().is_some_and(Packed::is_doubted);
        let is_from_the_future = Packed::parse(&before).is_some_and(|packed| packed.written > now);
        // A hold says what its instance holds, also if it is denied.
        if is_denied && !is_from_the_future && !is_held {
            let is_noted = is_doubted && before.first().is_some_and(u8::is_ascii_digit);
            match is_noted {
                true => {
                    let noted = State { empty_at: None, ..State::parse(&value) };
                    assert_eq!(State::parse(&before), noted, "{}", place());
                }
                false => assert_eq!(before, value, "a denial writes nothing: {}", place()),
            }
        }
        let resets = peeked.quotas().map(|quota| quota.reset_after().as_micros() as u64).max();
        let until = now + resets.unwrap();
        latest = latest.max(until).max(now + lifetime);
        // What is doubted grows with each charge, and lasts longer than what is read.
        latest = latest.max(packed.filter(|_| is_doubted).map_or(0, |packed| packed.last));
        is_comparable &= !is_doubted;
        if let Some((_, expiry)) = after {
            // The script has the time of the reply, and the expiry is in milliseconds.
            const SLACK: u64 = 10_000;
            assert!(expiry + SLACK >= until, "it expires too early, at {expiry}: {}", place());
            let most = latest.saturating_add(granule).saturating_add(2_000_000 + SLACK);
            assert!(expiry <= most, "it expires too late, at {expiry}: {}", place());
        } else {
            assert_eq!(resets, Some(0), "nothing is stored: {}", place());
        }

        if is_comparable {
            clock.advance_to(UNIX_EPOCH + Duration::from_micros(now));
            memory.update(case.revisions[step.revision].clone()).unwrap();
            let mut expected = Vec::new();
            let one_by_one = match step.what.clone() {
                What::Checks { costs, is_charged_later, may_wait } => costs
                    .into_iter()
                    .map(|cost| What::Checks { costs: vec![cost], is_charged_later, may_wait })
                    .collect(),
                other => vec![other],
            };
            for one in one_by_one {
                expected.extend(act(&memory, &one, &mut in_memory, &mut held).await);
            }
            assert_eq!(decisions, expected, "{}", place());
        }
    }
}

#[test]
fn scripts_and_pure_functions_agree_in_bursts_after_long_gaps_and_when_the_clock_steps_back() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // `make test-servers` compares more of them, and others each time.
    let cases = match env::var("FLEETLIMIT_MIX_CASES") {
        Ok(count) => sample(cases(), count.parse().unwrap()),
        Err(_) => fixed_sample(cases(), 300),
    };
    assert_all_algorithms(
        cases
            .iter()
            .map(|case| case.steps.iter().map(|step| &case.revisions[step.revision]).collect()),
    );
    let groups = cases.chunks(cases.len().div_ceil(4)).map(async |cases| {
        run_all(&Server::start().await, cases).await;
    });
    runtime.block_on(join_all(groups));
}

/// All cases on a server share its time, so they run one after the other.
async fn run_all(server: &Server, cases: &[Case]) {
    let proxy = ClockProxy::start(server, &[CLOCK]).await;
    for (n, case) in cases.iter().enumerate() {
        run(&proxy, &format!("case{n}"), case).await;
    }
}

/// Compares a server with the pure functions in so many cases, which are the same in each run.
///
/// # Panics
/// If a decision or a value differs.
pub(crate) async fn compare(server: &Server, count: usize) {
    run_all(server, &fixed_sample(cases(), count)).await;
}

/// Also if it is behind the time of the process, or ahead, by more than the windows that the process sends.
#[tokio::test]
async fn the_clock_of_redis_selects_the_window_of_a_calendar() {
    use jiff::tz::TimeZone;
    use jiff::{Timestamp, ToSpan};

    const DAY: i64 = 86_400_000_000;

    let server = Server::start().await;
    let proxy = ClockProxy::start(&server, &[CLOCK, NO_EXPIRY]).await;
    // Which has no summer time.
    let name = "Asia/Tokyo";
    let zone = TimeZone::get(name).unwrap();
    let week = Quota::new(5, Duration::from_secs(7 * 86_400));
    for (number, quota, furthest) in
        [(0, Quota::per_day(5), 70), (1, week, 70), (2, Quota::per_month(5), 28)]
    {
        let [limiter, other] =
            [(); 2].map(|()| uncached(proxy.store(&number.to_string()), quota.calendar_in(name)));
        let now = UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
        for days in -furthest..=furthest {
            let micros = now + days * DAY;
            proxy.set_time(micros as u64).await;
            let here = Timestamp::from_microsecond(micros).unwrap().to_zoned(zone.clone());
            let today = here.start_of_day().unwrap();
            let end = match number {
                0 => today.tomorrow().unwrap(),
                1 => &today + (7 - i64::from(today.weekday().to_monday_zero_offset())).days(),
                _ => today.first_of_month().unwrap() + 1.month(),
            };
            let key = format!("key{days}");
            let decision = limiter.check(&*key).await.unwrap();
            // What the script has written.
            let stored = other.peek(&*key).await.unwrap();
            let left = Duration::from_micros((end.timestamp().as_microsecond() - micros) as u64);
            assert_eq!((decision.remaining(), decision.reset_after()), (4, left), "{quota} {days}");
            assert_eq!((stored.remaining(), stored.reset_after()), (4, left), "{quota} {days}");
        }
    }
}
