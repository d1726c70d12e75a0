//! Puts the variables into the settings.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_saphyr::{Location, Spanned};

use super::super::overrides::SettingsWriter;
use super::super::validation::MAX_CONNECTION_AGE;
use super::{CONFIG_TYPE, DEBUG_HOST, FALSE, RatelimitEnv, TRUE, duration};
use crate::secret::{Secret, excerpt};
use crate::settings::{
    ClientTls, EnvoyHeaders, HeaderOption, Listen, ListenerTls, Otlp, OtlpProtocol, Port, Settings,
    Tls, Xds,
};

/// The directories of envoyproxy/ratelimit's files, below each other.
const RUNTIME: [(&str, &str); 3] = [
    ("RUNTIME_ROOT", "/srv/runtime_data/current"),
    ("RUNTIME_SUBDIRECTORY", ""),
    ("RUNTIME_APPDIRECTORY", "config"),
];

impl RatelimitEnv {
    /// Overrides settings by variables.
    pub(in crate::config) fn apply(
        &self,
        settings: &mut Settings,
        has_admin_token: bool,
        set: &mut SettingsWriter<'_>,
    ) {
        let has_admin_token = has_admin_token || settings.admin.token.is_some();
        self.apply_listen(&mut settings.listen, has_admin_token, set);
        self.apply_redis(&mut settings.store, set);
        self.apply_tls(&mut settings.tls, set);
        self.apply_limits(settings, set);
        self.apply_envoy(settings, set);
        self.apply_tracing(&mut settings.otlp, set);
    }

    /// Traces only, as in envoyproxy/ratelimit. The library of OpenTelemetry reads `OTEL_EXPORTER_OTLP_ENDPOINT` and others.
    fn apply_tracing(&self, otlp: &mut Option<Otlp>, set: &mut SettingsWriter<'_>) {
        if self.flag("TRACING_ENABLED", set) != Some(true) {
            return;
        }
        let text = |variable| self.get(variable).map(str::to_owned);
        let protocol = self.parsed("TRACING_EXPORTER_PROTOCOL", set, |text| match text {
            "grpc" => Ok(OtlpProtocol::Grpc),
            "http" => Ok(OtlpProtocol::Http),
            _ => Err("must be grpc or http"),
        });
        let mut traces = Otlp {
            protocol: protocol.unwrap_or(OtlpProtocol::Http),
            metrics: otlp.as_ref().is_some_and(|otlp| otlp.metrics),
            service_name: text("TRACING_SERVICE_NAME").unwrap_or_else(|| "RateLimit".to_owned()),
            service_namespace: text("TRACING_SERVICE_NAMESPACE"),
            service_instance_id: text("TRACING_SERVICE_INSTANCE_ID"),
            ..otlp.take().unwrap_or_default()
        };
        let variable = "TRACING_SAMPLING_RATE";
        let ratio = self.parsed(variable, set, FromStr::from_str);
        set.value(&mut traces.sampling_ratio, ratio, "otlp.sampling_ratio", variable);
        traces.traces = true;
        *otlp = Some(traces);
    }

    fn apply_listen(
        &self,
        listen: &mut Listen,
        has_admin_token: bool,
        set: &mut SettingsWriter<'_>,
    ) {
        for (address, name, host, port) in [
            (&mut listen.http, "listen.http", "HOST", "PORT"),
            (&mut listen.grpc, "listen.grpc", "GRPC_HOST", "GRPC_PORT"),
            (&mut listen.admin, "listen.admin", DEBUG_HOST, "DEBUG_PORT"),
        ] {
            // Otherwise everyone could change limits.
            let is_allowed =
                |ip: &IpAddr| host != DEBUG_HOST || has_admin_token || ip.is_loopback();
            if let Some(ip) = self.parsed(host, set, parse_host).filter(is_allowed) {
                address.set_ip(ip);
                set.places.override_by(name, host);
            }
            // In a namespace with a Service `grpc`, Kubernetes sets `GRPC_PORT=tcp://10.0.0.1:8081`.
            if self.get(port).is_none_or(|port| !port.contains("://"))
                && let Some(port) = self.parsed(port, set, FromStr::from_str)
            {
                address.set_port(port);
            }
        }
        if self.flag("USE_PROMETHEUS", set) == Some(true) {
            let any = listen.http.ip();
            let address = self.parsed("PROMETHEUS_ADDR", set, |text| parse_address(text, any));
            listen.metrics = Some(address.unwrap_or(SocketAddr::new(any, 9_090)));
            set.places.override_by("listen.metrics", "PROMETHEUS_ADDR");
            let path = self.get("PROMETHEUS_PATH").map(str::to_owned);
            set.value(&mut listen.metrics_path, path, "listen.metrics_path", "PROMETHEUS_PATH");
        }
        if self.get("GRPC_UDS").is_some() {
            set.error(
                "GRPC_UDS",
                "gRPC is not served on a Unix socket: set GRPC_HOST and GRPC_PORT",
            );
        }
    }

