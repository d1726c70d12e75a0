//! Where a configuration comes from.

use std::path::{Path, PathBuf};

use super::reader::Reader;
use super::{Config, Errors, Read, Service};
use crate::cli::Overrides;

#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) origin: Origin,
    pub(crate) overrides: Overrides,
}

/// Where the settings are.
#[derive(Debug, Default)]
pub(crate) enum Origin {
    #[default]
    Sample,
    File(PathBuf),
    /// The value of the environment variable `FLEETLIMIT_SETTINGS`, in the format of the file.
    Variable(String),
    /// It is not clear which settings are meant.
    Unclear {
        /// As in the error.
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

impl Source {
    /// Reads the settings, and all files that they name.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with any of them, as far as that can be found without connecting.
    pub(crate) fn load(&self) -> (Read, Result<Service, Errors>) {
        let mut reader = Reader::new(self.origin.name());
        reader.variables();
        let service = reader.settings(self).and_then(|mut settings| {
            reader.check(&settings);
            // All of them, so that the errors of one do not hide those of another.
            let store = reader.store(&mut settings.store);
            let tls = reader.tls(settings.tls.as_ref());
            let config = reader.limits(settings);
            Some(Service { config: config?, store: store?, tls: tls? })
        });
        reader.finish(service)
    }

    /// Reads only the limits: what else the settings say about the service may be incomplete, such as a
    /// token that is in an environment variable.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the limits, or cannot be read.
    pub(crate) fn load_limits(&self) -> Result<Config, Errors> {
        let mut reader = Reader::new(self.origin.name());
        let config = reader.settings(self).and_then(|settings| reader.limits(settings));
        reader.finish(config).1
    }
}
