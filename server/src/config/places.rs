//! The places that settings come from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_saphyr::Location;

/// The places of settings, by names such as `store.redis`.
#[derive(Debug)]
pub(super) struct Places {
    file: PathBuf,
    pub(super) fields: HashMap<String, Location>,
    variables: HashMap<&'static str, &'static str>,
}

impl Places {
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), fields: HashMap::new(), variables: HashMap::new() }
    }

    /// An option overrides this setting. Errors in it name the environment variable of the option.
    pub(super) fn override_by(&mut self, setting: &'static str, variable: &'static str) {
        self.variables.insert(setting, variable);
    }

    /// The file or variable, and the place in it of the setting or, if it is left out, of the section.
    pub(super) fn find(&self, setting: &str) -> (&Path, Location) {
        if let Some(variable) = self.variables.get(setting) {
            return (Path::new(variable), Location::UNKNOWN);
        }
        let section = setting.split('.').next().unwrap_or_default();
        let at = self.fields.get(setting).or_else(|| self.fields.get(section));
        (&self.file, at.copied().unwrap_or(Location::UNKNOWN))
    }
}
