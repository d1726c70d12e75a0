//! The command line and the environment.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::{env, io, iter};

use clap::{Args, CommandFactory, Parser, Subcommand};
use serde_saphyr::Location;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Origin, Overrides, RatelimitEnv, Source};
use crate::errors::Errors;
use crate::secret::{excerpt, excerpt_of_path};
use crate::simulate::Simulate;
use crate::telemetry::LogFormat;

const CONFIG: &str = "FLEETLIMIT_CONFIG";
const SETTINGS: &str = "FLEETLIMIT_SETTINGS";
/// The start of the names of all variables that are only for this program.
const PREFIX: &str = "FLEETLIMIT_";
/// The most letters that differ in a misspelled name.
const MOST_TYPOS: usize = 3;

/// Rate limiting as a service, for Envoy, nginx, Caddy, Traefik and other gateways
///
/// Without a command, starts the server.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Check(Box<CheckArgs>),
    Simulate(Simulate),
}

/// The other options override the settings.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// The settings file (YAML)
    #[arg(long, env = CONFIG, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Start with a built-in sample of settings, as on a terminal without any
    #[arg(long, conflicts_with_all = ["config", "settings"])]
    sample: bool,
    /// Format of the log [default: text]
    #[arg(long, env = "FLEETLIMIT_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    #[command(flatten)]
    others: OtherOptions,
}

/// The arguments of the process. A container may start `fleetlimit-server /bin/ratelimit`, because its command follows the
/// entry point of the image.
pub(crate) fn arguments() -> impl Iterator<Item = OsString> {
    let skipped =
        usize::from(env::args_os().nth(1).is_some_and(|it| RatelimitEnv::is_program(&it)));
    env::args_os().skip(skipped)
}

/// The environment of envoyproxy/ratelimit, if this process was started in its place.
fn ratelimit_env() -> Option<RatelimitEnv> {
    RatelimitEnv::of_process(arguments().next().as_deref())
}

impl Serve {
    /// Returns the level and the format of the log. `RUST_LOG` takes precedence over `LOG_LEVEL`.
    ///
    /// # Errors
    ///
    /// If the level is unknown.
    pub(crate) fn logs(&self) -> Result<(Option<LevelFilter>, LogFormat), String> {
        let variables = ratelimit_env().unwrap_or_default();
        let level = variables.get("LOG_LEVEL").map(level_of).transpose();
        let level = level.map_err(|error| format!("LOG_LEVEL: {error}"))?;
        let is_json = variables.get("LOG_FORMAT").is_some_and(|it| it.eq_ignore_ascii_case("json"));
        let format = if is_json { LogFormat::Json } else { LogFormat::Text };
        Ok((level, self.log_format.unwrap_or(format)))
    }

    pub(crate) fn source(self) -> Source {
        let is_given = self.config.is_some() || self.others.settings.is_some();
        let mut source = self.others.source(self.config);
        let is_given = is_given || source.ratelimit.is_some() && !self.sample;
        // A service manager that has no settings has probably lost them.
        if !is_given && (self.sample || is_on_terminal()) {
            source.origin = Origin::Sample;
        }
        source
    }
}

/// The level of a name of envoyproxy/ratelimit.
fn level_of(name: &str) -> Result<LevelFilter, String> {
    Ok(match name.to_lowercase().as_str() {
        "panic" | "fatal" | "error" => LevelFilter::ERROR,
        "warn" | "warning" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => {
            let name = excerpt(name);
            return Err(format!("`{name}`: must be error, warn, info, debug or trace"));
        }
    })
}

/// Returns true if someone is there to read the sample's requests. A container or a boot script may have a
/// terminal for one of both.
fn is_on_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Validate the configuration, and print all errors
///
/// Reads the settings, with the options and environment variables that override them, and all files that
/// they name. Makes no connections.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The settings file (YAML)
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The settings file, as the option of the server
    #[arg(long, env = CONFIG, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    others: OtherOptions,
}

impl CheckArgs {
    pub(crate) fn source(self) -> Source {
        let (file, config) = match (self.file, self.config) {
            (Some(file), Some(config)) => {
                // An argument overrides the environment.
                let is_from_env = env::var_os(CONFIG).is_some_and(|value| value == *config);
                (Some(file), Some(config).filter(|_| !is_from_env))
            }
            (file, config) => (file.or(config), None),
        };
        let mut source = self.others.source(file);
        if let (Origin::File(file), Some(other)) = (&source.origin, config) {
            source.origin = Origin::Unclear {
                name: file.clone(),
                error: format!(
                    "there is also the settings file {}: give only one",
                    excerpt_of_path(&other)
                ),
            };
        }
        source
    }
}

