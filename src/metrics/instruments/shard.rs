//! Gives threads numbers, so that each can write to memory of its own.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of shards.
pub(super) const COUNT: usize = 16;

/// Of all threads that find no free one.
pub(super) const SHARED: usize = COUNT - 1;
const UNKNOWN: usize = usize::MAX;

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(UNKNOWN) };
    static OWNED: Owned = Owned(take(&mut taken()));
}

/// The shard that a thread has until it ends.
struct Owned(usize);

type Taken = [bool; SHARED];

static TAKEN: Mutex<Taken> = Mutex::new([false; SHARED]);

/// The shard to which no other thread writes.
#[inline]
pub(super) fn own() -> Option<usize> {
    let shard = SHARD.get();
    if shard < SHARED { Some(shard) } else { assigned() }
}

#[cold]
fn assigned() -> Option<usize> {
    if SHARD.get() == UNKNOWN {
        // It fails while the thread ends.
        SHARD.set(OWNED.try_with(|owned| owned.0).unwrap_or(SHARED));
    }
    Some(SHARD.get()).filter(|shard| *shard < SHARED)
}

impl Drop for Owned {
    fn drop(&mut self) {
        // What else the thread counts while it ends must not meet the next owner.
        SHARD.set(SHARED);
        put_back(&mut taken(), self.0);
    }
}

fn taken() -> MutexGuard<'static, Taken> {
    // Nothing that panics runs under the lock.
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(taken: &mut Taken) -> usize {
    let free = taken.iter_mut().enumerate().find(|(_, is_taken)| !**is_taken);
    free.map_or(SHARED, |(shard, is_taken)| {
        *is_taken = true;
        shard
    })
}

fn put_back(taken: &mut Taken, shard: usize) {
    if let Some(is_taken) = taken.get_mut(shard) {
        *is_taken = false;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn no_two_running_threads_have_the_same_shard_unless_it_is_the_shared_one() {
        let barrier = Barrier::new(2 * COUNT);
        let shards: Vec<_> = thread::scope(|scope| {
            let take = || {
                let shard = own();
                barrier.wait();
                shard
            };
            let threads: Vec<_> = (0..2 * COUNT).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let own: Vec<_> = shards.into_iter().flatten().collect();
        assert!(own.len() < COUNT);
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), own.len());
    }

    #[test]
    fn shards_of_threads_that_have_ended_are_used_again() {
        let mut taken = [false; SHARED];
        let all: Vec<_> = (0..COUNT).map(|_| take(&mut taken)).collect();
        assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
        assert_eq!(take(&mut taken), SHARED);
        all.into_iter().for_each(|shard| put_back(&mut taken, shard));
        let again: HashSet<_> = (0..SHARED).map(|_| take(&mut taken)).collect();
        assert_eq!(again, (0..SHARED).collect());
        assert_eq!(take(&mut taken), SHARED);
    }
}
