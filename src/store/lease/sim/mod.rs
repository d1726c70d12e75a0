//! Simulation of leases: processes that check one key, a server, and the network between them, in virtual time and
//! without I/O. `plan` draws a run from a seed, `world` runs it with the code of the leases and the specification, and
//! `spans` finds the span in which the most was used.
//!
//! Processes have demand that moves, pause for longer than a lease, are killed or shut down, and follow updates one after
//! another.
//! Calls take longer than their timeout, and replies are lost. The clock of the server steps.
//!
//! - No span has more than the burst and the rate times the span.
//! - Live leases never have more than half of what the server's bucket holds, so nobody is denied while more than that
//!   and the permits in flight are unused.
//! - Each leased permit is used, given back, lost or in a lease.

mod plan;
mod spans;
mod world;

use self::world::World;
use crate::random::seeded;

/// How many seeds an ordinary test run simulates.
const SEEDS: u64 = 10_000;

/// How many are simulated for each that is asked for: they are shorter than those of the transport.
const PER_REQUESTED: u64 = 10;

#[test]
fn no_pause_kill_update_or_delay_makes_leases_admit_too_much() {
    seeded::simulate_seeds(SEEDS, PER_REQUESTED, |seed| World::new(seed).run());
}