/// Returns an error for each variable that looks like one of this program, but is none.
fn unknown_variables() -> Errors {
    let mut errors = Errors::default();
    let command = Cli::command();
    let commands = iter::once(&command).chain(command.get_subcommands());
    let known =
        commands.flat_map(|command| command.get_arguments()).filter_map(|arg| arg.get_env());
    let known: Vec<_> = known.filter_map(|name| name.to_str()).collect();
    for (name, value) in env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if !name.starts_with(PREFIX) || known.contains(&&*name) || is_of_service(&name, &value) {
            continue;
        }
        let distances =
            known.iter().map(|known| (strsim::damerau_levenshtein(known, &name), known));
        let advice = match distances.min().filter(|(distance, _)| *distance <= MOST_TYPOS) {
            Some((_, nearest)) => format!("did you mean {nearest}?"),
            None => "fleetlimit-server --help lists them".to_owned(),
        };
        let message = format!("there is no such variable: {advice}");
        errors.add(Path::new(&*excerpt(&name)), Location::UNKNOWN, message);
    }
    errors
}

/// Returns true for a variable that Kubernetes sets in all pods of a namespace: a Service `fleetlimit-server`
/// becomes `FLEETLIMIT_SERVER_SERVICE_HOST=10.0.0.1`, `FLEETLIMIT_SERVER_PORT=tcp://10.0.0.1:8080`,
/// `FLEETLIMIT_SERVER_PORT_8080_TCP_ADDR=10.0.0.1` and so on.
fn is_of_service(name: &str, value: &str) -> bool {
    let mut after_port = name.split("_PORT_").skip(1);
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && value.contains("://")
        || after_port.any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The options that do not name a settings file.
#[derive(Args, Debug)]
struct OtherOptions {
    /// Settings as YAML text, instead of a settings file
    #[arg(long, env = SETTINGS, value_name = "YAML", hide_env_values = true)]
    settings: Option<String>,
    #[command(flatten)]
    overrides: Overrides,
}

impl OtherOptions {
    fn source(mut self, config: Option<PathBuf>) -> Source {
        let ratelimit = ratelimit_env();
        if let Some(variables) = &ratelimit {
            self.overrides.leave_redis_url(variables.get("REDIS_URL"));
        }
        let origin = match (config, self.settings) {
            (Some(file), Some(_)) => Origin::Unclear {
                name: SETTINGS.into(),
                error: format!(
                    "there is also the settings file {}: give either the file (--config or {CONFIG}) or the \
                     text (--settings or {SETTINGS})",
                    excerpt_of_path(&file)
                ),
            },
            (Some(file), None) => Origin::File(file),
            (None, Some(text)) => Origin::Variable(text),
            (None, None) if ratelimit.is_some() => Origin::Ratelimit,
            (None, None) => Origin::Unclear {
                name: CONFIG.into(),
                error: format!(
                    "there are no settings: give a file (--config or {CONFIG}) or text (--settings or {SETTINGS}), \
                     or start the built-in sample (--sample)"
                ),
            },
        };
        let mut environment = unknown_variables();
        let level = ratelimit.as_ref().and_then(|variables| variables.get("LOG_LEVEL"));
        if let Some(Err(error)) = level.map(level_of) {
            environment.add(Path::new("LOG_LEVEL"), Location::UNKNOWN, error);
        }
        Source { origin, overrides: self.overrides, ratelimit, environment }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PAGES: [&str; 6] = [
        include_str!("../../docs/server/settings.md"),
        include_str!("../../docs/server.md"),
        include_str!("../../docs/server/clients.md"),
        include_str!("../../docs/server/http-api.md"),
        include_str!("../../docs/server/operating.md"),
        include_str!("../../docs/server/simulate.md"),
    ];

    #[test]
    fn the_pages_name_no_variable_that_does_not_exist() {
        let command = Cli::command();
        let commands = iter::once(&command).chain(command.get_subcommands());
        let variables =
            commands.flat_map(|command| command.get_arguments()).filter_map(|arg| arg.get_env());
        let mut variables: HashSet<_> = variables.map(|name| name.to_str().unwrap()).collect();
        for name in [CONFIG, SETTINGS] {
            assert!(variables.contains(name) && PAGES[0].contains(&format!("`{name}`")), "{name}");
        }
        // An example of those that Kubernetes sets, and the prefix of all.
        variables.extend(["FLEETLIMIT_SERVER_PORT", PREFIX]);
        for page in PAGES {
            let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| word.starts_with(PREFIX)) {
                assert!(variables.contains(word), "{word}");
            }
        }
    }
}
