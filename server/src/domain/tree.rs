//! The descriptors of a domain, by the keys and values that they match.

use std::collections::HashMap;
use std::path::Path as FilePath;

use fleetlimit::Key;

use super::format::{Descriptor, DomainFile};
use super::pattern::Pattern;
use super::policy_name::{Path, policy_name};
use super::{Known, Limit, Match, Rule, Unit};
use crate::config::Errors;
use crate::secret::excerpt;

#[derive(Debug)]
pub(super) struct Node {
    rule: Option<Rule>,
    /// Whether metrics tell its values apart.
    value_to_metric: bool,
    children: HashMap<String, Children>,
}

/// The descriptors with one key.
#[derive(Debug, Default)]
struct Children {
    exact: HashMap<String, Node>,
    wildcards: Vec<Wildcard>,
    any: Option<Box<Node>>,
}

#[derive(Debug)]
struct Wildcard {
    text: String,
    pattern: Pattern,
    shares: bool,
    node: Node,
}

/// Where the descriptors are from, and what they may refer to.
pub(super) struct Context<'a> {
    pub(super) file: &'a FilePath,
    pub(super) domain: &'a DomainFile,
    pub(super) known: Known<'a>,
    pub(super) errors: &'a mut Errors,
}

impl Node {
    /// The descriptors of a domain, with everything that is wrong with them among the errors.
    pub(super) fn new(context: &mut Context<'_>) -> Self {
        let domain = context.domain;
        let children = children(&mut Vec::new(), &domain.descriptors, context);
        Self { rule: None, value_to_metric: false, children }
    }

    /// An exact value is preferred to a wildcard, and a wildcard to any value. There is no way back: if
    /// the next entry does not match below, no limit applies.
    pub(super) fn find<'a>(
        &'a self,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Match<'a>> {
        let (mut node, mut steps) = (self, Vec::with_capacity(4));
        for (key, value) in entries {
            let children = node.children.get(key)?;
            let wildcard =
                || children.wildcards.iter().find(|wildcard| wildcard.pattern.matches(value));
            let (next, matched) = if let Some(node) = children.exact.get(value) {
                (node, Matched::Exactly)
            } else if let Some(Wildcard { node, text, shares, .. }) = wildcard() {
                (node, Matched::Wildcard { text, shares: *shares })
            } else {
                (children.any.as_deref()?, Matched::AnyValue)
            };
            steps.push(Step { key, value, matched, value_to_metric: next.value_to_metric });
            node = next;
        }
        let rule = node.rule.as_ref()?;
        Some(Match { rule, key: key(rule, &steps), label: label(rule, &steps) })
    }

    pub(super) fn rules(&self) -> Box<dyn Iterator<Item = &Rule> + '_> {
        let nodes = self.children.values().flat_map(|children| {
            let wildcards = children.wildcards.iter().map(|wildcard| &wildcard.node);
            children.exact.values().chain(wildcards).chain(children.any.as_deref())
        });
        Box::new(self.rule.iter().chain(nodes.flat_map(Node::rules)))
    }
}

/// An entry of a request, and what it matched.
struct Step<'a> {
    key: &'a str,
    value: &'a str,
    matched: Matched<'a>,
    value_to_metric: bool,
}

#[derive(Clone, Copy)]
enum Matched<'a> {
    Exactly,
    Wildcard { text: &'a str, shares: bool },
    AnyValue,
}

/// What is counted: the values, or the wildcard that they share a limit by. Others use the policies of
/// the settings, so for these the keys are a part, too.
fn key(rule: &Rule, steps: &[Step<'_>]) -> Key {
    let counted = |step: &Step<'_>| match step.matched {
        Matched::Wildcard { text, shares: true } => Key::from(text),
        _ => Key::from(step.value),
    };
    match (&rule.limit, steps) {
        (Limit::Policy(_), steps) => {
            let parts = steps.iter().flat_map(|step| [Key::from(step.key), counted(step)]);
            Key::join(&parts.collect::<Vec<_>>())
        }
        (_, [only]) => counted(only),
        (_, steps) => Key::join(&steps.iter().map(counted).collect::<Vec<_>>()),
    }
}

/// What metrics show of the descriptor, if they tell values apart.
fn label(rule: &Rule, steps: &[Step<'_>]) -> Option<String> {
    if !rule.detailed_metric && !steps.iter().any(|step| step.value_to_metric) {
        return None;
    }
    let level = |step: &Step<'_>| {
        let shows_value = rule.detailed_metric || step.value_to_metric;
        let value = match step.matched {
            Matched::Wildcard { text, shares: true } => text,
            Matched::Wildcard { text, .. } if !shows_value => text,
            Matched::AnyValue if !shows_value => "",
            _ => step.value,
        };
        if value.is_empty() { step.key.to_owned() } else { format!("{}_{value}", step.key) }
    };
    Some(steps.iter().map(level).collect::<Vec<_>>().join("."))
}

