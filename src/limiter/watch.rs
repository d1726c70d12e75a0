//! Reloads the policies of a file when it changes.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::Limiters;
use crate::file_watch::{FileWatch, Watched};
use crate::{ConfigError, PolicySet};

impl Limiters {
    /// Reads a file again once a second, and [reloads](Self::reload) what `parse` makes of it when it has changed:
    /// when two reads in a row find the same text, so no half of a file applies while a program writes it. A file that
    /// is different each time it is read is logged as a warning.
    ///
    /// It also reads the file at first, in the background, and reloads it if its policies differ from the current
    /// set, so a change between your own reading and this call applies too.
    ///
    /// The outcome is logged, under the target `fleetlimit`: an `info` event after a reload, an
    /// `error` with the errors of a file that is invalid or cannot be read. The old limits stay then.
    /// The errors are those of [`reload_file`](Self::reload_file).
    ///
    /// The file may be replaced, also by a symbolic link or by one on its path, as in a Kubernetes ConfigMap. But a
    /// file that is itself mounted into a container (a `subPath` in Kubernetes, a file as a bind mount in Docker)
    /// remains the old one when another takes its place: mount its directory. If `parse` panics, that is logged, and
    /// the next change of the file applies.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn watch<E: Display>(
        &self,
        path: impl AsRef<Path>,
        parse: impl Fn(&str) -> Result<PolicySet, E> + Send + 'static,
    ) -> Result<FileWatch, ConfigError> {
        let path = path.as_ref().to_owned();
        let name = path.display().to_string();
        let file = PolicyFile { path, limiters: self.clone(), parse, last: None };
        FileWatch::start(name.clone(), file)
            .map_err(|error| ConfigError::new(format!("cannot watch {name}: {error}")))
    }
}

/// A file with policies.
struct PolicyFile<P> {
    path: PathBuf,
    limiters: Limiters,
    parse: P,
    /// The text that was reloaded or rejected last.
    last: Option<FileText>,
}

/// The text of a file, or the reason why it cannot be read.
type FileText = Result<String, String>;

impl<E: Display, P: Fn(&str) -> Result<PolicySet, E> + Send + 'static> Watched for PolicyFile<P> {
    type Content = FileText;

    fn changed(&mut self) -> Option<FileText> {
        Some(read(&self.path)).filter(|text| self.last.as_ref() != Some(text))
    }

    fn apply(&mut self, settled: FileText) {
        let limiters = self.limiters.clone();
        let _reading = limiters.start_reading();
        // `reload_file` may have read a later text since.
        if read(&self.path) == settled {
            self.reload(settled);
        }
    }
}

impl<E: Display, P: Fn(&str) -> Result<PolicySet, E>> PolicyFile<P> {
    fn reload(&mut self, text: FileText) {
        let Self { path, limiters, parse, last } = self;
        let is_first = last.is_none();
        // Before it is parsed, so that a text that makes that panic does so once.
        let set = match last.insert(text) {
            Ok(text) => parse(text).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        let reloaded = match set {
            Ok(set) if is_first && limiters.is_set(&set) => return,
            Ok(set) => limiters.reload(set).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let path = path.display();
        match reloaded {
            Ok(()) => {
                let message = "rate limits reloaded";
                tracing::info!(target: "fleetlimit", event = "policies_reloaded", %path, "{message}");
            }
            Err(errors) => {
                let message = "rate limits not reloaded, the old ones stay";
                tracing::error!(
                    target: "fleetlimit", event = "policies_rejected", %path, errors, "{message}"
                );
            }
        }
    }
}

fn read(path: &Path) -> FileText {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_watch::Settling;
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
        let mut file =
            PolicyFile { path: path.clone(), limiters: limiters.clone(), parse, last: None };
        let mut settling = Settling::default();
        let mut read = || {
            if let Some(text) = settling.read(file.changed()) {
                file.apply(text);
            }
        };
        for text in ["", "a\n", "a\nb\n"] {
            std::fs::write(&path, text).unwrap();
            read();
            assert!(limiters.is_set(&parse("old").unwrap()), "{text:?}");
        }
        read();
        assert!(limiters.is_set(&parse("a\nb").unwrap()));
        std::fs::remove_file(&path).unwrap();
    }
}
