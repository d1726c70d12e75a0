//! Rate limiting as a service, for gateways that ask before each request.

mod admin;
mod checker;
mod cli;
mod config;
mod connection;
mod denied;
mod details;
mod domain;
mod errors;
mod grpc;
mod header_timeout;
mod held_bytes;
mod http;
mod lists;
mod live;
mod open_files;
mod per_address;
mod protocol;
mod range;
mod reload;
mod requests;
mod secret;
mod serve;
mod server;
mod settings;
mod simulate;
mod store;
mod telemetry;
mod tls;
mod warnings;

use std::fmt::Display;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{CheckArgs, Cli, Command, Serve};
use crate::errors::Errors;

/// Threads often free what others have allocated, and the system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Freed memory would remain resident, and five bytes of a client could take a page of 2 MiB.
    // An old kernel does not have the setting.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let Cli { command, serve } = Cli::parse();
    match command {
        None => run(serve),
        Some(Command::Check(check)) => exit(report(*check)),
        Some(Command::Simulate(simulate)) => exit(simulate.run()),
    }
}

fn report(check: CheckArgs) -> Result<(), Errors> {
    let policies = server::check(&check.source())?;
    let noun = if policies == 1 { "policy" } else { "policies" };
    println!("{policies} {noun}, no errors");
    Ok(())
}

fn run(serve: Serve) -> ExitCode {
    telemetry::init_logs();
    exit(server::run(serve.source()))
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
