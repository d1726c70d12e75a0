//! Memory in which each thread counts on its own, so that it needs no atomic additions.
//!
//! The same counter of several rows is in neighbouring cells, of 32 bits. So what a thread writes when it
//! checks a thousand policies, and most checks increment the same counter, stays in its caches.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::shard;

/// The number of counters in a row.
pub(super) const COUNTERS: usize = 20;

/// How many rows a block has.
const ROWS: usize = 32;
const BLOCKS: usize = 512;

/// A cell of each thread for each counter. Their values were not 0 when it was taken, if the row had
/// another owner before. They wrap around.
#[derive(Debug)]
pub(super) struct Row(usize);

/// The position of a row, to be kept where each check finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowIndex(usize);

#[derive(Debug)]
pub(super) struct AtomicRowIndex(AtomicUsize);

/// Processors fetch cache lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Block([[AtomicU32; ROWS]; COUNTERS]);

/// Those of a thread, each made when it first counts there.
type Blocks = [OnceLock<Box<Block>>; BLOCKS];

static SHARDS: [Blocks; shard::COUNT] =
    [const { [const { OnceLock::new() }; BLOCKS] }; shard::COUNT];

thread_local! {
    /// The block in which the thread counted last, and its number. Found here, a cell is reached with fewer
    /// cache lines.
    static LATEST: Cell<(usize, Option<&'static Block>)> = const { Cell::new((0, None)) };
}

struct Free {
    rows: Vec<usize>,
    /// All from here on were never taken.
    next: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free { rows: Vec::new(), next: 0 });

impl Row {
    /// `None` if all are taken.
    pub(super) fn take() -> Option<Self> {
        let Free { rows, next } = &mut *free();
        if let Some(row) = rows.pop() {
            return Some(Self(row));
        }
        let row = *next;
        *next = (row + 1).min(ROWS * BLOCKS);
        (row < ROWS * BLOCKS).then_some(Self(row))
    }

    pub(super) fn index(&self) -> RowIndex {
        RowIndex(self.0)
    }

    /// The sum of the cells of all threads, for each counter. It wraps around.
    pub(super) fn totals(&self) -> [u32; COUNTERS] {
        let mut totals = [0_u32; COUNTERS];
        for block in SHARDS.iter().filter_map(|blocks| blocks[self.0 / ROWS].get()) {
            for (total, cells) in totals.iter_mut().zip(&block.0) {
                *total = total.wrapping_add(cells[self.0 % ROWS].load(Ordering::Relaxed));
            }
        }
        totals
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        free().rows.push(self.0);
    }
}

impl RowIndex {
    /// Of no row.
    pub(super) const NONE: Self = Self(usize::MAX);

    /// Returns `false` if there is no row.
    #[inline(always)]
    pub(super) fn add(self, counter: usize, count: u32) -> bool {
        if shard::own().is_some()
            && let (number, Some(block)) = LATEST.get()
            && number == self.0 / ROWS
        {
            self.add_alone(block, counter, count);
            return true;
        }
        self.add_in_another(counter, count)
    }

    #[inline(never)]
    fn add_in_another(self, counter: usize, count: u32) -> bool {
        let (own, number) = (shard::own(), self.0 / ROWS);
        let blocks = &SHARDS[own.unwrap_or(shard::SHARED)];
        let Some(block) = blocks.get(number) else { return false };
        let block = block.get_or_init(Box::default);
        if own.is_some() {
            LATEST.set((number, Some(block)));
            self.add_alone(block, counter, count);
        } else {
            block.0[counter][self.0 % ROWS].fetch_add(count, Ordering::Relaxed);
        }
        true
    }

    #[inline(always)]
    fn add_alone(self, block: &Block, counter: usize, count: u32) {
        let cell = &block.0[counter][self.0 % ROWS];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

impl AtomicRowIndex {
    pub(super) fn new(index: RowIndex) -> Self {
        Self(AtomicUsize::new(index.0))
    }

    #[inline(always)]
    pub(super) fn load(&self) -> RowIndex {
        RowIndex(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn store(&self, index: RowIndex) {
        self.0.store(index.0, Ordering::Relaxed);
    }
}

fn free() -> MutexGuard<'static, Free> {
    // Nothing that panics runs under the lock.
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}
