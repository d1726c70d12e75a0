//! Everything that is wrong with a configuration.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_saphyr::Location;

use crate::secret::{HIDDEN, excerpt_of_path};

/// One error per line: by file or variable, and by place in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors(IndexMap<PathBuf, Vec<(Location, String)>>);

impl Errors {
    /// Adds each line of the message.
    pub(crate) fn add(&mut self, file: &Path, at: Location, message: impl Display) {
        let message = message.to_string();
        let lines = message.lines().map(|line| (at, line.to_owned()));
        self.0.entry(file.to_owned()).or_default().extend(lines);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hides these texts in all messages.
    pub(crate) fn hide(&mut self, secrets: &[String]) {
        for (_, message) in self.0.values_mut().flatten() {
            for secret in secrets {
                *message = message.replace(secret, HIDDEN);
            }
        }
    }
}

impl Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for (file, errors) in &self.0 {
            let file = excerpt_of_path(file);
            let mut errors: Vec<_> = errors.iter().collect();
            errors.sort_by_key(|(at, _)| (at.line(), at.column()));
            lines.extend(errors.into_iter().map(|(at, message)| match *at {
                Location::UNKNOWN => format!("{file}: {message}"),
                at => format!("{file}:{}:{}: {message}", at.line(), at.column()),
            }));
        }
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Errors {}
