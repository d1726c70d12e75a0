//! The command line and the environment.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{env, io, iter};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde_saphyr::Location;

use crate::config::{Errors, Origin, Places, Source};
use crate::secret::{RedisUrl, Secret, excerpt, excerpt_of_path};
use crate::settings::{FailureMode, Sentinel, Settings, StoreSettings};
use crate::simulate::Simulate;

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
    Check(Box<Check>),
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
    #[command(flatten)]
    others: OtherOptions,
}

impl Serve {
    pub(crate) fn source(self) -> Source {
        let is_given = self.config.is_some() || self.others.settings.is_some();
        let mut source = self.others.source(self.config);
        // A service manager that has no settings has probably lost them.
        if !is_given && (self.sample || is_on_terminal()) {
            source.origin = Origin::Sample;
        }
        source
    }
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
pub(crate) struct Check {
    /// The settings file (YAML)
    #[arg(value_name = "FILE", required_unless_present_any = ["config", "settings"])]
    file: Option<PathBuf>,
    /// The settings file, as the option of the server
    #[arg(long, env = CONFIG, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    others: OtherOptions,
}

impl Check {
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

/// Adds an error for each variable that looks like one of this program, but is none.
pub(crate) fn check_variables(errors: &mut Errors) {
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

/// What is not in a settings file.
#[derive(Args, Debug)]
struct OtherOptions {
    /// Settings as YAML text, instead of a settings file
    #[arg(long, env = SETTINGS, value_name = "YAML", hide_env_values = true)]
    settings: Option<String>,
    #[command(flatten)]
    overrides: Overrides,
}

impl OtherOptions {
    fn source(self, config: Option<PathBuf>) -> Source {
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
            (None, None) => Origin::Unclear {
                name: CONFIG.into(),
                error: format!(
                    "there are no settings: give a file (--config or {CONFIG}) or text (--settings or {SETTINGS}), \
                     or start the built-in sample (--sample)"
                ),
            },
        };
        Source { origin, overrides: self.overrides }
    }
}

/// All of them are text here, so that the errors of one do not hide those of the others and of the files.
#[derive(Args, Debug, Default)]
pub(crate) struct Overrides {
    /// Listen address for gRPC
    #[arg(long, env = "FLEETLIMIT_GRPC", value_name = "ADDRESS")]
    grpc: Option<String>,
    /// Listen address for HTTP
    #[arg(long, env = "FLEETLIMIT_HTTP", value_name = "ADDRESS")]
    http: Option<String>,
    /// Listen address for the admin API
    #[arg(long, env = "FLEETLIMIT_ADMIN", value_name = "ADDRESS")]
    admin: Option<String>,
    /// Bearer token for the admin API
    #[arg(long, env = "FLEETLIMIT_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
    /// Redis URL
    #[arg(long, env = "REDIS_URL", value_name = "URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// Redis Cluster node URLs, separated by commas
    #[arg(long, env = "REDIS_CLUSTER", value_name = "URLS", value_delimiter = ',')]
    #[arg(hide_env_values = true)]
    redis_cluster: Vec<String>,
    /// Redis Sentinel URLs, separated by commas
    #[arg(long, env = "REDIS_SENTINEL", value_name = "URLS", value_delimiter = ',')]
    #[arg(hide_env_values = true)]
    redis_sentinel: Vec<String>,
    /// Name of the primary in Sentinel [default: that of the settings]
    #[arg(long, env = "REDIS_SENTINEL_SERVICE", value_name = "NAME")]
    redis_sentinel_service: Option<String>,
    /// Prefix of all Redis keys
    #[arg(long, env = "FLEETLIMIT_KEY_PREFIX", value_name = "PREFIX")]
    key_prefix: Option<String>,
    /// Connections to each Redis server
    #[arg(long, env = "FLEETLIMIT_CONNECTIONS", value_name = "NUMBER")]
    connections: Option<String>,
    /// Number of instances to assume until Redis has been reached
    #[arg(long, env = "FLEETLIMIT_INSTANCES", value_name = "NUMBER")]
    instances: Option<String>,
    /// Timeout of a check, such as 50ms
    #[arg(long, env = "FLEETLIMIT_TIMEOUT", value_name = "TIME")]
    timeout: Option<String>,
    /// How to decide checks while Redis is unavailable: local, open or closed
    #[arg(long, env = "FLEETLIMIT_FAILURE_MODE", value_name = "MODE")]
    failure_mode: Option<String>,
    /// How long to keep accepting connections after /readyz starts to fail
    #[arg(long, env = "FLEETLIMIT_SHUTDOWN_DELAY", value_name = "TIME")]
    shutdown_delay: Option<String>,
}

impl Overrides {
    /// Adds the sections in which something has been left out, because it is wrong, to `incomplete`.
    pub(crate) fn apply(
        &self,
        settings: &mut Settings,
        places: &mut Places,
        errors: &mut Errors,
        incomplete: &mut HashSet<String>,
    ) {
        let Settings { listen, checks, shutdown, admin, store, .. } = settings;
        let mut set = Override { places, errors, incomplete };
        for (setting, text, name, variable) in [
            (&mut listen.grpc, &self.grpc, "listen.grpc", "FLEETLIMIT_GRPC"),
            (&mut listen.http, &self.http, "listen.http", "FLEETLIMIT_HTTP"),
            (&mut listen.admin, &self.admin, "listen.admin", "FLEETLIMIT_ADMIN"),
        ] {
            let address = set.parsed(text, variable, FromStr::from_str);
            set.value(setting, address, name, variable);
        }
        for (setting, text, name, variable) in [
            (
                &mut store.connections,
                &self.connections,
                "store.connections",
                "FLEETLIMIT_CONNECTIONS",
            ),
            (&mut store.instances, &self.instances, "store.instances", "FLEETLIMIT_INSTANCES"),
        ] {
            let number = set.parsed(text, variable, FromStr::from_str);
            set.value(setting, number.map(Some), name, variable);
        }
        for (setting, text, name, variable) in [
            (&mut checks.timeout, &self.timeout, "checks.timeout", "FLEETLIMIT_TIMEOUT"),
            (
                &mut shutdown.delay,
                &self.shutdown_delay,
                "shutdown.delay",
                "FLEETLIMIT_SHUTDOWN_DELAY",
            ),
        ] {
            let time = set.parsed(text, variable, humantime::parse_duration);
            set.value(setting, time, name, variable);
        }
        let variable = "FLEETLIMIT_FAILURE_MODE";
        let mode = set.parsed(&self.failure_mode, variable, |text| {
            FailureMode::from_str(text, false).map_err(|_| "must be local, open or closed")
        });
        set.value(&mut checks.failure_mode, mode, "checks.failure_mode", variable);
        let token = self.admin_token.clone().map(|token| Some(Secret::from(token)));
        set.value(&mut admin.token, token, "admin.token", "FLEETLIMIT_ADMIN_TOKEN");
        let prefix = self.key_prefix.clone().map(Some);
        set.value(&mut store.key_prefix, prefix, "store.key_prefix", "FLEETLIMIT_KEY_PREFIX");
        self.apply_servers(store, &mut set);
    }

