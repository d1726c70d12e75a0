//! The source of a configuration.

use std::path::{Path, PathBuf};

use super::overrides::Overrides;
use crate::errors::Errors;

/// The settings as the process was started with them.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) origin: Origin,
    pub(crate) overrides: Overrides,
    /// The environment variables that are wrong, apart from their values.
    pub(crate) environment: Errors,
}

/// The place of the settings.
#[derive(Debug, Default)]
pub(crate) enum Origin {
    #[default]
    Sample,
    File(PathBuf),
    /// The value of the environment variable `FLEETLIMIT_SETTINGS`, in the format of the file.
    Variable(String),
    /// It is not clear which settings are meant.
    Unclear {
        /// The file or variable that the error names.
        name: PathBuf,
        error: String,
    },
}

impl Origin {
    /// The name in errors. The paths of other files are relative to it.
    pub(super) fn name(&self) -> &Path {
        match self {
            Self::Sample => Path::new("sample.yaml"),
            Self::File(name) | Self::Unclear { name, .. } => name,
            Self::Variable(_) => Path::new("FLEETLIMIT_SETTINGS"),
        }
    }
}
