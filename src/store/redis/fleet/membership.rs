//! The membership of an instance in its fleet: each registers in Redis from time to time, and remembers who was
//! there last. `lua/fleet.lua` makes the plan by which the instances divide limits.
//!
//! If an instance has joined or left, or demand has moved by a quarter since the last plan was agreed, the
//! script writes a new plan. It is agreed once all instances have reported that they know it, and not in the
//! first seconds after Redis has lost its data or nobody could register for a while, when others are about to
//! return. A plan for new demand moves at most a quarter of the limits, so that at least three quarters of them
//! are granted until it is agreed; if demand has moved further, another plan follows. A plan for a changed set
//! of instances keeps the proportions among those that stay, and gives each new one an equal share.
//!
//! Usually a call writes only the instance's own field. (`RedisStore::instances` documents the interval.) At
//! intervals that grow with the fleet, a call also reads the fields of all instances. With 500 instances such a
//! scan takes 2.5 ms, 60 times as long as a call without one. So they cause at most four scans a second (fewer
//! instances cause more, but shorter ones), plus one for each instance that joins or leaves.
//!
//! The weight of an instance follows its demand: load balancers are uneven, and equal shares would deny on a
//! busy instance what an idle one leaves. It is the number of checks per second that reached the store, plus
//! `LEAST_WEIGHT`. `store/local.rs` counts them: the queue reports those that Redis decides (`queue/batch.rs`),
//! and `Local` has decided the others.
//!
//! A plan is not trusted, because it comes from a network and from other processes. One with more than
//! `MAX_INSTANCES` instances is refused, as is a number that no fleet can have counted to. The instance then
//! keeps its share, and logs that it cannot register. → `tests/it/local.rs`

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::presence::{Moment, Presence};
use crate::error::with_causes;
use crate::log_throttle::LogThrottle;
use crate::metrics::FleetMetrics;
use crate::store::fleet::{FIRST_UNKNOWN, InstanceId, MAX_INSTANCES, Plan, Share};
use crate::store::local::Local;
use crate::store::redis::cluster::Topology;
use crate::store::redis::script::slot_of;
use crate::store::redis::sole_task::SoleTask;
use crate::{Error, ErrorKind, random};

const SCRIPT: &str = include_str!("../../../../lua/fleet.lua");

/// Between two registrations. Large fleets register less often, so that Redis spends little time on
/// them.
const INTERVAL: Duration = Duration::from_secs(2);
const INTERVAL_PER_INSTANCE: Duration = Duration::from_millis(20);

/// The longest pause between two registrations, so that an instance learns of another plan in this time,
/// whatever the last one said.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// The least pause between two warnings. A server whose replies are good and bad in turn causes few lines.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The greatest number of a plan, which is also the greatest integer that Lua counts to.
const MAX_NUMBER: u64 = 1 << 53;

/// The factor by which instances register more often until all know the latest plan.
const SPEEDUP: u32 = 4;

/// An instance that has missed so many registrations counts as gone.
const MISSED: u32 = 5;

/// The time over which the demand is averaged.
const SMOOTHING: Duration = Duration::from_secs(5);

/// Added to the checks per second. Differences between small numbers are mostly chance.
const LEAST_WEIGHT: u32 = 10;

/// The weight of an instance that leaves.
const SIGN_OFF: u32 = 0;

const TIMEOUT: Duration = Duration::from_secs(1);

/// The hash tag of the key that all instances share.
const TAG: &str = "fleet";

#[derive(Debug)]
pub(crate) struct Membership {
    topology: Topology,
    key: String,
    slot: u16,
    me: InstanceId,
    local: Arc<Local>,
    registration: Arc<SoleTask>,
    has_left: AtomicBool,
    /// The number of instances in the latest plan. The others forget this one by it.
    instances: AtomicUsize,
    /// The number of registrations in a row that have failed.
    missed: AtomicU32,
    presence: Mutex<Presence>,
    has_warned: AtomicBool,
    warnings: LogThrottle,
    has_reported_assumption: AtomicBool,
    /// The number of the latest plan.
    known: AtomicU64,
    demand: Mutex<Demand>,
    metrics: FleetMetrics,
}

/// The checks per second, smoothed.
#[derive(Debug)]
struct Demand {
    since: Instant,
    per_second: f64,
}

