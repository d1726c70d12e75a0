//! Reloads a file when it changes.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};

use super::Limiters;
use crate::{ConfigError, PolicySet};

/// A file is read when nothing has changed for this time. Programs write files in several steps.
const QUIET: Duration = Duration::from_millis(200);
/// But not later than this, if other files in the directory change all the time.
const LATEST: Duration = Duration::from_secs(1);

/// Watches a file until it is dropped: see [`Limiters::watch`].
#[must_use = "the file is watched until this is dropped"]
#[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
pub struct FileWatch {
    path: PathBuf,
    // Its end closes the channel, which ends the thread.
    _watcher: RecommendedWatcher,
}

impl Limiters {
    /// Reads a file again whenever it changes, and [reloads](Self::reload) what `parse` makes of it. It
    /// does not read the file at first.
    ///
    /// The outcome is logged, under the target `tollgate`: an `info` event after a reload, an
    /// `error` with the errors of a file that is invalid or cannot be read. The old limits stay then.
    ///
    /// The directory of the file is watched, so the file may be replaced, also through a symbolic link
    /// as in a Kubernetes ConfigMap. Changes on network file systems may go unnoticed.
    ///
    /// # Errors
    ///
    /// If the directory cannot be watched.
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
        let file = File { path: path.clone(), limiters: self.clone(), last: read(&path) };
        let thread = thread::Builder::new().name("tollgate-watch".into());
        thread.spawn(move || file.follow(&received, &parse)).map_err(|spawn| error(&spawn))?;
        Ok(FileWatch { path, _watcher: watcher })
    }
}

struct File {
    path: PathBuf,
    limiters: Limiters,
    /// The text as it was, because most events are about other files or nothing new.
    last: Result<String, String>,
}

impl File {
    fn follow<E: Display>(
        mut self,
        events: &Receiver<()>,
        parse: &dyn Fn(&str) -> Result<PolicySet, E>,
    ) {
        while events.recv().is_ok() {
            let latest = Instant::now() + LATEST;
            while Instant::now() < latest {
                match events.recv_timeout(QUIET) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            let text = read(&self.path);
            if text != self.last {
                self.last = text;
                self.reload(parse);
            }
        }
    }

    fn reload<E: Display>(&self, parse: &dyn Fn(&str) -> Result<PolicySet, E>) {
        let reloaded = match &self.last {
            Err(error) => Err(error.clone()),
            Ok(text) => match parse(text) {
                Err(error) => Err(error.to_string()),
                Ok(set) => self.limiters.reload(set).map_err(|error| error.to_string()),
            },
        };
        let path = self.path.display();
        match reloaded {
            Ok(()) => tracing::info!(target: "tollgate", %path, "rate limits reloaded"),
            Err(errors) => {
                let message = "rate limits not reloaded, the old ones stay";
                tracing::error!(target: "tollgate", %path, errors, "{message}");
            }
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
