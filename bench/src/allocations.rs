use crate::settings::Settings; use crate::subjects::Fault; use std::process::ExitCode;
pub(crate) fn run() -> Result<ExitCode, Fault> { todo!() }
