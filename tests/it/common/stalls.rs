//! Stalls of the machine, for which no test may blame the code.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shorter than what tests allow a reply in addition to the round trip.
const NOTICEABLE: Duration = Duration::from_millis(10);

/// Watches for times in which the machine runs no thread that is ready: not even one that only
/// sleeps and looks at the clock. What is late then says nothing about the code under test.
pub(crate) struct Stalls {
    watcher: JoinHandle<()>,
    watched: Arc<Watched>,
}

#[derive(Default)]
struct Watched {
    /// With the time to catch up.
    stalls: Mutex<Vec<(Instant, Instant)>>,
    done: AtomicBool,
}

impl Stalls {
    pub(crate) fn watch() -> Self {
        let watched = Arc::new(Watched::default());
        let watcher = thread::spawn({
            let watched = watched.clone();
            move || watched.watch()
        });
        Self { watcher, watched }
    }

    /// How long the machine has stalled, with the time to catch up.
    pub(crate) fn lost(&self) -> Duration {
        self.watched.stalls.lock().unwrap().iter().map(|(start, end)| *end - *start).sum()
    }

    /// Ends the watch, and returns when the machine stalled, with the time to catch up.
    pub(crate) fn end(self) -> Vec<(Instant, Instant)> {
        self.watched.done.store(true, Relaxed);
        self.watcher.join().unwrap();
        std::mem::take(&mut self.watched.stalls.lock().unwrap())
    }
}

impl Watched {
    fn watch(&self) {
        while !self.done.load(Relaxed) {
            let start = Instant::now();
            thread::sleep(Duration::from_millis(1));
            let stall = start.elapsed();
            if stall >= NOTICEABLE {
                // What has piled up takes a while, too.
                self.stalls.lock().unwrap().push((start, start + 2 * stall));
            }
        }
    }
}
