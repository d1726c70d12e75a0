//! What the files say, checked as a whole.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_saphyr::{DefaultMessageFormatter, Location, MessageFormatter};
use sha2::{Digest, Sha256};
use tollgate::resolve::ClientIp;
use tollgate::{Policy, PolicySet, Quota};

use crate::cli::Overrides;
use crate::domain::{DomainFile, Domains};
use crate::lists::Lists;
use crate::settings::Settings;

/// Where a configuration comes from.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The settings file, or none for the sample.
    pub(crate) file: Option<PathBuf>,
    pub(crate) overrides: Overrides,
}

/// A valid configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// Policies from the settings and the domain files.
    pub(crate) policies: PolicySet,
    /// The names of policies that do not deny.
    pub(crate) shadow: BTreeSet<String>,
    pub(crate) domains: Domains,
    pub(crate) lists: Lists,
    pub(crate) client_ip: ClientIp,
}

/// Everything that is wrong with the configuration, one error per line.
#[derive(Debug, Default)]
pub(crate) struct Errors(Vec<String>);

impl Errors {
    pub(crate) fn add(&mut self, file: &Path, at: Location, message: impl Display) {
        let file = file.display();
        self.0.push(if at == Location::UNKNOWN {
            format!("{file}: {message}")
        } else {
            format!("{file}:{}:{}: {message}", at.line(), at.column())
        });
    }

    fn one(file: &Path, at: Location, message: impl Display) -> Self {
        let mut errors = Self::default();
        errors.add(file, at, message);
        errors
    }
}

impl Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Errors {}

/// What applies without a settings file.
const SAMPLE: &str = include_str!("../sample.yaml");

impl Source {
    /// Reads the settings file, and all files that it names.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with any of them.
    pub(crate) fn load(&self) -> (Read, Result<Config, Errors>) {
        let mut files = Files::default();
        let config = match &self.file {
            None => self.parse(Path::new("sample.yaml"), SAMPLE, &mut files),
            Some(file) => {
                files.paths.push(file.clone());
                files.read(file).and_then(|text| self.parse(file, &text, &mut files))
            }
        };
        (Read { paths: files.paths, digest: files.hasher.finalize().to_vec() }, config)
    }

    fn parse(&self, file: &Path, text: &str, files: &mut Files) -> Result<Config, Errors> {
        let mut settings: Settings = parse(file, text)?;
        self.overrides.apply(&mut settings);
        let mut errors = Errors::default();
        for message in settings.errors() {
            errors.add(file, Location::UNKNOWN, message);
        }
        let mut policies = policies(file, &settings, &mut errors);
        let domains = domains(file, &settings, &policies, files, &mut errors);
        for policy in domains.rules().filter_map(|rule| rule.own_policy()) {
            if policies.get(policy.name()).is_some() {
                let name = policy.name();
                let message = format!("policy `{name}` has the name that a descriptor's limit has");
                errors.add(file, Location::UNKNOWN, message);
            }
            if let Err(error) = PolicySet::new().policy(policy.clone()).validate() {
                errors.add(file, Location::UNKNOWN, error);
            }
            policies = policies.policy(policy);
        }
        if let Some(name) = &settings.auth.policy
            && policies.get(&name.value).is_none()
        {
            let message = format!("there is no policy `{}`", name.value);
            errors.add(file, name.referenced, message);
        }
        let client_ip = ClientIp::new(&settings.auth.trusted_proxies);
        match client_ip {
            Ok(client_ip) if errors.0.is_empty() => {
                let shadow = domains.rules().filter(|rule| rule.shadow_mode);
                let shadow = shadow.filter_map(|rule| rule.policy_name());
                let shadow = shadow.map(str::to_owned).collect();
                let lists = Lists::new(&settings.allow, &settings.deny);
                Ok(Config { settings, policies, shadow, domains, lists, client_ip })
            }
            Ok(_) => Err(errors),
            Err(error) => {
                let message = format!("auth.trusted_proxies: {error}");
                errors.add(file, Location::UNKNOWN, message);
                Err(errors)
            }
        }
    }
}

/// The files that were read, and what was in them.
#[derive(Debug)]
pub(crate) struct Read {
    paths: Vec<PathBuf>,
    digest: Vec<u8>,
}

impl Read {
    pub(crate) fn has_changed(&self) -> bool {
        let mut files = Files::default();
        for file in self.paths.iter().flat_map(|path| files_at(path).unwrap_or_default()) {
            // A file that cannot be read has not been added before, either.
            if let Ok(text) = fs::read_to_string(&file) {
                files.add(&file, &text);
            }
        }
        files.hasher.finalize().as_slice() != self.digest
    }
}

#[derive(Default)]
struct Files {
    paths: Vec<PathBuf>,
    hasher: Sha256,
}

impl Files {
    fn read(&mut self, file: &Path) -> Result<String, Errors> {
        let text = fs::read_to_string(file)
            .map_err(|error| Errors::one(file, Location::UNKNOWN, error))?;
        self.add(file, &text);
        Ok(text)
    }

    fn add(&mut self, file: &Path, text: &str) {
        self.hasher.update(file.as_os_str().as_encoded_bytes());
        self.hasher.update((text.len() as u64).to_be_bytes());
        self.hasher.update(text);
    }
}

fn policies(file: &Path, settings: &Settings, errors: &mut Errors) -> PolicySet {
    let mut set = PolicySet::new();
    for (name, quotas) in &settings.policies {
        let mut policy = Policy::new(name.value.clone());
        let mut is_complete = true;
        for (quota_name, text) in quotas {
            match text.value.parse::<Quota>() {
                Ok(quota) => policy = policy.quota(quota_name.value.clone(), quota),
                Err(error) => {
                    errors.add(file, text.referenced, error);
                    is_complete = false;
                }
            }
        }
        if is_complete && let Err(error) = PolicySet::new().policy(policy.clone()).validate() {
            errors.add(file, name.referenced, error);
        }
        set = set.policy(policy);
    }
    set
}

fn domains(
    file: &Path,
    settings: &Settings,
    policies: &PolicySet,
    files: &mut Files,
    errors: &mut Errors,
) -> Domains {
    let mut domains = Domains::default();
    let base = file.parent().unwrap_or(Path::new(""));
    for path in &settings.domains {
        let at = base.join(&path.value);
        let found = files_at(&at);
        files.paths.push(at);
        match found {
            Err(error) => errors.add(file, path.referenced, error),
            Ok(found) => {
                for file in found {
                    match files.read(&file).and_then(|text| parse::<DomainFile>(&file, &text)) {
                        Ok(domain) => domains.add(&file, &domain, policies, errors),
                        Err(Errors(others)) => errors.0.extend(others),
                    }
                }
            }
        }
    }
    domains
}

/// A file, or the YAML files of a directory by name.
fn files_at(path: &Path) -> Result<Vec<PathBuf>, String> {
    let error = |error: std::io::Error| format!("{}: {error}", path.display());
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let is_yaml = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
    };
    let paths = entries.map_err(error)?.into_iter().map(|entry| entry.path());
    let mut files: Vec<_> = paths.filter(is_yaml).collect();
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no file ends with .yaml or .yml", path.display()));
    }
    Ok(files)
}

fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, Errors> {
    serde_saphyr::from_str(text).map_err(|error| {
        let at = error.location().unwrap_or(Location::UNKNOWN);
        let message = DefaultMessageFormatter.format_message(error.without_snippet());
        // It may quote anything that is in the file.
        let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        Errors::one(file, at, message.chars().map(printable).collect::<String>())
    })
}
