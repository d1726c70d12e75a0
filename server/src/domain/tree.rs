//! The descriptors of a domain, by the keys and values that they match.

use std::collections::{HashMap, HashSet};

use fleetlimit::Key;

use super::context::Context;
use super::format::Descriptor;
use super::pattern::Pattern;
use super::rule::{Limit, Rule};
use crate::secret::excerpt;

#[derive(Debug, Default)]
pub(super) struct Node {
    rule: Option<Rule>,
    /// True if metrics tell its values apart.
    value_to_metric: bool,
    children: HashMap<String, Children>,
}

/// The descriptors with one key.
#[derive(Debug, Default)]
struct Children {
    exact: HashMap<String, Node>,
    wildcards: Vec<Wildcard>,
    /// The texts of the wildcards.
    texts: HashSet<String>,
    any: Option<Box<Node>>,
}

#[derive(Debug)]
struct Wildcard {
    text: String,
    pattern: Pattern,
    shares: bool,
    node: Node,
}

/// The limit that applies to a descriptor of a request.
#[derive(Debug)]
pub(crate) struct Match<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) key: Key,
    /// The name of the descriptor in metrics, if they tell values apart.
    pub(crate) label: Option<String>,
}

impl Node {
    /// Adds the descriptors of a file, with everything that is wrong with them among the errors.
    pub(super) fn add(&mut self, context: &mut Context<'_>) {
        let domain = context.domain;
        add_children(&mut self.children, &domain.descriptors, context);
    }

    /// Finds the limit of a descriptor. An exact value is preferred to a wildcard, and a wildcard to any value. There
    /// is no way back: if the next entry does not match below, no limit applies.
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
            steps.push(MatchedEntry { key, value, matched, value_to_metric: next.value_to_metric });
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
struct MatchedEntry<'a> {
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

/// The key that is counted: the values, or the wildcard that they share a limit by. Others use the policies of
/// the settings, so for these the keys are a part, too.
fn key(rule: &Rule, steps: &[MatchedEntry<'_>]) -> Key {
    let counted = |step: &MatchedEntry<'_>| match step.matched {
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

/// The name of the descriptor in metrics, if they tell values apart.
fn label(rule: &Rule, steps: &[MatchedEntry<'_>]) -> Option<String> {
    if !rule.detailed_metric && !steps.iter().any(|step| step.value_to_metric) {
        return None;
    }
    let level = |step: &MatchedEntry<'_>| {
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

fn add_children<'a>(
    by_key: &mut HashMap<String, Children>,
    descriptors: &'a [Descriptor],
    context: &mut Context<'a>,
) {
    for descriptor in descriptors {
        let (key, at) = (descriptor.key.value.as_str(), descriptor.key.referenced);
        let value = descriptor.value.as_ref().map(|value| value.value.as_str());
        let value = value.filter(|value| !value.is_empty());
        context.path.push((key, value));
        if key.is_empty() {
            context.error(at, "the key is empty");
        }
        // Control planes name keys after routes, some of which end with `*`. In a file, it is probably a mistake.
        if Pattern::is_one(key) && !context.domain.is_resource {
            let key = excerpt(key);
            let message = format!("`*` in the key `{key}`: only values can have wildcards");
            context.error(at, message);
        }
        let rule = Rule::new(descriptor, context);
        let mut children = HashMap::new();
        add_children(&mut children, &descriptor.descriptors, context);
        let node = Node { rule, value_to_metric: descriptor.value_to_metric, children };

        let siblings = by_key.entry(key.to_owned()).or_default();
        let shares = descriptor.share_threshold.as_ref();
        if let Some(shares) = shares.filter(|shares| shares.value)
            && !value.is_some_and(Pattern::is_one)
        {
            let message = "`share_threshold` needs a value with `*`";
            context.error(shares.referenced, message);
        }
        let is_new = match value {
            None => siblings.any.replace(Box::new(node)).is_none(),
            Some(value) if Pattern::is_one(value) => {
                let is_new = siblings.texts.insert(value.to_owned());
                let (text, pattern) = (value.to_owned(), Pattern::new(value));
                let shares = shares.is_some_and(|shares| shares.value);
                siblings.wildcards.push(Wildcard { text, pattern, shares, node });
                is_new
            }
            Some(value) => siblings.exact.insert(value.to_owned(), node).is_none(),
        };
        if !is_new {
            let value = value
                .map_or(String::new(), |value| format!(" with the value `{}`", excerpt(value)));
            let message = format!("there is another descriptor `{}`{value}", excerpt(key));
            context.error(at, message);
        }
        context.path.pop();
    }
}
