//! Heap allocations of a request through the layer, in addition to those of the bare service.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use ::fleetlimit::MemoryStore;

use crate::common::Server;
use crate::load::{self, Load, Until};
use crate::subjects::{BoxError, OkService, Operation, ServiceCall, fleetlimit};

/// Few enough that the denial of a key is still cached at the next check of the key.
const KEYS: u64 = 1_000;

pub(crate) fn run() -> Result<ExitCode, BoxError> {
    // One thread does all the work of a request, including the calls to Redis.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(report())
}

async fn report() -> Result<ExitCode, BoxError> {
    let server = Server::start().await;
    let memory = |policy| fleetlimit::limiter(MemoryStore::new(), policy);
    let redis = |policy| fleetlimit::limiter(fleetlimit::redis_store(&server)?, policy);
    let bare = [
        per_request(&ServiceCall(OkService), 1, true).await?,
        per_request(&ServiceCall(OkService), 256, true).await?,
    ];

    println!("| request | allocations | bytes |\n|---|--:|--:|");
    let print = |name, counts: Counts| {
        println!("| {name} | {:.1} | {:.0} |", counts.allocations, counts.bytes);
    };
    print("bare service (not included below)", bare[0]);
    let allowed = fleetlimit::layered(memory(fleetlimit::allow_all())?);
    print("memory, allowed", per_request(&allowed, 1, true).await?.minus(bare[0]));
    let denied = fleetlimit::layered(memory(fleetlimit::deny_after_first())?);
    print("memory, denied", per_request(&denied, 1, false).await?.minus(bare[0]));
    let allowed = fleetlimit::layered(redis(fleetlimit::allow_all())?);
    print("Redis, allowed, 1 task", per_request(&allowed, 1, true).await?.minus(bare[0]));
    print("Redis, allowed, 256 tasks", per_request(&allowed, 256, true).await?.minus(bare[1]));
    let denied = fleetlimit::layered(redis(fleetlimit::deny_after_first())?);
    print("Redis, denied, cached", per_request(&denied, 1, false).await?.minus(bare[0]));
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy)]
struct Counts {
    allocations: f64,
    bytes: f64,
}

impl Counts {
    fn minus(self, bare: Self) -> Self {
        Self { allocations: self.allocations - bare.allocations, bytes: self.bytes - bare.bytes }
    }
}

async fn per_request(
    operation: &impl Operation,
    tasks: u64,
    allow_all: bool,
) -> Result<Counts, BoxError> {
    let load = Load { tasks, keys: KEYS, until: Until::AllKeys };
    // With `deny_after_first`, the first run uses the quota, and the second fills the denial cache.
    for _ in 0..2 {
        load::run(operation.clone(), load).await?;
    }
    let before = (ALLOCATIONS.load(Relaxed), BYTES.load(Relaxed));
    COUNTING.store(true, Relaxed);
    let measurement = load::run(operation.clone(), load).await?;
    COUNTING.store(false, Relaxed);
    let unexpected = if allow_all { measurement.denied } else { measurement.allowed };
    if unexpected > 0 {
        return Err(format!("{unexpected} requests got an unexpected decision").into());
    }
    let per_decision = |counter: &AtomicU64, before| {
        (counter.load(Relaxed) - before) as f64 / measurement.decisions() as f64
    };
    Ok(Counts {
        allocations: per_decision(&ALLOCATIONS, before.0),
        bytes: per_decision(&BYTES, before.1),
    })
}

/// The bytes that have been allocated since the first call, and not freed.
pub(crate) fn live_bytes() -> i64 {
    COUNTING.store(true, Relaxed);
    LIVE.load(Relaxed)
}

static LIVE: AtomicI64 = AtomicI64::new(0);
static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The system allocator with counters. In the other commands it adds one flag check per call.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn count(bytes: usize) {
    if COUNTING.load(Relaxed) {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(bytes as u64, Relaxed);
        LIVE.fetch_add(bytes as i64, Relaxed);
    }
}

fn free(bytes: usize) {
    if COUNTING.load(Relaxed) {
        LIVE.fetch_sub(bytes as i64, Relaxed);
    }
}

// SAFETY: every method passes its arguments to the system allocator unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        free(layout.size());
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        free(layout.size());
        unsafe { System.dealloc(old, layout) }
    }
}
