//! Reads the settings and the files that they name, and collects what is wrong with them.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use envoy_types::pb::google::protobuf::Any;
use fleetlimit::resolve::ClientIp;
use fleetlimit::{AnyStore, Policy, PolicySet, Quota};
use indexmap::IndexMap;
use redis::{ClientTlsConfig, TlsCertificates};
use serde_json::Value;
use serde_saphyr::Location;
use sha2::{Digest, Sha256};

use super::document::Document;
use super::files::{Contents, Files};
use super::overrides::SettingsWriter;
use super::places::Places;
use super::secrets;
use super::source::{Origin, Source};
use super::validation::errors_in;
use super::{Config, Errors, Read};
use crate::control_plane;
use crate::domain::{DomainFile, Domains, Known, Resource};
use crate::holds;
use crate::lists::Lists;
use crate::secret::{excerpt, excerpt_of_path};
use crate::settings::{Auth, ClientTls, ListenerTls, Settings, StoreSettings, Tls, Xds};
use crate::store;
use crate::tls::{self, ClientVerifier, KeyPair, ServerTls};

const SAMPLE: &str = include_str!("../../sample.yaml");
/// The name of the resources of a control plane in errors, in place of a file.
const XDS: &str = "xds";
const FRACTION_HINT: &str = "; numbers are whole: 3/2s is 1.5 per second";

/// A reader of settings and files. Its methods return what is valid, and collect an error for everything else.
pub(super) struct Reader<'a> {
    source: &'a Source,
    /// The resources of the control plane, if it has sent any.
    received: Option<&'a [Any]>,
    /// The file or variable with the settings, as errors name it.
    name: PathBuf,
    /// The text of the settings.
    text: String,
    files: Files<'a>,
    errors: Errors,
    places: Places,
    /// The sections in which something has been left out, because it is wrong.
    incomplete: HashSet<String>,
}

impl<'a> Reader<'a> {
    /// `before` is what was in the files, if they are not to be read again.
    pub(super) fn new(
        source: &'a Source,
        received: Option<&'a [Any]>,
        before: Option<&'a Contents>,
    ) -> Self {
        let name = source.origin.name();
        Self {
            source,
            received,
            name: name.to_owned(),
            text: String::new(),
            files: Files::new(before),
            errors: source.environment.clone(),
            places: Places::new(name),
            incomplete: HashSet::new(),
        }
    }

    pub(super) fn finish<T>(mut self, valid: Option<T>) -> (Read, Result<T, Errors>) {
        let valid = valid.filter(|_| self.errors.is_empty());
        if !self.errors.is_empty() {
            let document = Document::<Value>::parse(&self.text).value.unwrap_or_default();
            self.errors.hide(&secrets::secrets_in(&document));
        }
        (self.files.into_read(), valid.ok_or(self.errors))
    }

    pub(super) fn settings(&mut self) -> Option<Settings> {
        self.text = match &self.source.origin {
            Origin::Sample => SAMPLE.to_owned(),
            Origin::Variable(text) => text.clone(),
            Origin::Ratelimit => String::new(),
            Origin::File(file) => {
                self.files.watch(file.clone());
                let text = self.files.read_text(file);
                text.map_err(|error| self.errors.add(file, Location::UNKNOWN, error)).ok()?
            }
            Origin::Unclear { error, .. } => {
                self.errors.add(&self.name, Location::UNKNOWN, error);
                return None;
            }
        };
        let Document { value, errors, fields, incomplete } = Document::parse(&self.text);
        for (at, error) in errors {
            self.errors.add(&self.name, at, error);
        }
        self.places.fields = fields;
        self.incomplete = incomplete;
        let mut settings: Settings = value?;
        let Self { source, places, errors, incomplete, .. } = self;
        let mut writer = SettingsWriter { places, errors, incomplete };
        if let Some(variables) = &source.ratelimit {
            variables.apply(&mut settings, source.overrides.has_admin_token(), &mut writer);
        }
        source.overrides.apply(&mut settings, &mut writer);
        let limits_nothing = settings.policies.is_empty()
            && settings.domains.is_empty()
            && settings.xds.is_none()
            && !self.is_incomplete("xds");
        if limits_nothing && !self.is_incomplete("policies") && !self.is_incomplete("domains") {
            let message = "nothing is limited: add `policies`, `domains` or `xds`";
            self.errors.add(&self.name, Location::UNKNOWN, message);
        }
        Some(settings)
    }

