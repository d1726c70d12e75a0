//! Reloads a file when it changes.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::Limiters;
use crate::{ConfigError, PolicySet};

/// The time between two reads, which have to be the same. Programs write files in several steps, and the first part
/// of a file may be valid, with fewer limits.
const INTERVAL: Duration = Duration::from_millis(200);

/// Watches a file until it is dropped: see [`Limiters::watch`].
#[must_use = "the file is watched until this is dropped"]
#[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
pub struct FileWatch {
    path: PathBuf,
    // Its end closes the channel, which ends the thread.
    _watcher: RecommendedWatcher,
}

impl Limiters {
    /// Reads a file again whenever it changes, and [reloads](Self::reload) what `parse` makes of
    /// it: when two reads with 200 ms between them find the same text, so no half of a file applies while
    /// a program writes it. It also reads the file at first, in the background, and reloads it if its policies
    /// differ from the current set, so a change between your own reading and this call applies too.
    ///
    /// The outcome is logged, under the target `fleetlimit`: an `info` event after a reload, an
    /// `error` with the errors of a file that is invalid or cannot be read. The old limits stay then.
    /// The errors are those of [`reload_file`](Self::reload_file).
    ///
    /// The directory of the file is watched, so the file may be replaced, also by a symbolic link
    /// in that directory, as in a Kubernetes ConfigMap. Changes on network file systems, and of a
    /// link's target in another directory, may go unnoticed. If `parse` panics, watching ends.
    ///
    /// # Errors
    ///
    /// If the directory cannot be watched, or no thread started.
    #[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
    pub fn watch<E: Display>(
        &self,
        path: impl AsRef<Path>,
        parse: impl Fn(&str) -> Result<PolicySet, E> + Send + 'static,
    ) -> Result<FileWatch, ConfigError> {
        let path = path.as_ref().to_owned();
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let error = |error: &dyn Display| {
            ConfigError::new(format!("cannot watch {}: {error}", directory.display()))
        };
        let (events, received) = mpsc::channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading is an event too.
            let is_read = event.is_ok_and(|event| event.kind.is_access());
            if !is_read {
                // The thread ends only after the watcher.
                let _ = events.send(());
            }
        })
        .map_err(|watch| error(&watch))?;
        watcher.watch(directory, RecursiveMode::NonRecursive).map_err(|watch| error(&watch))?;
        let file = File { path: path.clone(), limiters: self.clone(), last: None };
        let thread = thread::Builder::new().name("fleetlimit-watch".into());
        thread.spawn(move || file.follow(&received, &parse)).map_err(|spawn| error(&spawn))?;
        Ok(FileWatch { path, _watcher: watcher })
    }
}

struct File {
    path: PathBuf,
    limiters: Limiters,
    /// The text as it was, because most events are about other files or nothing new.
    last: Option<Result<String, String>>,
}

impl File {
    fn follow<E: Display>(
        mut self,
        events: &Receiver<()>,
        parse: &dyn Fn(&str) -> Result<PolicySet, E>,
    ) {
        loop {
            // At first, this is what has changed since the caller has read it.
            let mut text = Some(read(&self.path));
            while let Some(before) = text {
                if !pause(events) {
                    return;
                }
                text = self.reload_if_settled(&before, parse);
            }
            if events.recv().is_err() {
                return;
            }
        }
    }

    /// Reloads the file if it still has this text. Returns the text that it has otherwise.
    fn reload_if_settled<E: Display>(
        &mut self,
        before: &Result<String, String>,
        parse: &dyn Fn(&str) -> Result<PolicySet, E>,
    ) -> Option<Result<String, String>> {
        let limiters = self.limiters.clone();
        let _reading = limiters.start_reading();
        let text = read(&self.path);
        if text != *before {
            return Some(text);
        }
        if self.last.as_ref() != Some(&text) {
            self.reload(text, parse);
        }
        None
    }

    fn reload<E: Display>(
        &mut self,
        text: Result<String, String>,
        parse: &dyn Fn(&str) -> Result<PolicySet, E>,
    ) {
        let set = match &text {
            Ok(text) => parse(text).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        let is_first = self.last.replace(text).is_none();
        let reloaded = match set {
            Ok(set) if is_first && self.limiters.is_set(&set) => return,
            Ok(set) => self.limiters.reload(set).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let path = self.path.display();
        match reloaded {
            Ok(()) => tracing::info!(target: "fleetlimit", %path, "rate limits reloaded"),
            Err(errors) => {
                let message = "rate limits not reloaded, the old ones stay";
                tracing::error!(target: "fleetlimit", %path, errors, "{message}");
            }
        }
    }
}

/// Drops the events of an interval. Returns false if the watcher has ended.
fn pause(events: &Receiver<()>) -> bool {
    let end = Instant::now() + INTERVAL;
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        match events.recv_timeout(rest) {
            Err(RecvTimeoutError::Disconnected) => return false,
            _ if rest.is_zero() => return true,
            _ => {}
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWatch").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, Policy, Quota};

    /// The policies of a file with a name on each line.
    fn parse(text: &str) -> Result<PolicySet, String> {
        let names = text.lines().map(|name| Policy::new(name.to_owned()));
        Ok(names.fold(PolicySet::new(), |set, policy| {
            set.policy(policy.quota("second", Quota::per_second(1)))
        }))
    }

    #[test]
    fn a_file_that_is_written_in_steps_applies_only_when_it_is_complete() {
        let name = format!("fleetlimit-watch-{}.txt", std::process::id());
        let path = std::env::temp_dir().join(name);
        let limiters = Limiters::new(MemoryStore::new(), parse("old").unwrap()).unwrap();
        let mut file = File { path: path.clone(), limiters: limiters.clone(), last: None };
        let mut before = read(&path);
        for text in ["", "a\n", "a\nb\n"] {
            std::fs::write(&path, text).unwrap();
            before = file.reload_if_settled(&before, &parse).expect("it is not complete yet");
            assert!(limiters.is_set(&parse("old").unwrap()), "{text:?}");
        }
        assert!(file.reload_if_settled(&before, &parse).is_none());
        assert!(limiters.is_set(&parse("a\nb").unwrap()));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_pause_ends_although_other_files_change_all_the_time() {
        let (events, received) = mpsc::channel();
        thread::spawn(move || while events.send(()).is_ok() {});
        assert!(pause(&received));
    }
}
