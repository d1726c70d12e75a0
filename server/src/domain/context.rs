//! The surroundings of the descriptors of a file while they are checked.

use std::fmt::Display;
use std::path::Path;

use fleetlimit::PolicySet;
use serde_saphyr::Location;

use super::format::DomainFile;
use super::policy_name::DescriptorPath;
use crate::errors::Errors;
use crate::secret::start;
use crate::settings::Envoy;

/// The most characters of a key or value in a message.
const MOST_CHARS: usize = 40;

/// The file of the descriptors, and what they may refer to.
pub(super) struct Context<'a> {
    pub(super) file: &'a Path,
    pub(super) domain: &'a DomainFile,
    pub(super) known: Known<'a>,
    /// The options of all domains.
    pub(super) options: &'a Envoy,
    pub(super) errors: &'a mut Errors,
    /// The path to the descriptor that is checked.
    pub(super) path: Vec<(&'a str, Option<&'a str>)>,
}

impl Context<'_> {
    /// Adds an error. What has no lines, because it is not from a file, is found by the path to the descriptor.
    pub(super) fn error(&mut self, at: Location, message: impl Display) {
        if at == Location::UNKNOWN && !self.path.is_empty() {
            let message = format!("descriptor {}: {message}", described(&self.path));
            self.errors.add(self.file, at, message);
        } else {
            self.errors.add(self.file, at, message);
        }
    }
}

/// A path as messages show it, such as `user=anna/plan`.
fn described(path: &DescriptorPath<'_>) -> String {
    let excerpt = |text: &str| start(text, None, MOST_CHARS).escape_debug().to_string();
    let level = |(key, value): &(&str, Option<&str>)| match value {
        Some(value) => format!("{}={}", excerpt(key), excerpt(value)),
        None => excerpt(key),
    };
    path.iter().map(level).collect::<Vec<_>>().join("/")
}

/// The names that are known when a file is checked. Something that was wrong, and has been left out, is not missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The policies of the settings, unless one of them has been left out.
    pub(crate) policies: Option<&'a PolicySet>,
    /// True if no field of a descriptor has been left out.
    pub(crate) all_fields: bool,
}