    /// Only the gRPC port has TLS, so probes need no certificate.
    fn apply_tls(&self, tls: &mut Option<ListenerTls>, set: &mut SettingsWriter<'_>) {
        if self.flag("GRPC_SERVER_USE_TLS", set) != Some(true) {
            return;
        }
        let mut file = |variable| self.file(variable, "GRPC_SERVER_USE_TLS", set);
        let (certificate, key) = (file("GRPC_SERVER_TLS_CERT"), file("GRPC_SERVER_TLS_KEY"));
        let (Some(certificate), Some(key)) = (certificate, key) else { return };
        for (name, variable) in [
            ("tls.certificate", "GRPC_SERVER_TLS_CERT"),
            ("tls.key", "GRPC_SERVER_TLS_KEY"),
            ("tls.client_ca", "GRPC_CLIENT_TLS_CACERT"),
            ("tls.client_name", "GRPC_CLIENT_TLS_SAN"),
            ("tls", "GRPC_SERVER_USE_TLS"),
        ] {
            set.places.override_by(name, variable);
        }
        *tls = Some(ListenerTls {
            certificate,
            key,
            client_ca: self.get("GRPC_CLIENT_TLS_CACERT").map(PathBuf::from),
            client_name: self.get("GRPC_CLIENT_TLS_SAN").map(str::to_owned),
            ports: vec![Port::Grpc],
        });
    }

    /// The place of the limits: files, or a control plane.
    fn apply_limits(&self, settings: &mut Settings, set: &mut SettingsWriter<'_>) {
        match self.get(CONFIG_TYPE) {
            None | Some("FILE") => {
                let is_given = RUNTIME.iter().any(|(variable, _)| self.get(variable).is_some());
                if !is_given && (!settings.domains.is_empty() || !settings.policies.is_empty()) {
                    return;
                }
                // An empty one is not the default. Only the first one may begin at the root.
                let part = |(variable, default): &(&'static str, &'static str)| {
                    self.0.get(*variable).map_or(*default, String::as_str).to_owned()
                };
                let mut directory = PathBuf::from(part(&RUNTIME[0]));
                let others = RUNTIME[1..].iter().map(part);
                directory.extend(others.map(|part| part.trim_start_matches('/').to_owned()));
                let unknown = Location::UNKNOWN;
                settings.domains.push(Spanned::new(directory, unknown, unknown));
            }
            Some("GRPC_XDS_SOTW") => {
                let before = settings.xds.take().unwrap_or_default();
                settings.xds = Some(self.xds(before, set));
            }
            Some(other) => {
                let message = format!("`{}`: must be FILE or GRPC_XDS_SOTW", excerpt(other));
                set.error(CONFIG_TYPE, message);
                // That nothing is limited is a consequence.
                set.incomplete.insert("xds".to_owned());
            }
        }
    }

