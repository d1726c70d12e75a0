use crate::algorithm::{Limit, Limits};
use crate::{ConfigError, Policy};

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
pub struct PolicySet(Vec<Policy>);

impl PolicySet {
    /// Without policies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a policy. It replaces one of the same name.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.0.retain(|other| other.name() != policy.name());
        self.0.push(policy);
        self
    }

    /// The policy with this name.
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.0.iter().find(|policy| policy.name() == name)
    }

    /// The policies, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.0.iter()
    }

    /// Checks all policies.
    ///
    /// # Errors
    ///
    /// If a policy is invalid. The text lists all errors, one per line.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::all_or_nothing(self.0.iter().flat_map(policy_errors).collect())
    }
}

/// Any time after 1970: a calendar has windows at all of them.
const ANY_TIME: u64 = 1 << 50;

/// Everything that is wrong with a policy. An element may have several lines.
pub(crate) fn policy_errors(policy: &Policy) -> Vec<String> {
    let mut errors: Vec<_> = policy.validate().err().iter().map(ToString::to_string).collect();
    let quotas =
        policy.quotas().filter_map(|(name, quota)| Limit::new(name, quota, ANY_TIME).err());
    errors.extend(quotas.map(|error| format!("policy `{}`: {error}", policy.name())));
    // This finds different names with the same hash, which are too rare to look for in a policy that
    // is invalid anyway.
    if errors.is_empty() {
        errors.extend(Limits::new(policy, ANY_TIME).err().iter().map(ToString::to_string));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;

    #[track_caller]
    fn assert_errors(set: &PolicySet, expected: &[&str]) {
        let error = set.validate().unwrap_err().to_string();
        let lines: Vec<_> = error.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{error}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line} instead of {expected}");
        }
    }

    #[test]
    fn all_errors_of_all_policies_are_listed() {
        let set = PolicySet::new()
            .policy(Policy::new("good").quota("a", Quota::per_second(1)))
            .policy(Policy::new("bad name").quota("a", Quota::per_second(1)))
            .policy(Policy::new("empty"))
            .policy(
                Policy::new("two").quota("a", Quota::per_second(0)).quota("b", Quota::per_day(0)),
            )
            .policy(
                Policy::new("twice").quota("a", Quota::per_day(1)).quota("a", Quota::per_day(1)),
            );
        assert_errors(
            &set,
            &[
                "invalid policy name \"bad name\"",
                "policy `empty` has 0 quotas",
                "policy `two`: quota `a`: 0 permits",
                "policy `two`: quota `b`: 0 permits",
                "quota `a` of policy `twice`: another has the same name",
            ],
        );
    }

    #[test]
    fn an_invalid_name_does_not_hide_the_other_errors_of_its_policy() {
        let policy = Policy::new("bad name")
            .quota("a", Quota::per_day(0))
            .quota("b c", Quota::per_day(1))
            .quota("d,e", Quota::per_day(0))
            .quota("a", Quota::per_day(1));
        assert_errors(
            &PolicySet::new().policy(policy),
            &[
                "invalid policy name \"bad name\"",
                "policy `bad name`: invalid quota name \"b c\"",
                "policy `bad name`: invalid quota name \"d,e\"",
                "quota `a` of policy `bad name`: another has the same name",
                "policy `bad name`: quota `a`: 0 permits",
                "policy `bad name`: quota `d,e`: 0 permits",
            ],
        );
    }

    #[test]
    fn too_many_quotas_do_not_hide_the_invalid_one_among_them() {
        let quota = |n: u64| Quota::per_day(n).approximate_sliding_window();
        let add = |policy: Policy, n: u64| policy.quota(n.to_string(), quota(n));
        let policy = (0..17).fold(Policy::new("p"), add);
        assert_errors(
            &PolicySet::new().policy(policy),
            &[
                "policy `p` has 17 quotas",
                "policy `p` has 17 sliding windows and calendars",
                "policy `p`: quota `0`: 0 permits",
            ],
        );
    }

    #[test]
    fn a_policy_replaces_one_of_the_same_name() {
        let policy = |n| Policy::new("a").quota("q", Quota::per_second(n));
        let set = PolicySet::new().policy(policy(1)).policy(policy(2));
        assert_eq!((set.iter().count(), set.get("a")), (1, Some(&policy(2))));
    }
}