    /// Adds the errors in the settings of the service.
    pub(super) fn check(&mut self, settings: &Settings) {
        for (setting, message) in errors_in(settings, &self.incomplete) {
            self.add_error(setting, message);
        }
        let is_complete = !self.is_incomplete("holds") && !self.is_incomplete("store");
        if is_complete && settings.holds.secret.is_none() && settings.store.is_redis() {
            self.report_unsigned(settings);
        }
    }

    /// Reports the quotas whose permits could not be given back, because no other instance could read the tokens.
    fn report_unsigned(&mut self, settings: &Settings) {
        for text in settings.policies.values().flat_map(IndexMap::values) {
            if text.value.parse::<Quota>().is_ok_and(|quota| quota.is_concurrent()) {
                let message = format!(
                    "`{}` needs `holds.secret`, the same for all instances, which signs the tokens of /v1/hold: \
                     generate one with `openssl rand -hex 32`",
                    excerpt(&text.value)
                );
                self.errors.add(&self.name, text.referenced, message);
            }
        }
    }

    pub(super) fn store(&mut self, settings: &mut StoreSettings) -> Option<AnyStore> {
        if self.is_incomplete("store") {
            return None;
        }
        let tls = settings.tls.as_mut().map(|files| self.store_tls(files));
        let is_tls_valid = tls.as_ref().is_none_or(Option::is_some);
        if let Some(file) = &settings.password_file {
            self.password("store.password_file", file)?;
        }
        if let Some(file) = settings.sentinel.as_ref().and_then(|it| it.password_file.as_ref()) {
            self.password("store.sentinel.password_file", file)?;
        }
        let store = store::open(settings, tls.flatten().as_ref());
        let store = store.map_err(|error| self.add_error(settings.servers(), error)).ok()?;
        if let Some(prefix) = &settings.key_prefix
            && let Err(error) = store::check_prefix(prefix)
        {
            self.add_error("store.key_prefix", quoting(error, prefix));
            return None;
        }
        Some(store).filter(|_| is_tls_valid)
    }

    /// Reads a password, because otherwise the first check would find out.
    fn password(&mut self, setting: &str, file: &Path) -> Option<String> {
        let password = store::password(file);
        password.map_err(|error| self.add_error(setting, of_path(setting, file, error))).ok()
    }

    fn store_tls(&mut self, files: &mut ClientTls) -> Option<TlsCertificates> {
        let (root_cert, client) = self.client_tls("store.tls", files)?;
        let client_tls =
            client.map(|[client_cert, client_key]| ClientTlsConfig { client_cert, client_key });
        let mut digest = Sha256::new();
        let client = client_tls.iter().flat_map(|tls| [&tls.client_cert, &tls.client_key]);
        for pem in root_cert.iter().chain(client) {
            digest.update(Sha256::digest(pem));
        }
        files.digest = digest.finalize().to_vec();
        Some(TlsCertificates { client_tls, root_cert })
    }

    /// Checks what is needed to connect to the control plane.
    pub(super) fn control_plane(&mut self, settings: Option<&Xds>) {
        let Some(settings) = settings.filter(|_| !self.is_incomplete("xds")) else { return };
        if let Some(files) = &settings.tls
            && self.client_tls("xds.tls", files).is_none()
        {
            return;
        }
        if let Err((setting, error)) = control_plane::check(settings) {
            self.add_error(setting, format!("{setting}: {error}"));
        }
    }

    /// The authorities, and a certificate with its key. `None` if something is wrong with a file.
    fn client_tls(&mut self, setting: &'static str, files: &ClientTls) -> Option<ClientPem> {
        let ca = files.ca.as_ref();
        let ca = ca.map(|file| self.pem(&format!("{setting}.ca"), file, tls::authorities));
        let client = files.client.as_ref();
        let client = client.map(|files| self.key_pair(&format!("{setting}.client"), files));
        // Those that are given have to be valid.
        let ca = ca.map_or(Some(None), |ca| ca.map(Some))?;
        let client = client.map_or(Some(None), |client| client.map(Some))?;
        Some((ca.map(|(_, pem)| pem), client.map(|(_, pem)| pem)))
    }

    /// Reads the certificate, also on a reload, which then reports the errors that would make a restart fail.
    pub(super) fn tls(&mut self, settings: Option<&ListenerTls>) -> Option<Option<Arc<ServerTls>>> {
        if self.is_incomplete("tls") {
            return None;
        }
        let Some(settings) = settings else { return Some(None) };
        let files = Tls { certificate: settings.certificate.clone(), key: settings.key.clone() };
        let key_pair = self.key_pair("tls", &files);
        let authorities = settings.client_ca.as_ref();
        let authorities = authorities.map(|file| self.pem("tls.client_ca", file, tls::authorities));
        // Those that are given have to be valid.
        let authorities = authorities.map_or(Some(None), |ca| ca.map(Some))?;
        let clients = authorities.map(|(authorities, _)| {
            let clients = ClientVerifier::new(authorities, settings.client_name.as_deref());
            clients.map_err(|error| {
                self.add_error("tls.client_name", format!("tls.client_name: {error}"))
            })
        });
        let server_tls = ServerTls::new(key_pair?.0, clients.transpose().ok()?);
        let server_tls = server_tls.map_err(|error| self.add_error("tls", format!("tls: {error}")));
        Some(Some(server_tls.ok()?.into()))
    }

