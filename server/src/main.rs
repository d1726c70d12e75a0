//! Rate limiting as a service, for gateways that ask before each request. Apart from `fleetlimit::internal`, it uses
//! only the public API of the library.
//!
//! `cli` reads the command line, and `config` the files: the `settings` and the limits of a `domain`. It
//! reports all `errors` in them at once, and `secret` has the types that hide tokens and passwords. `range` is
//! a range of IP addresses. `live` holds the configuration in use with its limiters (`remembered` those
//! of policies that are gone), and `reload` replaces it
//! as a whole. `xds` receives domains from the `control_plane`.
//!
//! `grpc`, `http` and `admin` are the three ports. `store` opens the store of the settings. `checker` decides a
//! key. `lists` (the allow list and the deny list) come before that. `denied` counts the keys that are denied
//! most, and `details` the values of descriptors that metrics tell apart. `counts` counts decisions, `near_limit` those
//! shortly before a limit, `durations` how long checks take, and `history` keeps both for 15 minutes. `degradation` is the
//! time for which the store has not decided.
//!
//! `server` starts and stops the ports, `serve` accepts their connections (of a `protocol`, with `tls`, within
//! the limit of `open_files`), and `connection` serves one: `requests` counts its requests, `header_timeout`
//! ends it if headers take too long, `per_address` limits the connections of a client, and `held_bytes` what
//! one has in memory. `bearer` is the token of a request. `telemetry` sets up logs and metrics,
//! `otlp` sends traces and metrics to a collector, and `warnings` says when to log again what any
//! client can cause. `simulate` is the command that replays access logs, with a crate of its own.

mod admin;
mod bearer;
mod checker;
mod cli;
mod config;
mod connection;
mod control_plane;
mod counts;
mod degradation;
mod denied;
mod details;
mod domain;
mod durations;
mod errors;
mod grpc;
mod header_timeout;
mod held_bytes;
mod history;
mod holds;
mod http;
mod lists;
mod live;
mod near_limit;
mod open_files;
mod otlp;
mod per_address;
mod protocol;
mod range;
mod reload;
mod remembered;
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
mod xds;

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
    let Cli { command, serve } = Cli::parse_from(cli::arguments());
    match command {
        None => run(serve),
        Some(Command::Check(check)) => exit(report(*check)),
        Some(Command::Simulate(simulate)) => exit(simulate.run()),
    }
}

fn report(check: CheckArgs) -> Result<(), Errors> {
    let checked = server::check(&check.source())?;
    for (variable, reason) in checked.without_effect {
        eprintln!("warning: {variable} has no effect: {reason}");
    }
    let policies = checked.policies;
    let noun = if policies == 1 { "policy" } else { "policies" };
    match checked.control_plane {
        Some(server) => println!("{policies} {noun}, no errors; {server} sends further limits"),
        None => println!("{policies} {noun}, no errors"),
    }
    Ok(())
}

fn run(serve: Serve) -> ExitCode {
    let (level, format) = match serve.logs() {
        Ok(logs) => logs,
        Err(error) => return exit(Err(error)),
    };
    telemetry::init_logs(level, format);
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