/// The reply of Redis to a registration.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RegistrationReply {
    number: u64,
    agreed_number: u64,
    plan: Plan,
    agreed: Plan,
}

impl Membership {
    pub(crate) fn new(topology: Topology, key_prefix: &str, local: Arc<Local>) -> Self {
        let slot = slot_of(TAG);
        let metrics = FleetMetrics::new(key_prefix, topology.first_server());
        Self {
            topology,
            key: format!("{key_prefix}:{{{TAG}}}"),
            slot,
            me: random::id(),
            local,
            registration: Arc::default(),
            has_left: AtomicBool::new(false),
            instances: AtomicUsize::new(0),
            missed: AtomicU32::new(0),
            presence: Mutex::new(Presence::new(Moment::now())),
            has_warned: AtomicBool::new(false),
            warnings: LogThrottle::new(WARNING_INTERVAL),
            has_reported_assumption: AtomicBool::new(false),
            known: AtomicU64::new(0),
            demand: Mutex::new(Demand { since: Instant::now(), per_second: 0.0 }),
            metrics,
        }
    }

    /// Registers from now on, for as long as the store lives.
    #[inline]
    pub(crate) fn start(self: &Arc<Self>) {
        if !self.registration.is_running() && self.local.is_used() {
            self.spawn();
        }
    }

    #[cold]
    fn spawn(self: &Arc<Self>) {
        if !self.has_left.load(Ordering::Relaxed) {
            let this = Arc::downgrade(self);
            self.registration.repeat(&this, TIMEOUT, |this| async move { this.round().await });
        }
    }

    async fn round(&self) -> ControlFlow<Duration, Duration> {
        if self.has_left.load(Ordering::Relaxed) {
            return ControlFlow::Break(Duration::ZERO);
        }
        let pause = self.register().await;
        if self.has_left.load(Ordering::Relaxed) {
            // The registration may have come after the sign-off.
            let _ = self.call(SIGN_OFF).await;
            return ControlFlow::Break(Duration::ZERO);
        }
        let share = self.local.share();
        self.metrics.divided(share.instances(), share.fraction());
        ControlFlow::Continue(pause)
    }

