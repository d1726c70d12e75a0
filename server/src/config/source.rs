//! The source of a configuration.

use std::path::{Path, PathBuf};

use super::overrides::Overrides;
use super::ratelimit_env::RatelimitEnv;
use crate::errors::Errors;
use crate::settings::Settings;

/// Variables that have no effect, with the reasons.
pub(crate) type WithoutEffect = Vec<(&'static str, &'static str)>;

/// The settings as the process was started with them.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) origin: Origin,
    pub(crate) overrides: Overrides,
    /// The environment of envoyproxy/ratelimit, if the process was started in its place.
    pub(crate) ratelimit: Option<RatelimitEnv>,
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
    /// Only the environment of envoyproxy/ratelimit.
    Ratelimit,
    /// It is not clear which settings are meant.
    Unclear {
        /// The file or variable that the error names.
        name: PathBuf,
        error: String,
    },
}

impl Source {
    /// The variables of envoyproxy/ratelimit that are set and have no effect on these settings, with the reasons.
    pub(crate) fn without_effect(&self, settings: &Settings) -> WithoutEffect {
        self.ratelimit.iter().flat_map(|variables| variables.without_effect(settings)).collect()
    }
}

impl Origin {
    /// The name in errors. The paths of other files are relative to it.
    pub(super) fn name(&self) -> &Path {
        match self {
            Self::Sample => Path::new("sample.yaml"),
            Self::File(name) | Self::Unclear { name, .. } => name,
            Self::Ratelimit => Path::new("environment"),
            Self::Variable(_) => Path::new("FLEETLIMIT_SETTINGS"),
        }
    }
}
