//! Names of policies for limits that have none.

use sha2::{Digest, Sha256};

/// Maximum length of a policy name.
const MAX_LEN: usize = 64;
/// Number of hex digits of the hash.
const HASH_LEN: usize = 12;

/// No name without a hash has this in it.
const BEFORE_HASH: &str = "...";

/// The keys of descriptors from the outermost one, each with its value if it has one.
pub(super) type DescriptorPath<'a> = [(&'a str, Option<&'a str>)];

/// A readable name that no other path has, such as `api.user.anna..plan`. If not all of the path can
/// be in a name, as much of it as there is room for, and a hash.
pub(super) fn policy_name(domain: &str, path: &DescriptorPath<'_>) -> String {
    let levels: Vec<_> = path
        .iter()
        .map(|(key, value)| value.map_or((*key).to_owned(), |value| format!("{key}.{value}")))
        .collect();
    let text = format!("{domain}.{}", levels.join(".."));
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut parts = path.iter().flat_map(|(key, value)| [Some(*key), *value]).flatten();
    let is_readable = |part: &str| !part.is_empty() && part.chars().all(is_valid);
    if is_readable(domain) && parts.all(is_readable) && text.len() <= MAX_LEN {
        return text;
    }
    let hash = format!("{:x}", Sha256::digest(format!("{domain:?} {path:?}")));
    let valid = text.chars().map(|c| if is_valid(c) || c == '.' { c } else { '-' });
    let kept: String = valid.take(MAX_LEN - BEFORE_HASH.len() - HASH_LEN).collect();
    format!("{kept}{BEFORE_HASH}{}", &hash[..HASH_LEN])
}

/// The name of the policy for limits sent in requests to a domain.
pub(super) fn override_name(domain: &str) -> String {
    policy_name(domain, &[("", None), ("override", None)])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use fleetlimit::{Policy, PolicySet, Quota};

    use super::*;

    #[test]
    fn different_paths_have_different_valid_names() {
        let long = "x".repeat(300);
        let paths: &[(&str, &DescriptorPath<'_>)] = &[
            ("a", &[("b", Some("c"))]),
            ("a", &[("b", None), ("c", None)]),
            ("a", &[("b.c", None)]),
            ("a.b", &[("c", None)]),
            ("a", &[("b_c", None)]),
            ("a", &[("b", Some("*"))]),
            ("a", &[("b", Some("-"))]),
            ("a", &[("b", Some("ü"))]),
            ("a", &[("b", Some(&long))]),
            ("a", &[("b", Some(&long)), ("y", None)]),
            ("a", &[]),
        ];
        let names: HashSet<_> =
            paths.iter().map(|(domain, path)| policy_name(domain, path)).collect();
        assert_eq!(names.len(), paths.len(), "{names:?}");
        for name in names {
            let policy = Policy::new(name.clone()).quota("q", Quota::per_day(1));
            assert!(PolicySet::new().policy(policy).validate().is_ok(), "{name}");
        }
        let name = policy_name("api", &[("user", Some("anna")), ("plan", None)]);
        assert_eq!(name, "api.user.anna..plan");
    }
}