    /// Servers in the environment replace those in the settings.
    fn apply_servers(&self, store: &mut StoreSettings, set: &mut Override<'_>) {
        let has_sentinels = !self.redis_sentinel.is_empty();
        if self.redis_url.is_some() || !self.redis_cluster.is_empty() || has_sentinels {
            store.redis = set.urls(self.redis_url.as_slice(), "store.redis", "REDIS_URL").pop();
            store.cluster = set.urls(&self.redis_cluster, "store.cluster", "REDIS_CLUSTER");
            let urls = set.urls(&self.redis_sentinel, "store.sentinel", "REDIS_SENTINEL");
            let sentinel = store.sentinel.take().unwrap_or_default();
            store.sentinel = (!urls.is_empty()).then_some(Sentinel { urls, ..sentinel });
        }
        let service = self.redis_sentinel_service.as_ref().filter(|service| !service.is_empty());
        match (&mut store.sentinel, service) {
            (Some(sentinel), Some(service)) => sentinel.service.clone_from(service),
            (Some(sentinel), None) if sentinel.service.is_empty() && has_sentinels => {
                set.error("REDIS_SENTINEL", "REDIS_SENTINEL_SERVICE is missing");
            }
            (None, Some(_)) if !set.incomplete.contains("store") => {
                let message = "there are no sentinels: set REDIS_SENTINEL, or remove this";
                set.error("REDIS_SENTINEL_SERVICE", message);
            }
            _ => {}
        }
    }
}

/// Replaces settings, and notes by which variables.
struct Override<'a> {
    places: &'a mut Places,
    errors: &'a mut Errors,
    incomplete: &'a mut HashSet<String>,
}

impl Override<'_> {
    fn value<T>(
        &mut self,
        setting: &mut T,
        value: Option<T>,
        name: &'static str,
        variable: &'static str,
    ) {
        if let Some(value) = value {
            *setting = value;
            self.places.override_by(name, variable);
        }
    }

    fn parsed<T, E: Display>(
        &mut self,
        text: &Option<String>,
        variable: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = text.as_deref()?;
        let value = parse(text);
        value.map_err(|error| self.error(variable, format!("`{}`: {error}", excerpt(text)))).ok()
    }

    fn urls(
        &mut self,
        urls: &[String],
        name: &'static str,
        variable: &'static str,
    ) -> Vec<RedisUrl> {
        self.places.override_by(name, variable);
        let valid = urls.iter().filter_map(|url| {
            let url = RedisUrl::try_from(url.clone());
            let left_out = |error| {
                self.error(variable, error);
                self.incomplete.insert("store".to_owned());
            };
            url.map_err(left_out).ok()
        });
        valid.collect()
    }

    fn error(&mut self, variable: &str, error: impl Display) {
        self.errors.add(Path::new(variable), Location::UNKNOWN, error);
    }
}
