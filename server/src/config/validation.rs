//! The rules for settings of the service that do not depend on files.

use std::collections::HashSet;
use std::time::Duration;

use http::Uri;
use tokio::sync::Semaphore;

use crate::secret::Secret;
use crate::settings::{
    Auth, Holds, ListenerTls, Otlp, OtlpProtocol, ResourceLimits, Settings, StoreSettings,
};

/// The longest handshake timeout. It is bounded, so that its end is a point in time.
const MAX_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The greatest age of a connection, which is bounded for the same reason.
pub(super) const MAX_CONNECTION_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The fewest bytes of a token, and of the secret of holds. A shorter one could be guessed.
const MIN_SECRET: usize = 16;

/// The settings that are wrong, by name, and messages.
type Found = Vec<(&'static str, String)>;

/// Returns the errors in the settings, apart from the policies. In an incomplete section, nothing counts as missing.
pub(super) fn errors_in(settings: &Settings, incomplete: &HashSet<String>) -> Found {
    let mut errors = of_store(&settings.store, incomplete.contains("store"));
    errors.extend(of_checks(settings));
    errors.extend(of_listen(settings));
    errors.extend(of_admin(settings, incomplete.contains("admin")));
    errors.extend(of_token("http.token", settings.http.token.as_ref()));
    errors.extend(of_tls(settings.tls.as_ref()));
    errors.extend(of_otlp(settings.otlp.as_ref()));
    errors.extend(of_holds(&settings.holds));
    errors.extend(of_limits(&settings.resource_limits));
    errors.extend(of_auth(&settings.auth));
    errors
}

fn of_store(store: &StoreSettings, is_incomplete: bool) -> Found {
    let mut errors = Found::new();
    let servers = [store.redis.is_some(), !store.cluster.is_empty(), store.sentinel.is_some()];
    if servers.iter().filter(|is_given| **is_given).count() > 1 {
        let message = "store: give only one of `redis`, `cluster` and `sentinel`";
        errors.push(("store", message.to_owned()));
    }
    if !servers.contains(&true) && !is_incomplete {
        let without_effect =
            |setting| (setting, format!("{setting}: without Redis it has no effect"));
        errors.extend(store.of_redis().map(without_effect));
    }
    for (setting, time) in [
        ("store.max_connection_age", store.max_connection_age),
        ("store.keepalive", store.keepalive),
    ] {
        if time.is_some_and(|time| time.is_zero()) {
            errors.push((setting, format!("{setting}: must be more than 0s")));
        }
    }
    errors
}

fn of_checks(settings: &Settings) -> Found {
    let mut errors = Found::new();
    let mut add = |message: &str| errors.push(("checks.timeout", message.to_owned()));
    if settings.checks.timeout.is_zero() {
        add("checks.timeout: must be more than 0s");
    }
    if !(0.0..=1.0).contains(&settings.checks.near_limit_ratio) {
        let message = "checks.near_limit_ratio: must be 0 to 1";
        errors.push(("checks.near_limit_ratio", message.to_owned()));
    }
    let mut add = |message: &str| errors.push(("checks.timeout", message.to_owned()));
    if !settings.resource_limits.request_timeout.is_zero() && !settings.failure_mode_answers() {
        add(
            "checks.timeout: must be less than resource_limits.request_timeout, so that the failure mode answers",
        );
    }
    errors
}

fn of_admin(settings: &Settings, is_incomplete: bool) -> Found {
    let address = settings.listen.admin;
    let Some(token) = &settings.admin.token else {
        let message = format!(
            "admin.token is missing: others can reach {address}. Set it, or listen on 127.0.0.1"
        );
        let is_needed = !address.ip().is_loopback() && !is_incomplete;
        return is_needed.then_some(("listen.admin", message)).into_iter().collect();
    };
    of_token("admin.token", Some(token))
}

fn of_token(setting: &'static str, token: Option<&Secret>) -> Found {
    let Some(token) = token else { return Found::new() };
    let message = if token.expose().len() < MIN_SECRET {
        format!(
            "{setting} must have at least {MIN_SECRET} bytes: `openssl rand -hex 32` prints a good one"
        )
    } else if !token.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        format!(
            "{setting} has a character that a header cannot carry, such as a line break: use letters, digits and \
             punctuation of ASCII"
        )
    } else {
        return Found::new();
    };
    vec![(setting, message)]
}

