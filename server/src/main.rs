//! Rate limiting as a service, for gateways that ask before each request.

mod admin;
mod checker;
mod cli;
mod config;
mod connection;
mod denied;
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
mod simulate;
mod store;
mod telemetry;
mod tls;

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, Serve};
use crate::config::Source;

/// Threads often free what others have allocated, and the system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Cli { command, serve } = Cli::parse();
    match command {
        None => run(serve),
        Some(Command::Check { file }) => check(file),
        Some(Command::Simulate(simulate)) => exit(simulate.run()),
    }
}

fn check(file: PathBuf) -> ExitCode {
    let source = Source { file: Some(file), ..Source::default() };
    exit(server::check(&source).map(|policies| println!("{policies} policies, no errors")))
}

fn run(Serve { config, overrides }: Serve) -> ExitCode {
    telemetry::init_logs();
    let source = Source { file: config, overrides };
    exit(server::run(source))
}

fn exit(result: Result<(), impl Display>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
