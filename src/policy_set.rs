use std::collections::HashSet;

use crate::Policy;

/// Policies by name, as in a configuration file.
///
/// With the feature `serde` it is deserialized from a map of policies, each a map of quotas as
/// [text](crate::Quota#text). This works for any format, such as TOML. It fails if a policy is
/// invalid or a name occurs twice. The error lists everything that is wrong, one per line. If the
/// format's crate cannot read the file, there is only the error of that crate.
///
/// ```toml
/// [search]
/// second = "10/s burst 20"
/// day = "1000/day calendar"
///
/// [login]
/// failures = "5/15min fixed"
/// ```
///
/// [`Limiters`](crate::Limiters) gives the policies to routes, and reloads them.
///
/// ```
/// use fleetlimit::{Policy, PolicySet, Quota};
///
/// let set = PolicySet::new()
///     .policy(Policy::new("search").quota("second", Quota::per_second(10).burst(20)))
///     .policy(Policy::new("login").quota("failures", Quota::per_hour(5)));
/// assert_eq!(set.get("login").unwrap().quotas().count(), 1);
/// assert!(set.validate().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySet {
    policies: Vec<Policy>,
    /// The names of all policies, so that adding many of them does not take long.
    names: HashSet<String>,
}

impl PolicySet {
    /// Returns a set without policies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a policy. It replaces one of the same name.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        if !self.names.insert(policy.name().to_owned()) {
            self.policies.retain(|other| other.name() != policy.name());
        }
        self.policies.push(policy);
        self
    }

    /// The policy with this name.
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name() == name)
    }

    /// The policies, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;

    #[test]
    fn a_policy_replaces_one_of_the_same_name() {
        let policy = |n| Policy::new("a").quota("q", Quota::per_second(n));
        let set = PolicySet::new().policy(policy(1)).policy(policy(2));
        assert_eq!((set.iter().count(), set.get("a")), (1, Some(&policy(2))));
    }
}
