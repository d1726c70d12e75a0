//! Everything that is wrong with policies. It is here because each algorithm decides which quotas it can represent.

use super::{Limit, Limits};
use crate::{ConfigError, Policy, PolicySet};

impl PolicySet {
    /// Checks all policies.
    ///
    /// # Errors
    ///
    /// If a policy is invalid. The text lists all errors, one per line.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::all_or_nothing(self.iter().flat_map(policy_errors).collect())
    }
}

/// Some time after 1970: a calendar has windows at all of them.
const ANY_TIME: u64 = 1 << 50;

/// Returns everything that is wrong with a policy. An element may have several lines.
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
                "policy `p` has 17 sliding windows, calendars and concurrent quotas",
                "policy `p`: quota `0`: 0 permits",
            ],
        );
    }
}
