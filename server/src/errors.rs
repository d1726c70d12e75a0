//! Everything that is wrong with a configuration.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_saphyr::Location;

use crate::secret::{HIDDEN, excerpt_of_path};

/// The most errors that are kept: more tell nobody more, and a control plane could send very many.
const MOST: usize = 1_000;

/// One error per line: by file or variable, and by place in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    by_file: IndexMap<PathBuf, Vec<(Location, String)>>,
    number: usize,
}

impl Errors {
    /// Adds each line of the message.
    pub(crate) fn add(&mut self, file: &Path, at: Location, message: impl Display) {
        self.number += 1;
        if self.number > MOST {
            return;
        }
        let message = message.to_string();
        let lines = message.lines().map(|line| (at, line.to_owned()));
        self.by_file.entry(file.to_owned()).or_default().extend(lines);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// Hides these texts in all messages.
    pub(crate) fn hide(&mut self, secrets: &[String]) {
        for (_, message) in self.by_file.values_mut().flatten() {
            for secret in secrets {
                *message = message.replace(secret, HIDDEN);
            }
        }
    }
}

impl Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for (file, errors) in &self.by_file {
            let file = excerpt_of_path(file);
            let mut errors: Vec<_> = errors.iter().collect();
            errors.sort_by_key(|(at, _)| (at.line(), at.column()));
            lines.extend(errors.into_iter().map(|(at, message)| match *at {
                Location::UNKNOWN => format!("{file}: {message}"),
                at => format!("{file}:{}:{}: {message}", at.line(), at.column()),
            }));
        }
        if let Some(more @ 1..) = self.number.checked_sub(MOST) {
            lines.push(format!("and {more} more"));
        }
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Errors {}
