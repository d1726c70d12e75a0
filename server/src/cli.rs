//! The command line and the environment.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::settings::{FailureMode, Sentinel, Settings};
use crate::simulate::Simulate;

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
    /// Validate a settings file and its domain files, and print every error
    Check {
        /// The settings file (YAML)
        file: PathBuf,
    },
    Simulate(Simulate),
}

/// Options override the settings file.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// The settings file (YAML) [default: a built-in sample]
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Overrides {
    /// Listen address for gRPC
    #[arg(long, env = "TOLLGATE_GRPC", value_name = "ADDRESS")]
    grpc: Option<SocketAddr>,
    /// Listen address for HTTP
    #[arg(long, env = "TOLLGATE_HTTP", value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Listen address for the admin API
    #[arg(long, env = "TOLLGATE_ADMIN", value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Bearer token for the admin API
    #[arg(long, env = "TOLLGATE_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
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
    #[arg(hide_env_values = true, requires = "redis_sentinel_service")]
    redis_sentinel: Vec<String>,
    /// Name of the primary in Sentinel
    #[arg(long, env = "REDIS_SENTINEL_SERVICE", value_name = "NAME")]
    redis_sentinel_service: Option<String>,
    /// Prefix of all Redis keys
    #[arg(long, env = "TOLLGATE_KEY_PREFIX", value_name = "PREFIX")]
    key_prefix: Option<String>,
    /// Connections to each Redis server
    #[arg(long, env = "TOLLGATE_CONNECTIONS", value_name = "NUMBER")]
    connections: Option<NonZeroUsize>,
    /// Number of instances to assume until Redis has been reached
    #[arg(long, env = "TOLLGATE_INSTANCES", value_name = "NUMBER")]
    instances: Option<NonZeroUsize>,
    /// Timeout of a check, such as 50ms
    #[arg(long, env = "TOLLGATE_TIMEOUT", value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// How to decide checks while Redis is unavailable
    #[arg(long, env = "TOLLGATE_FAILURE_MODE", value_name = "MODE")]
    failure_mode: Option<FailureMode>,
    /// How long to keep accepting connections after /readyz starts to fail
    #[arg(long, env = "TOLLGATE_SHUTDOWN_DELAY", value_name = "TIME", value_parser = humantime::parse_duration)]
    shutdown_delay: Option<Duration>,
}

impl Overrides {
    pub(crate) fn apply(&self, settings: &mut Settings) {
        fn set<T: Clone>(setting: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                setting.clone_from(value);
            }
        }
        fn set_some<T: Clone>(setting: &mut Option<T>, value: &Option<T>) {
            if value.is_some() {
                setting.clone_from(value);
            }
        }
        set(&mut settings.listen.grpc, &self.grpc);
        set(&mut settings.listen.http, &self.http);
        set(&mut settings.listen.admin, &self.admin);
        set(&mut settings.checks.timeout, &self.timeout);
        set(&mut settings.checks.failure_mode, &self.failure_mode);
        set(&mut settings.shutdown.delay, &self.shutdown_delay);
        set_some(&mut settings.admin.token, &self.admin_token);
        let store = &mut settings.store;
        set_some(&mut store.key_prefix, &self.key_prefix);
        set_some(&mut store.connections, &self.connections);
        set_some(&mut store.instances, &self.instances);
        let sentinel =
            self.redis_sentinel_service.as_ref().filter(|_| !self.redis_sentinel.is_empty());
        let sentinel = sentinel.map(|service| Sentinel {
            urls: self.redis_sentinel.clone(),
            service: service.clone(),
        });
        // Servers in the environment replace those in the file.
        if self.redis_url.is_some() || !self.redis_cluster.is_empty() || sentinel.is_some() {
            store.redis.clone_from(&self.redis_url);
            store.cluster.clone_from(&self.redis_cluster);
            store.sentinel = sentinel;
        }
    }
}
