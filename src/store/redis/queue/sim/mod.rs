//! Deterministic simulation of the transport: `plan` is a run, drawn from a seed, and `world` its events in
//! virtual time. `process`, `connection`, `server`, `probe` and `task` (a batch on its way) run the state
//! machines of the queue and of its connections, and `check` has the invariants, which are checked after every
//! event. `random` draws from the seed.
//!
//! The network stalls, loses and cuts, nodes redirect, processes stall, and the servers run the specification.
//! No check may be late, run twice, or be charged after it was cancelled in time; no key may be admitted too
//! much; attempts to connect are spread out, and memory is bounded; and what starts while nothing is wrong is
//! decided.
//!
//! The code around the state machines (locks, wakers, real connections) is not simulated, nor are TLS,
//! Sentinel, pools and the merging of slot maps. Integration tests cover these.

mod check;
mod connection;
mod plan;
mod probe;
mod process;
mod random;
mod server;
mod task;
mod world;

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use self::world::{Stats, World};

/// How many seeds an ordinary test run simulates.
const SEEDS: u64 = 300;

#[test]
fn no_network_scheduler_or_server_breaks_the_promises_of_the_transport() {
    if let Some(seed) = variable("FLEETLIMIT_SIM_SEED") {
        println!("{:#?}", simulate(seed).unwrap_or_else(|violation| panic!("{violation}")));
        return;
    }
    let seeds = variable("FLEETLIMIT_SIM_SEEDS").unwrap_or(SEEDS);
    let (next, total, failed) =
        (AtomicU64::new(0), Mutex::new(Stats::default()), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || failed.lock().unwrap().len() >= 5 {
                        return;
                    }
                    match simulate(seed) {
                        Ok(stats) => total.lock().unwrap().add(stats),
                        Err(violation) => failed.lock().unwrap().push((seed, violation)),
                    }
                }
            });
        }
    });
    println!("{seeds} seeds: {:?}", total.lock().unwrap());
    let failed = failed.into_inner().unwrap();
    for (seed, violation) in &failed {
        println!("FLEETLIMIT_SIM_SEED={seed} reproduces: {violation}");
    }
    let seeds: Vec<_> = failed.iter().map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "seeds that fail: {seeds:?}");
}

fn simulate(seed: u64) -> Result<Stats, String> {
    catch_unwind(|| World::new(seed).run()).unwrap_or_else(|_| Err("a panic".to_owned()))
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

impl Stats {
    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.checks += other.checks;
        self.decided += other.decided;
        self.failed += other.failed;
        self.owed += other.owed;
        self.attempts += other.attempts;
        self.redirected += other.redirected;
        self.opened += other.opened;
    }
}
