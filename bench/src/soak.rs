//! A long run at a distance from Redis, with a stall of the server every few seconds: whether checks
//! are decided again soon, on the same connection, and without a growth of memory.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::fleetlimit::{Limiter, RedisStore, Source};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::distance::DistantServer;
use crate::load::KeySequence;
use crate::settings::Settings;
use crate::subjects::{BoxError, address, fleetlimit};

const KEYS: u64 = 10_000;
const ROUND_TRIP: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_millis(50);
const CHECKS_PER_SECOND: f64 = 15_000.0;

/// A stall begins this often. Its length cycles through the shortest and longest in steps.
const STALL_INTERVAL: Duration = Duration::from_secs(4);
const STALLS_MS: [u64; 7] = [20, 50, 100, 200, 300, 400, 500];

/// After a stall everything is decided again.
const RECOVERY: Duration = Duration::from_secs(1);

const MIN_DECIDED: f64 = 0.999;

/// How far the process may grow from a quarter of the run to its end.
const MAX_GROWTH: f64 = 1.1;

struct Check {
    started: Instant,
    is_decided: bool,
}

/// The checks that started in the same 10 ms.
#[derive(Clone, Copy, Default)]
struct Slot {
    started: u32,
    decided: u32,
}

const SLOT: Duration = Duration::from_millis(10);

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let time = settings.slice.unwrap_or(Duration::from_secs(600));
    let server = DistantServer::start().await?;
    server.round_trip(ROUND_TRIP);
    let store = RedisStore::open(server.url())?;
    let limiter = fleetlimit::limiter_with_timeout(store, fleetlimit::allow_all(), TIMEOUT)?;
    let start = Instant::now();
    let load = tokio::spawn(load(limiter.clone(), start, time));
    let (stalls, sizes) = tokio::join!(stall(&server, start, time), watch_size(start, time));
    let slots = load.await?;

    let is_calm = |slot: usize| {
        let began = SLOT * slot as u32;
        let is_affected = |&(from, to): &(Duration, Duration)| {
            began + SLOT + TIMEOUT >= from && began <= to + RECOVERY
        };
        began >= RECOVERY && !stalls.iter().any(is_affected)
    };
    let (mut calm, mut all) = (Slot::default(), Slot::default());
    for (number, slot) in slots.iter().enumerate() {
        all.add(*slot);
        if is_calm(number) {
            calm.add(*slot);
        }
    }
    let (early, late) = sizes;
    let open = server.open_connections().await;
    drop(limiter);
    println!(
        "{time:?} at a round trip of {ROUND_TRIP:?}, {CHECKS_PER_SECOND} checks/s, {} stalls:\n\
         decided by Redis: {:.4} of all {} checks; {:.5} of the {} outside of the stalls and the \
         second after each (required: {MIN_DECIDED})\n\
         connections: {} made, {open} open at the end (required: 1)\n\
         resident memory: {early} KiB after a quarter, {late} KiB at the end (required: at most {MAX_GROWTH} times)",
        stalls.len(),
        all.share(),
        all.started,
        calm.share(),
        calm.started,
        server.connections(),
    );
    let is_met =
        calm.share() >= MIN_DECIDED && open == 1 && late as f64 <= early as f64 * MAX_GROWTH;
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Slot {
    fn add(&mut self, other: Self) {
        self.started += other.started;
        self.decided += other.decided;
    }

    fn share(self) -> f64 {
        f64::from(self.decided) / f64::from(self.started.max(1))
    }
}

/// Starts checks at a fixed rate, however many are pending.
async fn load(limiter: Limiter, start: Instant, time: Duration) -> Vec<Slot> {
    let mut slots = vec![Slot::default(); time.div_duration_f64(SLOT) as usize + 1];
    let (mut keys, mut pending) = (KeySequence::new(KEYS, 0), FuturesUnordered::new());
    let mut tick = interval(Duration::from_millis(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut number = 0;
    let mut count = |check: Check| {
        let slot = check.started.duration_since(start).div_duration_f64(SLOT) as usize;
        if let Some(slot) = slots.get_mut(slot) {
            slot.started += 1;
            slot.decided += u32::from(check.is_decided);
        }
    };
    while start.elapsed() < time {
        tokio::select! {
            _ = tick.tick() => {
                let due = (start.elapsed().as_secs_f64() * CHECKS_PER_SECOND) as u64;
                for _ in number..due {
                    pending.push(check(&limiter, keys.next()));
                }
                number = due;
            }
            Some(check) = pending.next() => count(check),
        }
        while let Some(Some(check)) = pending.next().now_or_never() {
            count(check);
        }
    }
    while let Some(check) = pending.next().await {
        count(check);
    }
    slots
}

async fn check(limiter: &Limiter, key: u32) -> Check {
    let started = Instant::now();
    let decision = limiter.check(address(key)).await;
    let is_decided = decision.is_ok_and(|decision| decision.source() == Source::Store);
    Check { started, is_decided }
}

/// Stalls the server again and again. Returns when each stall began and ended.
async fn stall(
    server: &DistantServer,
    start: Instant,
    time: Duration,
) -> Vec<(Duration, Duration)> {
    let mut stalls = Vec::new();
    for millis in STALLS_MS.into_iter().cycle() {
        sleep(STALL_INTERVAL).await;
        if start.elapsed() + STALL_INTERVAL > time {
            break;
        }
        let from = start.elapsed();
        server.server.pause();
        sleep(Duration::from_millis(millis)).await;
        server.server.resume();
        stalls.push((from, start.elapsed()));
    }
    stalls
}

/// Returns the resident size of the process in KiB, after a quarter of the time and at the end.
async fn watch_size(start: Instant, time: Duration) -> (u64, u64) {
    sleep((time / 4).saturating_sub(start.elapsed())).await;
    let early = resident_kib();
    sleep(time.saturating_sub(start.elapsed())).await;
    (early, resident_kib())
}

pub(crate) fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