fn children<'a>(
    path: &mut Vec<(&'a str, Option<&'a str>)>,
    descriptors: &'a [Descriptor],
    context: &mut Context<'_>,
) -> HashMap<String, Children> {
    let mut by_key: HashMap<String, Children> = HashMap::new();
    for descriptor in descriptors {
        let (key, at) = (descriptor.key.value.as_str(), descriptor.key.referenced);
        if key.is_empty() {
            context.errors.add(context.file, at, "the key is empty");
        }
        if Pattern::is_one(key) {
            let message = format!("`*` in the key `{key}`: only values can have wildcards");
            context.errors.add(context.file, at, message);
        }
        let value = descriptor.value.as_ref().map(|value| value.value.as_str());
        let value = value.filter(|value| !value.is_empty());
        path.push((key, value));
        let rule = rule(path, descriptor, context);
        let children = children(path, &descriptor.descriptors, context);
        let node = Node { rule, value_to_metric: descriptor.value_to_metric, children };
        path.pop();

        let siblings = by_key.entry(key.to_owned()).or_default();
        let shares = descriptor.share_threshold.as_ref();
        if let Some(shares) = shares.filter(|shares| shares.value)
            && !value.is_some_and(Pattern::is_one)
        {
            let message = "`share_threshold` needs a value with `*`";
            context.errors.add(context.file, shares.referenced, message);
        }
        let is_new = match value {
            None => siblings.any.replace(Box::new(node)).is_none(),
            Some(value) if Pattern::is_one(value) => {
                let is_new = siblings.wildcards.iter().all(|wildcard| wildcard.text != value);
                let (text, pattern) = (value.to_owned(), Pattern::new(value));
                let shares = shares.is_some_and(|shares| shares.value);
                siblings.wildcards.push(Wildcard { text, pattern, shares, node });
                is_new
            }
            Some(value) => siblings.exact.insert(value.to_owned(), node).is_none(),
        };
        if !is_new {
            let value = value.map_or(String::new(), |value| format!(" with the value `{value}`"));
            let message = format!("there is another descriptor `{key}`{value}");
            context.errors.add(context.file, at, message);
        }
    }
    by_key
}

fn rule(path: &Path<'_>, descriptor: &Descriptor, context: &mut Context<'_>) -> Option<Rule> {
    let Descriptor { shadow_mode, quota_mode, count_denied, detailed_metric, .. } = *descriptor;
    let known = context.known;
    let mut error = |at, message: &str| context.errors.add(context.file, at, message);
    let (limit, name, replaces) = match (&descriptor.rate_limit, &descriptor.policy) {
        (None, None) => {
            if let Some(metadata) = &descriptor.metadata
                && known.all_fields
            {
                error(metadata.referenced, "`metadata` needs `rate_limit` or `policy`");
            }
            return None;
        }
        (Some(_), Some(policy)) => {
            error(policy.referenced, "a descriptor has either `rate_limit` or `policy`");
            return None;
        }
        (None, Some(policy)) => {
            if known.policies.is_some_and(|policies| policies.get(&policy.value).is_none()) {
                let name = excerpt(&policy.value);
                let message = format!("there is no policy `{name}` in the settings");
                error(policy.referenced, &message);
            }
            if shadow_mode {
                let message = "`shadow_mode` needs `rate_limit`: other routes use the policy, too";
                error(policy.referenced, message);
            }
            (Limit::Policy(policy.value.clone()), String::new(), Vec::new())
        }
        (Some(rate_limit), None) => {
            let at = rate_limit.referenced;
            let rate_limit = &rate_limit.value;
            for replaced in &rate_limit.replaces {
                let name = &replaced.name;
                if name.value.is_empty() {
                    error(name.referenced, "the name is empty");
                } else if name.value == rate_limit.name {
                    error(name.referenced, "a limit cannot replace itself");
                }
            }
            let names = rate_limit.replaces.iter().map(|replaced| replaced.name.value.clone());
            let unit = match &rate_limit.unit {
                None => None,
                Some(unit) => {
                    let parsed = Unit::parse(&unit.value);
                    if parsed.is_none() {
                        let message = format!(
                            "invalid unit `{}`: write second, minute, hour, day, week, month or year",
                            excerpt(&unit.value)
                        );
                        error(unit.referenced, &message);
                    }
                    parsed
                }
            };
            let limit = match (rate_limit.unlimited, unit) {
                (true, None) => Limit::Unlimited,
                (true, Some(_)) => {
                    error(at, "an unlimited descriptor has no `unit`");
                    Limit::Unlimited
                }
                (false, Some(unit)) => {
                    let Some(permits) = rate_limit.requests_per_unit else {
                        error(at, "`requests_per_unit` is missing: 0 denies all requests");
                        return None;
                    };
                    Limit::PerUnit {
                        permits,
                        unit,
                        policy: policy_name(&context.domain.domain.value, path),
                    }
                }
                (false, None) => {
                    if rate_limit.unit.is_none() {
                        error(at, "`unit` is missing");
                    }
                    return None;
                }
            };
            (limit, rate_limit.name.clone(), names.collect())
        }
    };
    let metadata = descriptor.metadata.as_ref();
    let metadata = metadata.map(|metadata| metadata.value.clone()).unwrap_or_default();
    Some(Rule {
        limit,
        name,
        replaces,
        shadow_mode,
        quota_mode,
        count_denied: count_denied.or(context.domain.count_denied),
        detailed_metric,
        metadata,
    })
}