    /// A certificate with its key, and the contents of both files.
    fn key_pair(&mut self, setting: &str, files: &Tls) -> Option<(KeyPair, [Vec<u8>; 2])> {
        let Tls { certificate, key } = files;
        let certificate =
            self.pem(&format!("{setting}.certificate"), certificate, tls::certificates);
        let key = self.pem(&format!("{setting}.key"), key, tls::key);
        let ((certificates, certificate_pem), (key, key_pem)) = (certificate?, key?);
        let pair = KeyPair::new(certificates, key);
        let pair = pair.map_err(|error| self.add_error(setting, format!("{setting}: {error}")));
        Some((pair.ok()?, [certificate_pem, key_pem]))
    }

    /// Reads a PEM file, and returns it parsed and as bytes.
    fn pem<T>(
        &mut self,
        setting: &str,
        file: &Path,
        parse: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Option<(T, Vec<u8>)> {
        self.files.watch(file.to_owned());
        let content = self.files.read(file).map_err(|error| error.to_string());
        let parsed = content.and_then(|content| Ok((parse(&content)?, content)));
        parsed.map_err(|error| self.add_error(setting, of_path(setting, file, error))).ok()
    }

    pub(super) fn limits(&mut self, settings: Settings) -> Option<Config> {
        let mut policies = self.policies(&settings);
        let domains = self.domains(&settings, &policies);
        // By name, because the rules are in another order in each process.
        let mut of_domains: Vec<_> = domains.rules().filter_map(|rule| rule.own_policy()).collect();
        of_domains.sort_by(|a, b| a.name().cmp(b.name()));
        for policy in of_domains {
            let name = policy.name();
            if let Some(other) = settings.policies.keys().find(|other| other.value == name) {
                let message = format!(
                    "the name of the policy `{name}` is used by a descriptor's `rate_limit`: rename the policy"
                );
                self.errors.add(&self.name, other.referenced, message);
            }
            policies = policies.policy(policy);
        }
        let auth = settings.auth.policy.iter().map(|policy| ("auth.policy", policy));
        let named = auth.chain(settings.shadow.iter().map(|policy| ("shadow", policy)));
        let is_complete = !self.is_incomplete("policies") && !self.is_incomplete("domains");
        for (setting, policy) in named.filter(|_| is_complete) {
            let name = excerpt(&policy.value);
            let message = match policies.get(&policy.value) {
                None => format!("{setting}: there is no policy `{name}`"),
                Some(found) if setting == "auth.policy" && holds::are_in(found) => {
                    format!("{setting}: {}", holds::unreleased(&name))
                }
                Some(_) => continue,
            };
            self.errors.add(&self.name, policy.referenced, message);
        }
        let client_ip = self.client_ip(&settings.auth);
        let shadow = domains.rules().filter(|rule| rule.shadow_mode);
        let shadow = shadow.filter_map(|rule| rule.policy_name());
        let named = settings.shadow.iter().map(|policy| policy.value.as_str());
        let shadow = shadow.chain(named).map(str::to_owned).collect();
        let Auth { ipv4_prefix, ipv6_prefix, .. } = settings.auth;
        let lists = Lists::new(&settings.allow, &settings.deny, ipv4_prefix, ipv6_prefix);
        let awaits_control_plane = settings.xds.is_some() && self.received.is_none();
        let client_ip = client_ip?;
        Some(Config { settings, policies, shadow, domains, lists, client_ip, awaits_control_plane })
    }

    fn client_ip(&mut self, auth: &Auth) -> Option<ClientIp> {
        let client_ip = ClientIp::new(&auth.trusted_proxies).or_else(|error| {
            self.add_error("auth.trusted_proxies", format!("auth.trusted_proxies: {error}"));
            // Without them, the gateways are still checked.
            ClientIp::new::<[&str; 0]>([])
        });
        let client_ip = client_ip.and_then(|client_ip| client_ip.peers(&auth.gateways));
        let client_ip = client_ip
            .map_err(|error| self.add_error("auth.gateways", format!("auth.gateways: {error}")));
        Some(client_ip.ok()?.ipv4_prefix(auth.ipv4_prefix).ipv6_prefix(auth.ipv6_prefix))
    }

    fn policies(&mut self, settings: &Settings) -> PolicySet {
        let mut set = PolicySet::new();
        for (name, quotas) in &settings.policies {
            if set.get(&name.value).is_some() {
                let message = format!("there is another policy `{}`", excerpt(&name.value));
                self.errors.add(&self.name, name.referenced, message);
            }
            if name.value == holds::ENDED_HOLDS {
                let message = format!("the name `{}` is reserved: rename the policy", name.value);
                self.errors.add(&self.name, name.referenced, message);
            }
            let mut policy = Policy::new(name.value.clone());
            for (quota_name, text) in quotas {
                match text.value.parse::<Quota>() {
                    Ok(quota) => policy = policy.quota(quota_name.value.clone(), quota),
                    Err(error) => {
                        let is_fraction = text.value.contains('.');
                        let hint = if is_fraction { FRACTION_HINT } else { "" };
                        let message = quoting(error, &text.value) + hint;
                        self.errors.add(&self.name, text.referenced, message);
                    }
                }
            }
            // That there are none is a consequence if all of them were wrong.
            let has_lost_all = policy.quotas().count() == 0
                && (!quotas.is_empty() || self.is_incomplete("policies"));
            if !has_lost_all && let Err(error) = PolicySet::new().policy(policy.clone()).validate()
            {
                let names = quotas.keys().map(|quota| &quota.value).chain([&name.value]);
                let message = names.fold(error.to_string(), |text, name| quoting(text, name));
                self.errors.add(&self.name, name.referenced, message);
            }
            set = set.policy(policy);
        }
        set
    }

    fn domains(&mut self, settings: &Settings, policies: &PolicySet) -> Domains {
        let mut domains = Domains::new(settings.envoy.clone());
        let base = self.name.parent().unwrap_or(Path::new("")).to_owned();
        for path in &settings.domains {
            let at = base.join(&path.value);
            match self.files.list(&at) {
                Err(error) => self.errors.add(&self.name, path.referenced, error),
                Ok(files) => {
                    for file in files {
                        match self.files.read_text(&file) {
                            Err(error) => {
                                let error = in_file(&file, error);
                                self.errors.add(&self.name, path.referenced, error);
                            }
                            Ok(text) => self.domain(&file, &text, &mut domains, policies),
                        }
                    }
                }
            }
        }
        for resource in self.received.unwrap_or_default() {
            match Resource::parse(resource) {
                Ok(Resource { name, file }) => {
                    let policies = (!self.is_incomplete("policies")).then_some(policies);
                    let known = Known { policies, all_fields: true };
                    let name = PathBuf::from(format!("{XDS}/{name}"));
                    domains.add(&name, file, known, &mut self.errors);
                }
                Err(error) => self.errors.add(Path::new(XDS), Location::UNKNOWN, error),
            }
        }
        domains
    }

    fn domain(&mut self, file: &Path, text: &str, domains: &mut Domains, policies: &PolicySet) {
        let document: Document<DomainFile> = Document::parse(text);
        let known = Known {
            policies: (!self.is_incomplete("policies")).then_some(policies),
            all_fields: !document.incomplete.contains("descriptors"),
        };
        for (at, error) in document.errors {
            self.errors.add(file, at, error);
        }
        if let Some(domain) = document.value {
            domains.add(file, domain, known, &mut self.errors);
        }
    }

    fn is_incomplete(&self, section: &str) -> bool {
        self.incomplete.contains(section)
    }

    fn add_error(&mut self, setting: &str, message: impl Display) {
        let (file, at) = self.places.find(setting);
        self.errors.add(file, at, message);
    }
}

/// The authorities, and a certificate with its key, as the content of PEM files.
type ClientPem = (Option<Vec<u8>>, Option<[Vec<u8>; 2]>);

fn in_file(file: &Path, error: impl Display) -> String {
    format!("{}: {error}", excerpt_of_path(file))
}

/// An error in the file of a setting. Its name stands for a path that may be a secret.
fn of_path(setting: &str, file: &Path, error: impl Display) -> String {
    match secrets::is_path_hidden(setting) {
        true => format!("{setting}: {error} (it is the path of a file)"),
        false => in_file(file, error),
    }
}

/// An error of the library that quotes this text.
fn quoting(error: impl Display, text: &str) -> String {
    // An empty text is everywhere.
    match text {
        "" => error.to_string(),
        text => error.to_string().replace(text, &excerpt(text)),
    }
}
