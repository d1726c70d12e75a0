//! Limits by descriptors, as Envoy asks for them.
//!
//! `format` is a file as envoyproxy/ratelimit writes it, `resource` the same from a control plane, and `context` what
//! is known while one is checked.
//! `tree` finds the `rule` (the limit) of a descriptor, by keys and values (`pattern`). `policy_name` names
//! limits that have no name, and `unit` is their units.

mod context;
mod format;
mod pattern;
mod policy_name;
mod resource;
mod rule;
mod tree;
mod unit;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use serde::{Serialize, Serializer};

use self::context::Context;
use self::policy_name::override_name;
use self::tree::Node;
use crate::errors::Errors;
use crate::settings::Envoy;

pub(crate) use context::Known;
pub(crate) use format::DomainFile;
pub(crate) use resource::Resource;
pub(crate) use rule::{Limit, Rule};
pub(crate) use tree::Match;
pub(crate) use unit::Unit;

/// The limits of all domains. Shown like the files that they are from.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    domains: HashMap<String, Domain>,
    options: Envoy,
}

impl Serialize for Domains {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut files: Vec<_> = self.domains.values().flat_map(|domain| &domain.files).collect();
        files.sort_by_key(|file| &file.domain.value);
        serializer.collect_seq(files)
    }
}

#[derive(Debug)]
struct Domain {
    /// The file with the domain, or several if they are merged.
    files: Vec<DomainFile>,
    root: Node,
    overrides: String,
}

impl Domains {
    pub(crate) fn new(options: Envoy) -> Self {
        Self { domains: HashMap::new(), options }
    }

    /// Adds the domain of a file.
    pub(crate) fn add(
        &mut self,
        path: &Path,
        file: DomainFile,
        known: Known<'_>,
        errors: &mut Errors,
    ) {
        let name = &file.domain.value;
        if name.is_empty() {
            errors.add(path, file.domain.referenced, "the domain is empty");
        }
        let options = &self.options;
        if self.domains.contains_key(name) && !options.merge_domains {
            let message = format!(
                "another file or resource has the domain `{name}` too: put all descriptors into one, or set \
                 `envoy.merge_domains` (MERGE_DOMAIN_CONFIG)"
            );
            errors.add(path, file.domain.referenced, message);
        }
        let domain = self.domains.entry(name.clone()).or_insert_with(|| Domain {
            files: Vec::new(),
            root: Node::default(),
            overrides: override_name(name),
        });
        let path_to_root = Vec::new();
        domain.root.add(&mut Context {
            file: path,
            domain: &file,
            known,
            options,
            errors,
            path: path_to_root,
        });
        domain.files.push(file);
    }

    /// The limit of a descriptor with these keys and values. All of them have to match.
    pub(crate) fn find<'a>(
        &'a self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Match<'a>> {
        self.domains.get(domain)?.root.find(entries)
    }

    pub(crate) fn has(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns true if requests to this domain may give permits back.
    pub(crate) fn has_negative_hits(&self, domain: &str) -> bool {
        let mut files = self.domains.get(domain).into_iter().flat_map(|domain| &domain.files);
        files.any(|file| file.negative_hits)
    }

    /// The policy of the limits that requests to this domain have (overrides): its name, and whether hits that are
    /// denied are counted, too, if the file says so.
    pub(crate) fn overrides(&self, domain: &str) -> Option<(&str, Option<bool>)> {
        let Domain { files, overrides, .. } = self.domains.get(domain)?;
        let count_denied = files.iter().find_map(|file| file.count_denied);
        Some((overrides, count_denied.or(self.options.count_denied)))
    }

    /// Returns true if the numbers of a policy are those of the requests.
    pub(crate) fn is_override(&self, policy: &str) -> bool {
        self.override_names().any(|name| name == policy)
    }

    pub(crate) fn override_names(&self) -> impl Iterator<Item = &str> {
        self.domains.values().map(|domain| domain.overrides.as_str())
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.domains.values().flat_map(|domain| domain.root.rules())
    }
}
