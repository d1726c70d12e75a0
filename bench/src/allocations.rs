//! Heap allocations of a request through the layer, beyond those of the service alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ::tollgate::MemoryStore;

use crate::common::Server;
use crate::load::{self, Load, Until};
use crate::subjects::{Fault, Hello, Subject, Through, tollgate};

/// Few enough that a denial is still remembered when its turn comes again.
const CALLERS: u64 = 1_000;

pub(crate) fn run() -> Result<ExitCode, Fault> {
    // On one thread, which does all that a request causes: the calls to Redis too.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(report())
}

async fn report() -> Result<ExitCode, Fault> {
    let server = Server::start().await;
    let memory = |policy| tollgate::limiter(MemoryStore::new(), policy);
    let redis = |policy| tollgate::limiter(tollgate::on(&server)?, policy);
    let bare = [
        per_request(&Through(Hello), 1, true).await?,
        per_request(&Through(Hello), 256, true).await?,
    ];

    println!("| request | allocations | bytes |\n|---|--:|--:|");
    let print = |name, counted: Counted| {
        println!("| {name} | {:.1} | {:.0} |", counted.allocations, counted.bytes);
    };
    print("the service alone, which is not counted below", bare[0]);
    let open = tollgate::layered(memory(tollgate::open())?);
    print("memory, allowed", per_request(&open, 1, true).await?.beyond(bare[0]));
    let shut = tollgate::layered(memory(tollgate::shut())?);
    print("memory, denied", per_request(&shut, 1, false).await?.beyond(bare[0]));
    let open = tollgate::layered(redis(tollgate::open())?);
    print("Redis, allowed, one at a time", per_request(&open, 1, true).await?.beyond(bare[0]));
    print("Redis, allowed, 256 at a time", per_request(&open, 256, true).await?.beyond(bare[1]));
    let shut = tollgate::layered(redis(tollgate::shut())?);
    print("Redis, denied and remembered", per_request(&shut, 1, false).await?.beyond(bare[0]));
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy)]
struct Counted {
    allocations: f64,
    bytes: f64,
}

impl Counted {
    fn beyond(self, bare: Self) -> Self {
        Self { allocations: self.allocations - bare.allocations, bytes: self.bytes - bare.bytes }
    }
}

async fn per_request(subject: &impl Subject, tasks: u64, is_open: bool) -> Result<Counted, Fault> {
    let load = Load { tasks, keys: CALLERS, until: Until::Filled };
    // The first uses up what there is, the second is told by the store.
    for _ in 0..2 {
        load::run(subject.clone(), load).await?;
    }
    let before = (ALLOCATIONS.load(Relaxed), BYTES.load(Relaxed));
    COUNTING.store(true, Relaxed);
    let slice = load::run(subject.clone(), load).await?;
    COUNTING.store(false, Relaxed);
    if (if is_open { slice.denied } else { slice.allowed }) > 0 {
        return Err("a request was decided otherwise than it should".into());
    }
    let each = |counter: &AtomicU64, before| {
        (counter.load(Relaxed) - before) as f64 / slice.decisions() as f64
    };
    Ok(Counted { allocations: each(&ALLOCATIONS, before.0), bytes: each(&BYTES, before.1) })
}

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The system's allocator. The other runs pay one look at a flag for an allocation.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize) {
    if COUNTING.load(Relaxed) {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(bytes as u64, Relaxed);
    }
}

// SAFETY: all is handed on to the system's allocator as it is.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
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
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        unsafe { System.dealloc(old, layout) }
    }
}
