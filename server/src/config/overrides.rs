//! The options and environment variables that override settings.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde_saphyr::Location;

use super::places::Places;
use crate::errors::Errors;
use crate::secret::{RedisUrl, Secret, excerpt};
use crate::settings::{FailureMode, Sentinel, Settings, StoreSettings};

/// The settings that options and environment variables override. All of them are text here, so that the errors of
/// one do not hide those of the others and of the files.
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
    /// Bearer token for /v1/check and /v1/hold
    #[arg(long, env = "FLEETLIMIT_HTTP_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    http_token: Option<String>,
    /// Secret that signs the tokens of holds
    #[arg(long, env = "FLEETLIMIT_HOLDS_SECRET", value_name = "SECRET", hide_env_values = true)]
    holds_secret: Option<String>,
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
    /// Failure mode for checks while Redis is unavailable: local, open or closed
    #[arg(long, env = "FLEETLIMIT_FAILURE_MODE", value_name = "MODE")]
    failure_mode: Option<String>,
    /// Time to keep accepting connections after /readyz starts to fail
    #[arg(long, env = "FLEETLIMIT_SHUTDOWN_DELAY", value_name = "TIME")]
    shutdown_delay: Option<String>,
}

impl Overrides {
    /// Leaves `REDIS_URL` of the environment to [`RatelimitEnv`], which reads it in another way.
    pub(crate) fn leave_redis_url(&mut self, of_environment: Option<&str>) {
        self.redis_url.take_if(|url| of_environment == Some(url));
    }

    pub(super) fn has_admin_token(&self) -> bool {
        self.admin_token.is_some()
    }

    pub(super) fn apply(&self, settings: &mut Settings, set: &mut SettingsWriter<'_>) {
        let Settings { listen, checks, shutdown, admin, holds, http, store, .. } = settings;
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
        let token = self.http_token.clone().map(|token| Some(Secret::from(token)));
        set.value(&mut http.token, token, "http.token", "FLEETLIMIT_HTTP_TOKEN");
        let secret = self.holds_secret.clone().map(|secret| Some(Secret::from(secret)));
        set.value(&mut holds.secret, secret, "holds.secret", "FLEETLIMIT_HOLDS_SECRET");
        let prefix = self.key_prefix.clone().map(Some);
        set.value(&mut store.key_prefix, prefix, "store.key_prefix", "FLEETLIMIT_KEY_PREFIX");
        self.apply_servers(store, set);
    }

    /// Servers in the environment replace those in the settings.
    fn apply_servers(&self, store: &mut StoreSettings, set: &mut SettingsWriter<'_>) {
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
pub(super) struct SettingsWriter<'a> {
    pub(super) places: &'a mut Places,
    pub(super) errors: &'a mut Errors,
    /// The sections in which something has been left out, because it is wrong.
    pub(super) incomplete: &'a mut HashSet<String>,
}

impl SettingsWriter<'_> {
    pub(super) fn value<T>(
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

    pub(super) fn urls(
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

    pub(super) fn error(&mut self, variable: &str, error: impl Display) {
        self.errors.add(Path::new(variable), Location::UNKNOWN, error);
    }
}
