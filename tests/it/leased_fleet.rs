//! Leases of several instances on a real Redis: what they admit together, how many calls that takes, and what faults
//! do to them. The instances are stores, apart from the process that is suspended or killed.
//!
//! The use of each permit is known to lie between two times of the clock that Redis has, too: just before and after
//! the check. A lease decides at once, so its times are microseconds apart. Those of a check that Redis has decided
//! are a round trip apart, and it was charged somewhere between. A span has too many permits if more of them than
//! its limit *surely* lie in it (`assert_no_span_has_more`). So a busy machine makes the test weaker, and never wrong.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use fleetlimit::{ErrorKind, FailureMode, Limiter, Policy, Quota, RedisStore, Source};
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::common::{BOUND, Proxy, Server, Stalls, wait_until};
use crate::exact::{test_limiter, test_limiter_builder};

const LEASE: Duration = Duration::from_millis(100);
const RATE: u64 = 1_000;
const BURST: u64 = 1_000;

fn quota() -> Quota {
    Quota::per_second(RATE)
}

/// Several instances on one Redis, at a round trip time.
struct Fleet {
    stores: Vec<RedisStore>,
    limiters: Vec<Limiter>,
    server: Server,
    proxy: Proxy,
    log: Arc<Log>,
}

/// What the checks of the key came to.
#[derive(Default)]
struct Log(Mutex<Outcomes>);

#[derive(Default)]
struct Outcomes {
    uses: Vec<Use>,
    denied: u64,
    failed: u64,
    by_lease: u64,
}

/// A permit, which was used between two times of Redis's clock, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Use {
    earliest: u64,
    latest: u64,
}

/// How late checks of a constant rate may be.
const LONGEST_LAG: Duration = Duration::from_millis(20);

/// Redis runs on the same machine, so this is its clock.
fn redis_clock() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64
}

impl Fleet {
    async fn start(instances: usize, round_trip: u64, policy: impl Into<Policy>) -> Self {
        Self::start_with(instances, round_trip, policy, Duration::from_secs(10)).await
    }

    async fn start_with(
        instances: usize,
        round_trip: u64,
        policy: impl Into<Policy>,
        timeout: Duration,
    ) -> Self {
        let (server, policy) = (Server::start().await, policy.into());
        let proxy = Proxy::start(server.port()).await;
        proxy.round_trip(Duration::from_millis(round_trip));
        let store = |_| RedisStore::open(proxy.url()).unwrap();
        let stores: Vec<_> = (0..instances).map(store).collect();
        let limiter = |store: &RedisStore| {
            let limiter = test_limiter_builder(store.clone(), policy.clone()).timeout(timeout);
            limiter.lease(LEASE).build().unwrap()
        };
        let limiters: Vec<_> = stores.iter().map(limiter).collect();
        for limiter in &limiters {
            // Connects, so that the first check of the key takes one round trip.
            wait_until("it connects", BOUND, async || limiter.peek("other").await.is_ok()).await;
        }
        Self { stores, limiters, server, proxy, log: Arc::default() }
    }

    /// Checks the key on each instance at a rate that changes with time, whether or not earlier checks have completed.
    async fn check(&self, time: Duration, rate: impl Fn(usize, Duration) -> u32 + Copy) {
        let start = tokio::time::Instant::now();
        let instances = self.limiters.iter().enumerate().map(async |(instance, limiter)| {
            let (mut checks, mut next) = (JoinSet::new(), start);
            while next < start + time {
                sleep_until(next).await;
                let per_second = rate(instance, next - start);
                if per_second > 0 {
                    checks.spawn(self.log.clone().check(limiter.clone()));
                }
                next += Duration::from_secs(1) / per_second.max(100);
                // A machine that stalls makes no checks meanwhile, instead of many at once.
                next = next.max(tokio::time::Instant::now() - LONGEST_LAG);
            }
            while let Some(check) = checks.join_next().await {
                check.unwrap();
            }
        });
        join_all(instances).await;
    }