    fn xds(&self, mut xds: Xds, set: &mut SettingsWriter<'_>) -> Xds {
        let text = |variable| self.get(variable).map(str::to_owned);
        let name = "xds.server";
        set.value(
            &mut xds.server,
            text("CONFIG_GRPC_XDS_SERVER_URL"),
            name,
            "CONFIG_GRPC_XDS_SERVER_URL",
        );
        let name = "xds.node_id";
        set.value(
            &mut xds.node_id,
            text("CONFIG_GRPC_XDS_NODE_ID"),
            name,
            "CONFIG_GRPC_XDS_NODE_ID",
        );
        if let Some(pairs) = self.pairs("CONFIG_GRPC_XDS_NODE_METADATA", '=', set) {
            xds.node_metadata = pairs.into_iter().collect();
        }
        let variable = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
        if let Some(pairs) = self.pairs(variable, ':', set) {
            set.places.override_by("xds.headers", variable);
            xds.headers =
                pairs.into_iter().map(|(name, value)| (name, Secret::from(value))).collect();
        }
        if self.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", set) == Some(true) {
            xds.tls = Some(self.client_tls(
                [
                    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
                    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
                    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
                ],
                ["xds.tls.ca", "xds.tls.client.certificate", "xds.tls.client.key"],
                text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
                set,
            ));
        }
        let first = self.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", set);
        let first = first.or(self.duration("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", set));
        let variable = "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL";
        set.value(&mut xds.retry.first, first, "xds.retry", variable);
        let variable = "XDS_CLIENT_BACKOFF_MAX_INTERVAL";
        let longest = self.duration(variable, set);
        set.value(&mut xds.retry.longest, longest, "xds.retry", variable);
        let variable = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
        // 0 is the default of gRPC.
        let size = self.parsed(variable, set, FromStr::from_str).filter(|size| *size > 0);
        set.value(&mut xds.max_message_bytes, size, "xds.max_message_bytes", variable);
        let is_forced = self.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", set);
        let needs_one = self.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", set);
        if let Some(is_forced) = is_forced.or(needs_one.map(|_| false)) {
            xds.ready_without = is_forced && needs_one != Some(true);
        }
        xds
    }

    fn apply_envoy(&self, settings: &mut Settings, set: &mut SettingsWriter<'_>) {
        let envoy = &mut settings.envoy;
        for (setting, variable) in [
            (&mut envoy.shadow_mode, "SHADOW_MODE"),
            (&mut envoy.quota_mode, "QUOTA_MODE"),
            (&mut envoy.merge_domains, "MERGE_DOMAIN_CONFIG"),
        ] {
            *setting = self.flag(variable, set).unwrap_or(*setting);
        }
        match self.flag("LIMIT_RESPONSE_HEADERS_ENABLED", set) {
            Some(true) => {
                let mut headers = EnvoyHeaders::default();
                for (header, variable) in [
                    (&mut headers.limit, "LIMIT_LIMIT_HEADER"),
                    (&mut headers.remaining, "LIMIT_REMAINING_HEADER"),
                    (&mut headers.reset, "LIMIT_RESET_HEADER"),
                ] {
                    let name =
                        self.parsed(variable, set, |it| HeaderOption::try_from(it.to_owned()));
                    if let Some(name) = name {
                        *header = name;
                    }
                }
                envoy.headers = Some(headers);
            }
            Some(false) => envoy.headers = None,
            None => {}
        }
        let variable = "NEAR_LIMIT_RATIO";
        let ratio = self.parsed(variable, set, FromStr::from_str);
        set.value(
            &mut settings.checks.near_limit_ratio,
            ratio,
            "checks.near_limit_ratio",
            variable,
        );
        let variable = "GRPC_MAX_CONNECTION_AGE";
        // 0 is no limit.
        let age = self.duration(variable, set);
        let age = age.map(|age| if age.is_zero() { MAX_CONNECTION_AGE } else { age });
        let name = "resource_limits.connection_age";
        set.value(&mut settings.resource_limits.connection_age, age, name, variable);
    }

    /// The files of a client, by the variables with the authorities, the certificate and the key.
    pub(super) fn client_tls(
        &self,
        variables: [&'static str; 3],
        settings: [&'static str; 3],
        name: Option<String>,
        set: &mut SettingsWriter<'_>,
    ) -> ClientTls {
        for (setting, variable) in settings.into_iter().zip(variables) {
            set.places.override_by(setting, variable);
        }
        let [ca, certificate, key] = variables;
        let client = match (self.get(certificate), self.get(key)) {
            (Some(certificate), Some(key)) => {
                Some(Tls { certificate: certificate.into(), key: key.into() })
            }
            (None, None) => None,
            (given, _) => {
                let (given, missing) =
                    if given.is_some() { (certificate, key) } else { (key, certificate) };
                set.error(given, format!("{missing} is missing"));
                None
            }
        };
        ClientTls { ca: self.get(ca).map(PathBuf::from), client, name, ..ClientTls::default() }
    }

    pub(super) fn flag(&self, variable: &str, set: &mut SettingsWriter<'_>) -> Option<bool> {
        self.parsed(variable, set, |text| match text {
            text if TRUE.contains(&text) => Ok(true),
            text if FALSE.contains(&text) => Ok(false),
            _ => Err("must be true or false"),
        })
    }

    fn duration(&self, variable: &str, set: &mut SettingsWriter<'_>) -> Option<Duration> {
        self.parsed(variable, set, duration::parse)
    }

    /// A file that another variable needs.
    fn file(&self, variable: &str, by: &str, set: &mut SettingsWriter<'_>) -> Option<PathBuf> {
        if self.get(variable).is_none() {
            set.error(by, format!("{variable} is missing"));
        }
        self.get(variable).map(PathBuf::from)
    }

    /// Names and values such as `a:1,b:2`.
    fn pairs(
        &self,
        variable: &str,
        separator: char,
        set: &mut SettingsWriter<'_>,
    ) -> Option<Vec<(String, String)>> {
        let pairs = self.get(variable)?.split(',').map(|pair| {
            let (name, value) = pair.split_once(separator)?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        });
        let pairs: Option<Vec<_>> = pairs.collect();
        if pairs.is_none() {
            // The values may be secret.
            set.error(variable, format!("must be pairs such as a{separator}1,b{separator}2"));
        }
        pairs
    }

    fn parsed<T, E: Display>(
        &self,
        variable: &str,
        set: &mut SettingsWriter<'_>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.get(variable)?;
        let parsed = parse(text);
        parsed.map_err(|error| set.error(variable, format!("`{}`: {error}", excerpt(text)))).ok()
    }
}

pub(super) fn parse_host(text: &str) -> Result<IpAddr, &'static str> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => {
            let text = text.trim_start_matches('[').trim_end_matches(']');
            text.parse().map_err(|_| "must be an IP address")
        }
    }
}

/// Parses an address such as `:9090`, which is a port on all addresses.
fn parse_address(text: &str, any: IpAddr) -> Result<SocketAddr, &'static str> {
    let error = "must be an address with a port, such as :9090";
    let (host, port) = text.rsplit_once(':').ok_or(error)?;
    let host = if host.is_empty() { any } else { parse_host(host)? };
    Ok(SocketAddr::new(host, port.parse().map_err(|_| error)?))
}