fn of_listen(settings: &Settings) -> Found {
    let path = &settings.listen.metrics_path;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let is_path = path.starts_with('/') && path.bytes().all(is_plain);
    let message = "listen.metrics_path: must be a path such as /metrics".to_owned();
    (!is_path).then_some(("listen.metrics_path", message)).into_iter().collect()
}

fn of_otlp(otlp: Option<&Otlp>) -> Found {
    let mut errors = Found::new();
    let Some(otlp) = otlp else { return errors };
    let mut add = |setting, message: &str| errors.push((setting, format!("{setting}: {message}")));
    let endpoint = otlp.endpoint.as_deref().map(|url| (url, url.parse::<Uri>()));
    if let Some((url, parsed)) = endpoint {
        let scheme = parsed.as_ref().ok().and_then(Uri::scheme_str);
        let has_host = parsed.as_ref().is_ok_and(|url| url.host().is_some());
        if !has_host || !matches!(scheme, Some("http" | "https")) {
            add("otlp.endpoint", "must be a URL such as http://collector:4317");
        } else if otlp.protocol == OtlpProtocol::Http && url.starts_with("https") {
            add("otlp.endpoint", "only the protocol `grpc` supports TLS");
        }
    }
    if !(0.0..=1.0).contains(&otlp.sampling_ratio) {
        add("otlp.sampling_ratio", "must be 0 to 1");
    }
    if !otlp.traces && !otlp.metrics {
        add("otlp", "set `traces` or `metrics` to true, or remove the section");
    }
    errors
}

fn of_tls(tls: Option<&ListenerTls>) -> Found {
    let mut errors = Found::new();
    let Some(tls) = tls else { return errors };
    if tls.client_name.is_some() && tls.client_ca.is_none() {
        let message = "tls.client_name: needs `client_ca`, the authorities of the clients";
        errors.push(("tls.client_name", message.to_owned()));
    }
    if tls.ports.is_empty() {
        let message = "tls.ports: name at least one of `grpc`, `http` and `admin`";
        errors.push(("tls.ports", message.to_owned()));
    }
    errors
}

fn of_holds(holds: &Holds) -> Found {
    let is_short = holds.secret.as_ref().is_some_and(|it| it.expose().len() < MIN_SECRET);
    let message = format!(
        "holds.secret must have at least {MIN_SECRET} bytes: `openssl rand -hex 32` prints a good one"
    );
    is_short.then_some(("holds.secret", message)).into_iter().collect()
}

fn of_limits(limits: &ResourceLimits) -> Found {
    let mut errors = Found::new();
    for (setting, is_zero) in [
        ("resource_limits.request_timeout", limits.request_timeout.is_zero()),
        ("resource_limits.idle_timeout", limits.idle_timeout.is_zero()),
        ("resource_limits.header_bytes", limits.header_bytes == 0),
        ("resource_limits.request_bytes", limits.request_bytes == 0),
        ("resource_limits.descriptors", limits.descriptors == 0),
    ] {
        if is_zero {
            errors.push((setting, format!("{setting}: must be more than 0")));
        }
    }
    if limits.connections.get() > Semaphore::MAX_PERMITS {
        let (setting, most) = ("resource_limits.connections", Semaphore::MAX_PERMITS);
        errors.push((setting, format!("{setting}: must be at most {most}")));
    }
    if limits.connection_age.is_zero() || limits.connection_age > MAX_CONNECTION_AGE {
        let setting = "resource_limits.connection_age";
        errors.push((setting, format!("{setting}: must be more than 0s, and at most 365d")));
    }
    if limits.handshake_timeout.is_zero() || limits.handshake_timeout > MAX_HANDSHAKE_TIMEOUT {
        let setting = "resource_limits.handshake_timeout";
        errors.push((setting, format!("{setting}: must be more than 0s, and at most 1h")));
    }
    errors
}

fn of_auth(auth: &Auth) -> Found {
    let mut errors = Found::new();
    for (setting, prefix, most) in
        [("auth.ipv4_prefix", auth.ipv4_prefix, 32), ("auth.ipv6_prefix", auth.ipv6_prefix, 128)]
    {
        if !(1..=most).contains(&prefix) {
            errors.push((setting, format!("{setting}: must be 1 to {most}")));
        }
    }
    if auth.policy.is_some() && auth.policy_header.is_some() {
        let message = "auth.policy: with auth.policy_header, requests without the header are rejected. If they \
                       are to have this policy, name both in the URL of /auth";
        errors.push(("auth.policy", message.to_owned()));
    }
    errors
}
