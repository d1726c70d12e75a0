//! Random numbers from a seed (SplitMix64), and simulations of many seeds.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.range(0..len as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.range(0..100) < percent
    }

    /// Returns a number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }
}

/// The results of runs that add up.
pub(crate) trait Stats: Debug + Default + Send {
    fn add(&mut self, other: Self);
}

/// Simulates seeds on all processors, and panics with those that fail. `seeds` is their number in an ordinary test run.
/// `FLEETLIMIT_SIM_SEEDS` asks for another number, of which each stands for `per_requested`. `FLEETLIMIT_SIM_SEED` is
/// a single seed.
pub(crate) fn simulate_seeds<S: Stats>(
    seeds: u64,
    per_requested: u64,
    simulate: impl Fn(u64) -> Result<S, String> + Sync + std::panic::RefUnwindSafe,
) {
    let simulate =
        |seed| catch_unwind(|| simulate(seed)).unwrap_or_else(|_| Err("a panic".to_owned()));
    if let Some(seed) = variable("FLEETLIMIT_SIM_SEED") {
        println!("{:#?}", simulate(seed).unwrap_or_else(|violation| panic!("{violation}")));
        return;
    }
    let requested = variable("FLEETLIMIT_SIM_SEEDS").map(|seeds| seeds * per_requested);
    let seeds = requested.unwrap_or(seeds);
    let (next, total, failed) =
        (AtomicU64::new(0), Mutex::new(S::default()), Mutex::new(Vec::new()));
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

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}
