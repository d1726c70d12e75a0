use std::fmt::Display;
use std::time::Duration;

use crate::subjects::Fault;

/// What the command line says.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) rounds: Option<usize>,
    pub(crate) slice: Option<Duration>,
    pub(crate) only: String,
    pub(crate) subject: String,
    pub(crate) check: bool,
}

impl Settings {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, Fault> {
        let mut settings = Self::default();
        while let Some(option) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{option} needs a value"));
            let fault = |error: &dyn Display| format!("{option}: {error}");
            match option.as_str() {
                "--rounds" => settings.rounds = Some(value()?.parse().map_err(|e| fault(&e))?),
                "--slice" => {
                    let seconds = value()?.parse().map_err(|e| fault(&e))?;
                    let slice = Duration::try_from_secs_f64(seconds);
                    settings.slice = Some(slice.map_err(|e| fault(&e))?);
                }
                "--only" => settings.only = value()?,
                "--subject" => settings.subject = value()?,
                "--check" => settings.check = true,
                _ => return Err(format!("there is no option {option}").into()),
            }
        }
        if settings.rounds == Some(0) || settings.slice.is_some_and(|slice| slice.is_zero()) {
            return Err("0 rounds or seconds measure nothing".into());
        }
        Ok(settings)
    }
}
