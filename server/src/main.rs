//! Rate limiting as a service, for gateways that ask before each request.

mod admin;
mod checker;
mod cli;
mod config;
mod domain;
mod grpc;
mod http;
mod lists;
mod live;
mod range;
mod reload;
mod serve;
mod server;
mod settings;
mod store;
mod telemetry;
mod tls;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, Serve};
use crate::config::Source;

fn main() -> ExitCode {
    let Cli { command, serve } = Cli::parse();
    match command {
        None => run(serve),
        Some(Command::Check { file }) => {
            let source = Source { file: Some(file), ..Source::default() };
            match source.load() {
                Ok(config) => {
                    println!("{} policies, no errors", config.policies.iter().count());
                    ExitCode::SUCCESS
                }
                Err(errors) => {
                    eprintln!("{errors}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn run(Serve { config, overrides }: Serve) -> ExitCode {
    telemetry::init_logs();
    let source = Source { file: config, overrides };
    match server::run(source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
