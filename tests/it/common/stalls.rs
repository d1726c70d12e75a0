use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shorter than what tests allow a reply in addition to the round trip.
const NOTICEABLE: Duration = Duration::from_millis(10);

/// Watches for times in which the machine runs no thread that is ready: not even one that only
/// sleeps and looks at the clock. What is late then says nothing about the code under test.
pub(crate) struct Stalls {
    watcher: JoinHandle<Vec<(Instant, Instant)>>,
    done: Arc<AtomicBool>,
}

impl Stalls {
    pub(crate) fn watch() -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let watcher = thread::spawn({
            let done = done.clone();
            move || {
                let mut stalls = Vec::new();
                while !done.load(Relaxed) {
                    let start = Instant::now();
                    thread::sleep(Duration::from_millis(1));
                    let stall = start.elapsed();
                    if stall >= NOTICEABLE {
                        // What has piled up takes a while, too.
                        stalls.push((start, start + 2 * stall));
                    }
                }
                stalls
            }
        });
        Self { watcher, done }
    }

    /// Ends the watch, and returns when the machine stalled, with the time to catch up.
    pub(crate) fn end(self) -> Vec<(Instant, Instant)> {
        self.done.store(true, Relaxed);
        self.watcher.join().unwrap()
    }
}
