//! Deterministic simulation of the transport: `plan` is a run, drawn from a seed, and `world` its events in
//! virtual time. `process`, `connection`, `server`, `probe` and `task` (a batch on its way) run the state
//! machines of the queue and of its connections, and `check` has the invariants, which are checked after every
//! event.
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
mod server;
mod task;
mod world;

use self::world::{Stats, World};
use crate::random::seeded;

/// How many seeds an ordinary test run simulates.
const SEEDS: u64 = 300;

#[test]
fn no_network_scheduler_or_server_breaks_the_promises_of_the_transport() {
    seeded::simulate_seeds(SEEDS, 1, |seed| World::new(seed).run());
}

impl seeded::Stats for Stats {
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
