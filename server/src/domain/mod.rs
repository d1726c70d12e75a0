//! Limits by descriptors, as Envoy asks for them.

mod format;
mod pattern;
mod policy_name;
mod tree;
mod unit;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use fleetlimit::{Key, Policy, PolicySet};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use self::policy_name::override_name;
use self::tree::Node;
use crate::config::Errors;

pub(crate) use format::DomainFile;
pub(crate) use unit::Unit;

/// The limits of all domains. Shown like the files that they are from.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    domains: HashMap<String, Domain>,
}

impl Serialize for Domains {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut files: Vec<_> = self.domains.values().map(|domain| &domain.file).collect();
        files.sort_by_key(|file| &file.domain.value);
        serializer.collect_seq(files)
    }
}

#[derive(Debug)]
struct Domain {
    file: DomainFile,
    root: Node,
    overrides: String,
}

/// What a descriptor of the configuration limits.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) limit: Limit,
    /// The name that others replace it by, or empty.
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) shadow_mode: bool,
    pub(crate) quota_mode: bool,
    /// Whether hits that are denied are counted, too, if the configuration says so.
    pub(crate) count_denied: Option<bool>,
    /// Whether metrics tell all values of the descriptor apart.
    pub(crate) detailed_metric: bool,
    /// For responses, if the limit allows the request.
    pub(crate) metadata: Map<String, Value>,
}

#[derive(Debug)]
pub(crate) enum Limit {
    Unlimited,
    /// A fixed window.
    PerUnit {
        permits: u32,
        unit: Unit,
        policy: String,
    },
    /// A policy of the settings.
    Policy(String),
}

impl Rule {
    /// The name of the policy that decides, or `None` if no policy is needed.
    pub(crate) fn policy_name(&self) -> Option<&str> {
        match &self.limit {
            Limit::Unlimited | Limit::PerUnit { permits: 0, .. } => None,
            Limit::PerUnit { policy, .. } | Limit::Policy(policy) => Some(policy),
        }
    }

    /// What metrics call the limit.
    pub(crate) fn label(&self) -> &str {
        match &self.limit {
            Limit::Unlimited => "unlimited",
            Limit::PerUnit { policy, .. } | Limit::Policy(policy) => policy,
        }
    }

    /// The policy that decides, unless it is one of the settings.
    pub(crate) fn own_policy(&self) -> Option<Policy> {
        match &self.limit {
            Limit::PerUnit { permits: permits @ 1.., unit, policy } => {
                let quota = unit.quota(u64::from(*permits));
                // With another unit it is another quota. Otherwise a change to a shorter one would wait for
                // the end of the longer window.
                Some(Policy::new(policy.clone()).quota(unit.name(), quota))
            }
            _ => None,
        }
    }
}

/// The limit that applies to a descriptor of a request.
#[derive(Debug)]
pub(crate) struct Match<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) key: Key,
    /// What metrics show of the descriptor, if they tell values apart.
    pub(crate) label: Option<String>,
}

/// What is known when a file is checked. Something that was wrong, and has been left out, is not missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The policies of the settings, unless one of them has been left out.
    pub(crate) policies: Option<&'a PolicySet>,
    /// Whether no field of a descriptor has been left out.
    pub(crate) all_fields: bool,
}

impl Domains {
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
        if self.domains.contains_key(name) {
            let message = format!("another file has the domain `{name}` too");
            errors.add(path, file.domain.referenced, message);
        }
        let root = Node::new(&mut tree::Context { file: path, domain: &file, known, errors });
        let overrides = override_name(name);
        self.domains.insert(name.clone(), Domain { file, root, overrides });
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

    /// Whether requests to this domain may give permits back.
    pub(crate) fn has_negative_hits(&self, domain: &str) -> bool {
        self.domains.get(domain).is_some_and(|domain| domain.file.negative_hits)
    }

    /// For limits sent in requests to this domain (overrides): the name of the policy, and whether hits that are
    /// denied are counted, too, if the file says so.
    pub(crate) fn overrides(&self, domain: &str) -> Option<(&str, Option<bool>)> {
        let Domain { file, overrides, .. } = self.domains.get(domain)?;
        Some((overrides, file.count_denied))
    }

    /// Whether the numbers of a policy are those of the requests.
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