    /// Signs off, so that the others divide what was this instance's share.
    pub(crate) async fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        // The runtime that has registered it may have ended.
        let is_registered = self.known.load(Ordering::Relaxed) > 0;
        if is_registered || self.registration.is_running() {
            let _ = self.call(SIGN_OFF).await;
        }
    }

    /// Registers once, and returns when to do it again.
    async fn register(&self) -> Duration {
        let weight = self.weight();
        let (sent, gone_after) =
            (Moment::now(), gone_after(self.instances.load(Ordering::Relaxed)));
        self.presence().is_running(sent, gone_after);
        let result = self.call(weight).await;
        let is_uninterrupted = self.presence().is_running(Moment::now(), gone_after);
        let fleet = match result {
            Ok(fleet) => fleet,
            Err(error) => {
                self.report_failure(&error);
                self.report_assumption();
                // If the process was suspended during the call, only the next one says whether Redis fails.
                if is_uninterrupted && self.presence().may_be_forgotten(gone_after) {
                    self.lose_share();
                }
                return INTERVAL;
            }
        };
        self.presence().registered(sent);
        self.report_success();
        self.known.store(fleet.number, Ordering::Relaxed);
        let is_agreed = fleet.number == fleet.agreed_number;
        let instances = fleet.plan.len();
        self.instances.store(instances, Ordering::Relaxed);
        if is_agreed {
            self.local.set_share(Share::new(self.me, fleet.plan, None));
        } else if fleet.agreed.len() == 0 {
            // Redis has forgotten the fleet.
            self.local.propose(self.me, fleet.plan);
        } else {
            self.local.set_share(Share::new(self.me, fleet.agreed, Some(fleet.plan)));
        }
        if is_agreed { interval(instances) } else { interval(instances) / SPEEDUP }
    }

    async fn call(&self, weight: u32) -> Result<RegistrationReply, Error> {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SCRIPT).arg(1).arg(&self.key);
        command.arg(self.me).arg(weight).arg(self.known.load(Ordering::Relaxed));
        command.arg(gone_after(0).as_millis() as u64);
        let deadline = Instant::now() + TIMEOUT;
        parse(&self.topology.call(self.slot, command, deadline).await?)
    }

    /// Logs a failure, once until it registers again. Transient errors are reported after `MISSED` in a row.
    fn report_failure(&self, error: &Error) {
        let missed = self.missed.fetch_add(1, Ordering::Relaxed) + 1;
        let is_lasting = !error.is_transient() || missed >= MISSED;
        if is_lasting
            && !self.has_warned.load(Ordering::Relaxed)
            && self.warnings.occurred(Instant::now()).is_some()
        {
            self.has_warned.store(true, Ordering::Relaxed);
            tracing::warn!(
                target: "fleetlimit", event = "registration_failed",
                server = &*self.topology.server(self.slot), key = self.key, missed,
                reason = with_causes(error),
                "this instance cannot register: if this lasts, the others count it as gone, and if Redis \
                 fails, its share of the limits is out of date or unknown"
            );
        }
    }

    fn report_success(&self) {
        let missed = self.missed.swap(0, Ordering::Relaxed);
        if self.has_warned.swap(false, Ordering::Relaxed) {
            tracing::info!(
                target: "fleetlimit", event = "registration_restored",
                server = &*self.topology.server(self.slot), key = self.key, missed,
                "this instance has registered again"
            );
        }
    }

    /// The others divide the whole limits, so what this instance allows comes on top of that.
    fn lose_share(&self) {
        if self.local.lose_share() {
            tracing::warn!(
                target: "fleetlimit", event = "instance_suspended",
                server = &*self.topology.server(self.slot), key = self.key,
                share = self.local.share().fraction(),
                "this instance was suspended, and the others may have divided its share of the limits: local \
                 decisions use what is left until it has registered again"
            );
        }
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        // Nothing that panics runs under the lock.
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns, once, that the number of instances is assumed: in an outage, too low a number admits a multiple
    /// of the limits.
    fn report_assumption(&self) {
        if let Some(instances) = self.local.assumed_instances()
            && !self.has_reported_assumption.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                target: "fleetlimit", event = "instances_assumed",
                server = &*self.topology.server(self.slot), key = self.key, instances,
                "this instance has not registered yet: until it has, local decisions assume that so many \
                 instances share the limits, and if there are more, each adds its share to the limits: set \
                 `RedisStore::instances` (of fleetlimit-server: `store.instances`) to their usual number"
            );
        }
    }

    fn weight(&self) -> u32 {
        let mut demand = lock(&self.demand);
        let (now, checks) = (Instant::now(), self.local.take_demand());
        let seconds = now.saturating_duration_since(demand.since).as_secs_f64();
        let latest = checks as f64 / seconds.max(0.5);
        let fraction = 1.0 - (-seconds / SMOOTHING.as_secs_f64()).exp();
        // Soon after a start there is no earlier demand to be smoothed with.
        demand.per_second = match demand.per_second {
            0.0 => latest,
            earlier => earlier + (latest - earlier) * fraction,
        };
        demand.since = now;
        (demand.per_second as u32).saturating_add(LEAST_WEIGHT).min(1_000_000_000)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn interval(instances: usize) -> Duration {
    let instances = u32::try_from(instances).unwrap_or(u32::MAX);
    INTERVAL_PER_INSTANCE.saturating_mul(instances).clamp(INTERVAL, MAX_INTERVAL)
}

/// The time after its last registration at which one of so many instances counts as gone.
fn gone_after(instances: usize) -> Duration {
    interval(instances).saturating_mul(MISSED)
}

/// Parses a reply, which is not trusted.
pub(super) fn parse(reply: &Value) -> Result<RegistrationReply, Error> {
    let unexpected = || refused("the reply is not a list of instances".to_owned());
    let Value::Array(parts) = reply else { return Err(unexpected()) };
    let [Value::Int(number), Value::Int(agreed_number), plan, agreed] = &**parts else {
        return Err(unexpected());
    };
    let [number, agreed_number] = [*number, *agreed_number]
        .map(|number| u64::try_from(number).ok().filter(|number| *number <= MAX_NUMBER));
    let (plan, agreed) = (parse_plan(plan), parse_plan(agreed));
    let largest = [&plan, &agreed].into_iter().flatten().map(Vec::len).max();
    if largest > Some(MAX_INSTANCES) {
        let more = format!("the reply is a plan for more than {MAX_INSTANCES} instances");
        return Err(refused(more));
    }
    let fleet = || {
        let (plan, agreed) = (Plan::new(plan?), Plan::new(agreed?));
        Some(RegistrationReply { number: number?, agreed_number: agreed_number?, plan, agreed })
    };
    fleet().ok_or_else(unexpected)
}

/// Returns the instances of a plan and their weights, or one more than a plan may have.
fn parse_plan(text: &Value) -> Option<Vec<(InstanceId, u32)>> {
    let Value::BulkString(text) = text else { return None };
    let mut words = str::from_utf8(text).ok()?.split_ascii_whitespace();
    let mut instances = Vec::new();
    while let Some(id) = words.next().filter(|_| instances.len() <= MAX_INSTANCES) {
        let id = id.parse().ok().filter(|id| *id < FIRST_UNKNOWN)?;
        instances.push((id, words.next()?.parse().ok()?));
    }
    Some(instances)
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Server, why)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::store::redis::connection::Connector;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn what_redis_says_is_parsed_and_anything_else_ignored() {
        let reply = |plan: &str, agreed: &str| {
            Value::Array(vec![Value::Int(3), Value::Int(2), text(plan), text(agreed)])
        };
        let fleet = parse(&reply("7 100 8 200", "7 100")).unwrap();
        assert_eq!((fleet.number, fleet.agreed_number), (3, 2));
        assert_eq!(fleet.plan, Plan::new([(7, 100), (8, 200)]));
        assert_eq!(parse(&reply("", "")).unwrap().agreed, Plan::default());
        let reserved = format!("{} 1", u64::MAX - 5);
        for (plan, agreed) in [
            ("7", ""),
            ("x 1", ""),
            ("7 -1", ""),
            ("", "7 1e3"),
            ("7 1 8", ""),
            ("7 nan", ""),
            ("-7 1", ""),
            ("7 5000000000", ""),
            ("99999999999999999999 1", ""),
            ("", &*reserved),
        ] {
            assert!(parse(&reply(plan, agreed)).is_err(), "{plan:?} {agreed:?}");
        }
        let numbers = |number, agreed| {
            Value::Array(vec![Value::Int(number), Value::Int(agreed), text(""), text("")])
        };
        for garbage in [
            Value::Nil,
            Value::Array(vec![]),
            numbers(-1, 2),
            numbers(2, -1),
            numbers(i64::MAX, 2),
            numbers(2, (1 << 53) + 1),
        ] {
            assert!(parse(&garbage).is_err(), "{garbage:?}");
        }
    }

    /// Each key would take long to divide, and each share would be near 0.
    #[test]
    fn a_plan_for_a_million_instances_is_refused() {
        let plan = |count: u64| text(&(0..count).map(|id| format!("{id} 1 ")).collect::<String>());
        let reply =
            |plan, agreed| parse(&Value::Array(vec![Value::Int(3), Value::Int(2), plan, agreed]));
        assert_eq!(reply(plan(10_000), plan(10_000)).unwrap().plan.len(), 10_000);
        for (count, agreed) in [(10_001, 0), (0, 10_001), (1_000_000, 0)] {
            let error = reply(plan(count), plan(agreed)).unwrap_err();
            assert!(error.to_string().contains("more than 10000 instances"), "{error}");
        }
    }

    #[test]
    fn a_large_fleet_registers_less_often() {
        assert_eq!(interval(3), INTERVAL);
        assert_eq!(interval(500), Duration::from_secs(10));
    }

    #[test]
    fn no_plan_keeps_an_instance_from_registering_for_hours() {
        assert_eq!([MAX_INSTANCES, 1_000_000, usize::MAX].map(interval), [MAX_INTERVAL; 3]);
        // It must not count as gone meanwhile: see `LONGEST` in `fleet.lua`.
        assert!(
            SCRIPT.contains(&format!("= {MAX_INSTANCES}, {}", (MISSED * MAX_INTERVAL).as_millis()))
        );
    }

    #[test]
    fn a_server_whose_replies_are_good_and_bad_in_turn_does_not_fill_the_log() {
        let topology = Topology::new(Connector::url("redis://127.0.0.1:1").unwrap());
        let local = Local::new(NonZeroUsize::MIN, 1);
        let membership = Membership::new(topology, "prefix", local.into());
        let start = Instant::now();
        let failures = (0..600).map(|n| start + n * Duration::from_millis(500));
        let warnings = failures.filter_map(|now| membership.warnings.occurred(now));
        assert_eq!(warnings.count(), 5);
    }
}
