//! The environment variables of envoyproxy/ratelimit, so that this server can take its place without any change. They
//! apply to a process whose name is `ratelimit`, as in its container, and with `CONFIG_TYPE`.
//!
//! `settings` puts them into the settings, `redis` those of the store, and `duration` reads times.
//! `without_effect` lists the others.
//!
//! Source: `src/settings/settings.go` and the README of envoyproxy/ratelimit.

mod duration;
mod redis;
mod settings;
mod without_effect;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::path::Path;

use self::settings::parse_host;
use self::without_effect::{NEEDED, WITHOUT_EFFECT};
use crate::settings::Settings;

/// The name of envoyproxy/ratelimit's program.
const PROGRAM: &str = "ratelimit";
const CONFIG_TYPE: &str = "CONFIG_TYPE";
const DEBUG_HOST: &str = "DEBUG_HOST";
const TRUE: &[&str] = &["1", "t", "T", "TRUE", "true", "True"];
const FALSE: &[&str] = &["0", "f", "F", "FALSE", "false", "False"];

/// Variables with an effect that no other program is likely to have.
const DISTINCTIVE: [&str; 13] = [
    "CACHE_KEY_PREFIX",
    "CONFIG_GRPC_XDS_NODE_ID",
    "CONFIG_GRPC_XDS_SERVER_URL",
    "FORCE_START_WITHOUT_INITIAL_CONFIG",
    "GRPC_MAX_CONNECTION_AGE",
    "GRPC_SERVER_USE_TLS",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "MERGE_DOMAIN_CONFIG",
    "NEAR_LIMIT_RATIO",
    "REDIS_SOCKET_TYPE",
    "REDIS_TYPE",
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
];

/// The variables that are set.
#[derive(Debug, Default)]
pub(crate) struct RatelimitEnv(BTreeMap<String, String>);

impl RatelimitEnv {
    /// Returns true if this is the path of envoyproxy/ratelimit's program.
    pub(crate) fn is_program(argument: &OsStr) -> bool {
        Path::new(argument).file_name().is_some_and(|name| name == PROGRAM)
    }

    /// Returns the variables of a process that was started as if it were envoyproxy/ratelimit, and otherwise `None`.
    pub(crate) fn of_process(program: Option<&OsStr>) -> Option<Self> {
        let is_named = program.is_some_and(Self::is_program);
        let variables = Self::all();
        (is_named || variables.get(CONFIG_TYPE).is_some()).then_some(variables)
    }

    /// The variables of another process, which have no effect, but were probably meant to have one.
    pub(crate) fn ignored() -> Vec<&'static str> {
        let variables = Self::all();
        DISTINCTIVE.into_iter().filter(|name| variables.get(name).is_some()).collect()
    }

    /// Returns true if a variable has one of these values, in any case.
    fn is_met(&self, variable: &str, values: &[&str]) -> bool {
        let is_one = |value: &str| values.iter().any(|one| one.eq_ignore_ascii_case(value));
        self.get(variable).is_some_and(is_one)
    }

    fn all() -> Self {
        let variables = env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        Self(variables.collect())
    }

    /// An empty variable counts as not set.
    pub(crate) fn get(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The variables that have no effect on these settings, with the reasons.
    pub(crate) fn without_effect(&self, settings: &Settings) -> Vec<(&'static str, &'static str)> {
        let others = WITHOUT_EFFECT.iter().filter(|(name, anyway, _)| {
            self.get(name).is_some_and(|value| !anyway.contains(&value))
        });
        let missing = NEEDED.iter().filter(|needed| !self.is_met(needed.variable, needed.values));
        let missing = missing.flat_map(|needed| {
            let names = needed.by.iter().filter(|name| self.get(name).is_some());
            names.map(|name| (*name, needed.advice))
        });
        let debug_host = self.get(DEBUG_HOST).and_then(|host| parse_host(host).ok());
        let has_other_host = debug_host.is_some_and(|host| host != settings.listen.admin.ip());
        let advice = "without FLEETLIMIT_ADMIN_TOKEN, the admin port is on a loopback address";
        let debug_host = has_other_host.then_some((DEBUG_HOST, advice));
        let in_memory = self.is_met("BACKEND_TYPE", &["memory"]) && self.get("REDIS_URL").is_some();
        let redis =
            in_memory.then_some(("REDIS_URL", "limits are in memory with BACKEND_TYPE=memory"));
        let others = others.map(|(name, _, reason)| (*name, *reason));
        others.chain(missing).chain(redis).chain(debug_host).collect()
    }
}