    /// Checks the key so many times at once on each instance.
    async fn burst(&self, count: usize) {
        let mut checks = JoinSet::new();
        for limiter in &self.limiters {
            (0..count).for_each(|_| drop(checks.spawn(self.log.clone().check(limiter.clone()))));
        }
        while let Some(check) = checks.join_next().await {
            check.unwrap();
        }
    }

    /// Another instance without leases of its own.
    fn observer(&self, quota: Quota) -> Limiter {
        test_limiter(RedisStore::open(self.server.url()).unwrap(), quota)
    }

    /// The calls for the key so far: its script reads a single key.
    async fn calls(&self) -> u64 {
        self.server.command_stats().await.get("get").copied().unwrap_or(0)
    }
}

impl Log {
    async fn check(self: Arc<Self>, limiter: Limiter) {
        let earliest = redis_clock();
        let decision = limiter.check("key").await;
        let latest = redis_clock();
        let mut outcomes = self.0.lock().unwrap();
        match decision {
            Ok(decision) if decision.is_allowed() => {
                outcomes.by_lease += u64::from(decision.source() == Source::Lease);
                outcomes.uses.push(Use { earliest, latest });
            }
            Ok(_) => outcomes.denied += 1,
            Err(_) => outcomes.failed += 1,
        }
    }

