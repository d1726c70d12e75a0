//! The options of the command line.

use std::fmt::Display;
use std::time::Duration;

use crate::subjects::BoxError;

/// The command line options.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) rounds: Option<usize>,
    pub(crate) slice: Option<Duration>,
    pub(crate) only: String,
    pub(crate) subject: String,
    pub(crate) check: bool,
}

impl Settings {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, BoxError> {
        let mut settings = Self::default();
        while let Some(option) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("missing value for {option}"));
            let invalid = |error: &dyn Display| format!("invalid value for {option}: {error}");
            match option.as_str() {
                "--rounds" => settings.rounds = Some(value()?.parse().map_err(|e| invalid(&e))?),
                "--slice" => {
                    let seconds = value()?.parse().map_err(|e| invalid(&e))?;
                    let slice = Duration::try_from_secs_f64(seconds);
                    settings.slice = Some(slice.map_err(|e| invalid(&e))?);
                }
                "--only" => settings.only = value()?,
                "--subject" => settings.subject = value()?,
                "--check" => settings.check = true,
                _ => return Err(format!("unknown option: {option}").into()),
            }
        }
        if settings.rounds == Some(0) || settings.slice.is_some_and(|slice| slice.is_zero()) {
            return Err("--rounds and --slice must be greater than 0".into());
        }
        Ok(settings)
    }
}
