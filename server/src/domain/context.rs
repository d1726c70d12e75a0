//! The surroundings of the descriptors of a file while they are checked.

use std::fmt::Display;
use std::path::Path;

use fleetlimit::PolicySet;
use serde_saphyr::Location;

use super::format::DomainFile;
use crate::errors::Errors;

/// The file of the descriptors, and what they may refer to.
pub(super) struct Context<'a> {
    pub(super) file: &'a Path,
    pub(super) domain: &'a DomainFile,
    pub(super) known: Known<'a>,
    pub(super) errors: &'a mut Errors,
}

impl Context<'_> {
    pub(super) fn error(&mut self, at: Location, message: impl Display) {
        self.errors.add(self.file, at, message);
    }
}

/// The names that are known when a file is checked. Something that was wrong, and has been left out, is not missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The policies of the settings, unless one of them has been left out.
    pub(crate) policies: Option<&'a PolicySet>,
    /// True if no field of a descriptor has been left out.
    pub(crate) all_fields: bool,
}