    fn take(&self) -> Outcomes {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Outcomes {
    /// Asserts that no span has more permits than a burst, and what refills in it.
    fn assert_no_span_has_more(&self, rate: u64, burst: u64) {
        let mut uses = self.uses.clone();
        uses.sort_unstable_by_key(|permit| permit.latest);
        for start in uses.iter().map(|permit| permit.earliest) {
            let mut used = 0;
            for Use { latest, .. } in uses.iter().filter(|permit| permit.earliest >= start) {
                used += 1;
                // Both ends are cut to microseconds.
                let micros = latest - start + 2;
                let most = burst + rate * micros / 1_000_000;
                assert!(used <= most, "{used} permits in {micros} us, at most {most} are allowed");
            }
        }
    }

    /// Asserts that no window of the clock has more permits.
    fn assert_no_window_has_more(&self, span: u64, limit: u64) {
        let mut windows = std::collections::BTreeMap::<u64, u64>::new();
        for Use { earliest, latest } in &self.uses {
            if earliest / span == latest / span {
                *windows.entry(earliest / span).or_default() += 1;
            }
        }
        assert!(windows.values().all(|used| *used <= limit), "{windows:?}");
    }

    fn admitted(&self) -> u64 {
        self.uses.len() as u64
    }
}

/// At each round trip time, all at once.
async fn at_each_round_trip(test: impl AsyncFn(u64)) {
    join_all([0, 5, 30].map(|round_trip| test(round_trip))).await;
}

/// How often calls are counted until there are few. A machine that stalls takes more.
const ATTEMPTS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_below_the_limit_is_never_denied_and_takes_few_calls() {
    at_each_round_trip(async |round_trip| {
        let fleet = Fleet::start(3, round_trip, quota()).await;
        // Until the instances know their demand.
        fleet.check(2 * LEASE, |_, _| 300).await;
        let mut fewest = f64::MAX;
        for _ in 0..ATTEMPTS {
            let (before, start) = (fleet.calls().await, Instant::now());
            fleet.check(Duration::from_secs(2), |_, _| 300).await;
            let calls = (fleet.calls().await - before) as f64 / start.elapsed().as_secs_f64();
            fewest = fewest.min(calls);
            // The docs advise leases of at least four round trips.
            if calls <= 60.0 || 4 * round_trip > 100 {
                break;
            }
        }
        let outcomes = fleet.log.take();
        assert_eq!((outcomes.denied, outcomes.failed), (0, 0), "at {round_trip} ms");
        outcomes.assert_no_span_has_more(RATE, BURST);
        if 4 * round_trip <= 100 {
            assert!(fewest <= 60.0, "{fewest} calls per second at {round_trip} ms");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_above_the_limit_gets_nearly_all_of_it() {
    const RATE: u64 = 400;
    /// What the bucket in Redis does not hold.
    const LEASED: u64 = 40;
    at_each_round_trip(async |round_trip| {
        let quota = Quota::per_second(RATE);
        let fleet = Fleet::start(3, round_trip, quota).await;
        let observer = fleet.observer(quota);
        assert_eq!(observer.peek("key").await.unwrap().remaining(), RATE);
        let (stalls, start) = (Stalls::watch(), Instant::now());
        fleet.check(Duration::from_secs(4), |_, _| 240).await;
        // Nothing is in a lease afterwards.
        join_all(fleet.stores.iter().map(RedisStore::shutdown)).await;
        let (time, lost) = (start.elapsed(), stalls.lost());
        // What is there at the end, nobody has asked for.
        let left = observer.peek("key").await.unwrap().remaining().saturating_sub(LEASED);
        let outcomes = fleet.log.take();
        let refilled = RATE as f64 * time.saturating_sub(lost).as_secs_f64();
        let allowed = (RATE - LEASED) as f64 + refilled - left as f64;
        let part = outcomes.admitted() as f64 / allowed;
        let Outcomes { by_lease, denied, .. } = outcomes;
        println!(
            "{round_trip} ms: {part:.4} of {allowed:.0}, {by_lease} by lease, {denied} denied"
        );
        assert_eq!(outcomes.failed, 0);
        outcomes.assert_no_span_has_more(RATE, RATE);
        assert!(part >= 0.97, "{part} of {allowed} at {round_trip} ms");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_that_moves_between_instances_is_never_denied_below_the_limit() {
    at_each_round_trip(async |round_trip| {
        let fleet = Fleet::start(3, round_trip, quota()).await;
        let has_all = |instance, time: Duration| match time.as_secs() as usize % 3 == instance {
            true => 900,
            false => 0,
        };
        fleet.check(Duration::from_secs(4), has_all).await;
        let outcomes = fleet.log.take();
        assert_eq!((outcomes.denied, outcomes.failed), (0, 0), "at {round_trip} ms");
        outcomes.assert_no_span_has_more(RATE, BURST);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_after_pauses_get_no_more_than_a_burst_and_what_has_refilled() {
    at_each_round_trip(async |round_trip| {
        let fleet = Fleet::start(3, round_trip, quota().burst(BURST / 2)).await;
        let mut tick = interval(Duration::from_millis(300));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..8 {
            tick.tick().await;
            fleet.burst(150).await;
            fleet.check(LEASE, |_, _| 500).await;
        }
        let outcomes = fleet.log.take();
        println!(
            "{round_trip} ms: {} admitted, {} by lease, {} denied",
            outcomes.admitted(),
            outcomes.by_lease,
            outcomes.denied
        );
        assert_eq!(outcomes.failed, 0);
        assert!(outcomes.denied > 0 && outcomes.by_lease > 0, "both happen");
        outcomes.assert_no_span_has_more(RATE, BURST / 2);
    })
    .await;
}

/// At first below the limit, so that the instances have leases, and then above it.
fn rising(_: usize, time: Duration) -> u32 {
    if time.as_millis() % 1_000 < 400 { 200 } else { 1_200 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_and_refills_at_intervals_admit_no_more_than_without_leases() {
    let calendar = async {
        let fleet = Fleet::start(3, 5, quota().calendar()).await;
        fleet.check(Duration::from_secs(3), rising).await;
        fleet.log.take()
    };
    let interval = async {
        let quota = Quota::new(250, Duration::from_millis(250)).burst(500).interval_refill();
        let fleet = Fleet::start(3, 5, quota).await;
        fleet.check(Duration::from_secs(3), rising).await;
        fleet.log.take()
    };
    let (windows, intervals) = tokio::join!(calendar, interval);
    for (outcomes, name) in [(&windows, "calendar"), (&intervals, "interval")] {
        assert_eq!(outcomes.failed, 0);
        assert!(outcomes.by_lease > 0 && outcomes.denied > 0, "{name}: both happen");
    }
    windows.assert_no_window_has_more(1_000_000, RATE);
    // A span may begin just before a refill.
    intervals.assert_no_span_has_more(RATE, 500 + 250);
}

/// The permits of a day that are used, according to Redis.
async fn used_of_day(observer: &Limiter) -> Option<u64> {
    observer.peek("key").await.ok().map(|peek| PER_DAY - peek.remaining())
}

const PER_DAY: u64 = 10_000_000;

fn per_day() -> Quota {
    Quota::per_day(PER_DAY).fixed_window()
}

/// Nothing refills in a window, so that what is not given back is missing for a day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leases_do_not_use_of_a_day_is_given_back_to_the_last_permit() {
    let fleet = Fleet::start(3, 5, per_day()).await;
    fleet.check(Duration::from_secs(1), |_, _| 300).await;
    let (admitted, observer) = (fleet.log.take().admitted(), fleet.observer(per_day()));
    wait_until("only what was used is used", BOUND, async || {
        used_of_day(&observer).await == Some(admitted)
    })
    .await;
}

/// The calls that give back run when the pause ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_of_a_day_arrives_however_late() {
    let fleet = Fleet::start(1, 0, per_day()).await;
    fleet.check(3 * LEASE, |_, _| 500).await;
    fleet.server.command(&["CLIENT", "PAUSE", "500", "WRITE"]).await;
    let (admitted, observer) = (fleet.log.take().admitted(), fleet.observer(per_day()));
    wait_until("only what was used is used", BOUND, async || {
        used_of_day(&observer).await == Some(admitted)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_gives_leases_back_also_those_of_calls_in_flight() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port()).await;
    proxy.round_trip(Duration::from_millis(30));
    let observer = test_limiter(RedisStore::open(server.url()).unwrap(), per_day());
    let mut took = Vec::new();
    for round in 0..8 {
        let store = RedisStore::open(proxy.url()).unwrap();
        let limiter = test_limiter_builder(store.clone(), per_day()).lease(LEASE).build().unwrap();
        observer.reset("key").await.unwrap();
        let mut admitted = 0;
        loop {
            let decision = limiter.check("key").await.unwrap();
            admitted += u64::from(decision.is_allowed());
            if decision.source() == Source::Lease {
                break;
            }
        }
        // One of these asks for the next lease.
        for _ in 0..round {
            let decision = limiter.check("key").await.unwrap();
            admitted += u64::from(decision.is_allowed());
            if decision.source() != Source::Lease {
                break;
            }
        }
        let closes = Instant::now();
        store.shutdown().await;
        took.push(closes.elapsed());
        assert_eq!(used_of_day(&observer).await, Some(admitted), "round {round}");
    }
    // Nothing keeps it waiting until its deadline.
    assert!(took.iter().min() < Some(&Duration::from_millis(900)), "{took:?}");
}

/// Its leases are those of the store, which gives them back from another runtime.
#[test]
fn leases_of_a_runtime_that_has_ended_are_given_back_by_the_next_check_of_another() {
    let other = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, observer) = other.block_on(async {
        let server = Server::start().await;
        let observer = test_limiter(RedisStore::open(server.url()).unwrap(), per_day());
        (server, observer)
    });
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = test_limiter_builder(store, per_day()).lease(LEASE).build().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let admitted = runtime.block_on(async {
        let mut admitted = 0;
        loop {
            let decision = limiter.check("key").await.unwrap();
            admitted += u64::from(decision.is_allowed());
            if decision.source() == Source::Lease {
                return admitted;
            }
        }
    });
    drop(runtime);
    other.block_on(async {
        assert!(limiter.check("other").await.unwrap().is_allowed());
        wait_until("only what was used is used", BOUND, async || {
            used_of_day(&observer).await == Some(admitted)
        })
        .await;
    });
}

/// The only worker of a runtime is blocked for longer than a lease.
#[tokio::test]
async fn a_lease_ends_while_its_worker_is_blocked() {
    let server = Server::start().await;
    let limiter = test_limiter_builder(RedisStore::open(server.url()).unwrap(), quota());
    let limiter = limiter.lease(LEASE).build().unwrap();
    for _ in 0..3 {
        while limiter.check("key").await.unwrap().source() != Source::Lease {}
        thread::sleep(LEASE);
        assert_eq!(limiter.check("key").await.unwrap().source(), Source::Store);
    }
}

/// Checks above the limit while something happens to Redis or the connections, and afterwards until leases decide
/// again. `lost` is how many bursts Redis forgets.
async fn assert_within_limit_under(fault: impl AsyncFn(&Fleet), lost: u64) {
    let quota = quota().burst(BURST / 2);
    let fleet = Fleet::start_with(2, 1, quota, Duration::from_millis(200)).await;
    let fault = async {
        // The instances have leases, and then use up the bucket.
        for _ in 0..2 {
            sleep(Duration::from_millis(600)).await;
            fault(&fleet).await;
        }
    };
    tokio::join!(fleet.check(Duration::from_millis(1_800), rising), fault);
    let outcomes = fleet.log.take();
    println!(
        "{} admitted, {} by lease, {} denied, {} failed",
        outcomes.admitted(),
        outcomes.by_lease,
        outcomes.denied,
        outcomes.failed
    );
    assert!(outcomes.by_lease > 0);
    outcomes.assert_no_span_has_more(RATE, (1 + 2 * lost) * BURST / 2);
    for limiter in &fleet.limiters {
        wait_until("leases decide again", BOUND, async || {
            limiter.check("key").await.is_ok_and(|decision| decision.source() == Source::Lease)
        })
        .await;
    }
    // Nothing is held for good.
    let observer = fleet.observer(quota);
    wait_until("the bucket is full", BOUND, async || {
        observer.peek("key").await.is_ok_and(|peek| peek.remaining() == BURST / 2)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_stay_within_the_limit_while_redis_forgets_its_scripts() {
    let flush = async |fleet: &Fleet| {
        for _ in 0..5 {
            fleet.server.command(&["SCRIPT", "FLUSH"]).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert_within_limit_under(flush, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_stay_within_the_limit_while_redis_is_paused() {
    let pause = async |fleet: &Fleet| {
        fleet.server.command(&["CLIENT", "PAUSE", "300"]).await;
        fleet.server.command(&["PING"]).await;
    };
    assert_within_limit_under(pause, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_stay_within_the_limit_while_redis_is_suspended() {
    let suspend = async |fleet: &Fleet| {
        fleet.server.pause();
        sleep(Duration::from_millis(300)).await;
        fleet.server.resume();
    };
    assert_within_limit_under(suspend, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_stay_within_the_limit_while_connections_are_cut() {
    let cut = async |fleet: &Fleet| {
        for _ in 0..3 {
            // Redis has leased the permits, and nobody knows.
            fleet.proxy.disconnect_on_reply(1);
            sleep(Duration::from_millis(50)).await;
            fleet.proxy.disconnect_all().await;
        }
    };
    assert_within_limit_under(cut, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_stay_within_the_limit_while_connections_are_dead() {
    let forget = async |fleet: &Fleet| fleet.proxy.forget_connections();
    assert_within_limit_under(forget, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_exceed_the_limit_by_at_most_a_burst_for_each_loss_of_data() {
    let kill = async |fleet: &Fleet| {
        fleet.server.stop();
        fleet.server.restart().await;
    };
    assert_within_limit_under(kill, 1).await;
}

#[tokio::test]
async fn a_lease_outlives_redis_until_it_ends_and_then_the_failure_mode_decides() {
    let server = Server::start().await;
    let lease = Duration::from_millis(400);
    let limiter = Limiter::builder(RedisStore::open(server.url()).unwrap(), quota());
    let limiter = limiter.failure_mode(FailureMode::Closed).lease(lease).build().unwrap();
    while limiter.check("key").await.unwrap().source() != Source::Lease {}
    let leased = Instant::now();
    server.stop();
    let decision = limiter.check("key").await;
    // Unless the machine has stalled for as long.
    if leased.elapsed() < Duration::from_millis(200) {
        assert_eq!(decision.unwrap().source(), Source::Lease);
    }
    wait_until("the lease ends", BOUND, async || match limiter.check("key").await {
        Ok(decision) => {
            assert_eq!(decision.source(), Source::Lease);
            false
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
            true
        }
    })
    .await;
}

/// The environment variable that makes this binary a process that checks.
const WORKER: &str = "FLEETLIMIT_TEST_LEASED_WORKER";

/// A process that checks a key 500 times per second, and reports each decision in a line: the times before and after
/// it, and its source. It ends at the end of its input.
#[test]
fn worker() {
    let Ok(url) = env::var(WORKER) else { return };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.spawn(async move {
        let limiter = test_limiter_builder(RedisStore::open(url).unwrap(), quota());
        let limiter = limiter.lease(LEASE).build().unwrap();
        loop {
            let (earliest, before) = (redis_clock(), Instant::now());
            let decision = limiter.check("key").await.unwrap();
            let took = before.elapsed().as_micros();
            let (source, is_allowed) = (decision.source(), decision.is_allowed());
            println!("decided {earliest} {} {took} {source:?} {is_allowed}", redis_clock());
            sleep(Duration::from_millis(2)).await;
        }
    });
    let _ = std::io::stdin().read_line(&mut String::new());
}

struct Worker {
    process: Child,
    lines: BufReader<ChildStdout>,
    _stdin: ChildStdin,
}

/// What a worker reports of a check.
#[derive(Debug)]
struct Decided {
    earliest: u64,
    latest: u64,
    source: String,
    is_allowed: bool,
}

impl Worker {
    fn start(server: &Server) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["leased_fleet::worker", "--exact", "--nocapture"])
            .env(WORKER, server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let stdin = process.stdin.take().unwrap();
        Self { process, lines, _stdin: stdin }
    }

    fn next(&mut self) -> Option<Decided> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let words: Vec<_> = line.split_whitespace().collect();
            if let ["decided", earliest, latest, _, source, is_allowed] = words[..] {
                return Some(Decided {
                    earliest: earliest.parse().unwrap(),
                    latest: latest.parse().unwrap(),
                    source: source.into(),
                    is_allowed: is_allowed.parse().unwrap(),
                });
            }
        }
    }

    fn until_lease(&mut self) -> Decided {
        loop {
            let decided = self.next().unwrap();
            if decided.source == "Lease" {
                return decided;
            }
        }
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_suspended_uses_no_lease_that_has_ended() {
    let server = Server::start().await;
    let mut worker = Worker::start(&server);
    for _ in 0..3 {
        // The checks since, until one began after the stop.
        let mut last = worker.until_lease();
        worker.signal("STOP");
        sleep(2 * LEASE).await;
        worker.signal("CONT");
        loop {
            let decided = worker.next().unwrap();
            if decided.earliest.saturating_sub(last.latest) >= LEASE.as_micros() as u64 {
                // What it had asked for before has ended.
                assert_eq!(decided.source, "Store", "{decided:?} after {last:?}");
                break;
            }
            if decided.latest - decided.earliest >= LEASE.as_micros() as u64 {
                // The stop was during this check.
                break;
            }
            last = decided;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_process_has_leased_refills() {
    let server = Server::start().await;
    let observer = test_limiter(RedisStore::open(server.url()).unwrap(), quota());
    let mut worker = Worker::start(&server);
    for _ in 0..100 {
        assert!(worker.until_lease().is_allowed);
    }
    worker.signal("KILL");
    worker.process.wait().unwrap();
    wait_until("it refills", BOUND, async || {
        observer.peek("key").await.unwrap().remaining() == BURST
    })
    .await;
}
