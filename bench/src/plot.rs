use crate::settings::Settings; use crate::subjects::Fault; use std::process::ExitCode;
