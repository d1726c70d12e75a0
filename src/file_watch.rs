//! Watches files by reading them once a second.
//!
//! Notifications of the kernel arrive sooner, but not always: on a network file system, a machine is notified only of
//! its own changes; on a volume of a container or virtual machine, often of none; and a watched directory does not
//! contain the files that its symbolic links lead to. Reading finds all of these changes, and reading a few kilobytes
//! once a second costs nothing that can be measured.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// The time between two reads, which have to be the same. Programs write files in several steps, and the first part
/// of a file may be valid, with fewer limits.
const INTERVAL: Duration = Duration::from_secs(1);

/// The number of reads in a row, all different, before the first warning.
const READS_BEFORE_WARNING: u32 = 10;

/// The number of reads from one warning to the next.
const READS_PER_WARNING: u32 = 60;

/// Watches a file until it is dropped: see [`Limiters::watch`](crate::Limiters::watch).
#[must_use = "the file is watched until this is dropped"]
pub struct FileWatch {
    name: String,
    // Its end closes the channel, which ends the thread.
    _end: Sender<()>,
}

/// Tells a change that is complete from one that is still being written: two reads in a row find the same.
#[derive(Debug)]
pub struct Settling<T> {
    before: Option<T>,
    /// The number of reads in a row that found something else than the one before.
    unsettled: u32,
}

/// The files that a [`FileWatch`] watches.
pub trait Watched: Send + 'static {
    /// The contents of the files or, if they are large, a digest of them.
    type Content: PartialEq;

    /// Reads the files. Returns `None` if what they have is in effect already, or has been rejected.
    fn changed(&mut self) -> Option<Self::Content>;

    /// Puts into effect what two reads in a row have found.
    fn apply(&mut self, content: Self::Content);
}

impl FileWatch {
    /// Watches files in a thread. The name is for the log.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    #[doc(hidden)]
    pub fn start(name: impl Into<String>, mut watched: impl Watched) -> io::Result<Self> {
        let name = name.into();
        let (end, ended) = mpsc::channel();
        let log = WatchLog(name.clone());
        let follow = move || {
            let mut settling = Settling::default();
            loop {
                read_once(&mut watched, &mut settling, &log);
                if ended.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        thread::Builder::new().name("fleetlimit-watch".into()).spawn(follow)?;
        Ok(Self { name, _end: end })
    }
}

/// Reads files once, and applies what they have if it is the same as before. A panic, such as of an application's
/// parser, must not end the watch.
fn read_once<W: Watched>(watched: &mut W, settling: &mut Settling<W::Content>, log: &WatchLog) {
    let read = AssertUnwindSafe(|| {
        if let Some(content) = settling.read(watched.changed()) {
            watched.apply(content);
        }
    });
    if catch_unwind(read).is_err() {
        log.panicked();
    }
    if settling.has_to_warn() {
        log.warn();
    }
}

impl<T: PartialEq> Settling<T> {
    /// Takes what a read has found, or `None` if that is in effect. Returns it if the read before has found the same.
    pub fn read(&mut self, found: Option<T>) -> Option<T> {
        let is_settled = self.before == found;
        self.unsettled = if is_settled || found.is_none() { 0 } else { self.unsettled + 1 };
        match is_settled {
            true => self.before.take(),
            false => {
                self.before = found;
                None
            }
        }
    }

    fn has_to_warn(&self) -> bool {
        self.unsettled % READS_PER_WARNING == READS_BEFORE_WARNING
    }
}

impl<T> Default for Settling<T> {
    fn default() -> Self {
        Self { before: None, unsettled: 0 }
    }
}

/// The name of what is watched, for the log.
struct WatchLog(String);

impl WatchLog {
    fn panicked(&self) {
        tracing::error!(
            target: "fleetlimit", event = "watched_file_panicked", file = self.0,
            "applying a watched file has panicked"
        );
    }

    fn warn(&self) {
        tracing::warn!(
            target: "fleetlimit", event = "watched_file_unsettled", file = self.0,
            "a watched file is different each time it is read, so its changes do not apply: replace it as a whole, \
             by renaming another one"
        );
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWatch").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_once_does_not_apply_and_what_applies_does_so_once() {
        let mut settling = Settling::default();
        let reads =
            [Some(1), Some(2), Some(2), None, Some(3), None, Some(3), Some(1), Some(1), Some(1)];
        let applied = reads.map(|found| settling.read(found));
        let expected = [None, None, Some(2), None, None, None, None, None, Some(1), None];
        assert_eq!(applied, expected);
    }

    /// Applies each text once, and panics at the first.
    #[derive(Default)]
    struct PanicsAtFirst {
        text: u32,
        applied: Vec<u32>,
    }

    impl Watched for PanicsAtFirst {
        type Content = u32;

        fn changed(&mut self) -> Option<u32> {
            Some(self.text).filter(|text| self.applied.last() != Some(text))
        }

        fn apply(&mut self, text: u32) {
            self.applied.push(text);
            assert!(self.applied.len() > 1, "at first");
        }
    }

    #[test]
    fn a_panic_does_not_end_the_watch() {
        let (mut watched, mut settling) = (PanicsAtFirst::default(), Settling::default());
        let log = WatchLog("file".to_owned());
        for text in [1, 2] {
            watched.text = text;
            (0..3).for_each(|_| read_once(&mut watched, &mut settling, &log));
        }
        assert_eq!(watched.applied, [1, 2]);
    }

    #[test]
    fn a_file_that_never_settles_is_reported_now_and_then() {
        let mut settling = Settling::default();
        let warnings = (0..600).filter(|read| {
            assert_eq!(settling.read(Some(*read)), None);
            settling.has_to_warn()
        });
        assert_eq!(warnings.count(), 10);
        settling.read(Some(599));
        assert!(!settling.has_to_warn());
    }
}
