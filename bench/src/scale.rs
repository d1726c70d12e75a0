use crate::settings::Settings; use crate::subjects::Fault; use std::process::ExitCode;
pub(crate) async fn run(_: Settings) -> Result<ExitCode, Fault> { todo!() }
