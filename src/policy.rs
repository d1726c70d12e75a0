use std::borrow::Cow;

use crate::{ConfigError, Quota};

/// What a limiter enforces: a named set of quotas.
///
/// The policy's name keeps its buckets apart from those of other policies for the same key. It is
/// part of the name of the key in Redis. Limiters with the same policy name on the same store share
/// their buckets, in all processes. A second limiter with the same name but different quotas is an
/// error, checked among the limiters on one store and its clones in one process. The quota's name
/// is the one that clients see in the `RateLimit` and `RateLimit-Policy` fields.
///
/// A bare [`Quota`] becomes a policy named `default` with a quota named `default`. Give every policy
/// a name if there is more than one on a store.
///
/// Names have 1 to 64 characters out of `A-Z a-z 0-9 . _ -`. Other names, and a policy without a
/// quota, are a [`ConfigError`](crate::ConfigError) from [`Limiter::new`](crate::Limiter::new). For
/// now a policy has exactly one quota.
///
/// ```
/// use tollgate::{Policy, Quota};
///
/// let search = Policy::new("search").quota("rate", Quota::per_second(10).burst(20));
/// assert_eq!(search.name(), "search");
/// assert_eq!(search.quotas().next(), Some(("rate", &Quota::per_second(10).burst(20))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    name: Cow<'static, str>,
    quotas: Vec<(Cow<'static, str>, Quota)>,
}

impl Policy {
    /// A policy without quotas.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), quotas: Vec::new() }
    }

    /// Adds a quota. Clients see its name in the `RateLimit` fields. For now exactly one is
    /// required.
    #[must_use]
    pub fn quota(mut self, name: impl Into<Cow<'static, str>>, quota: Quota) -> Self {
        self.quotas.push((name.into(), quota));
        self
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The quotas and their names.
    pub fn quotas(&self) -> impl Iterator<Item = (&str, &Quota)> {
        self.quotas.iter().map(|(name, quota)| (&**name, quota))
    }

    /// Whether the names are valid, and there is one quota.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check_name("policy", &self.name)?;
        let [(name, _)] = self.quotas.as_slice() else {
            return Err(ConfigError::new(format!(
                "policy `{}` has {} quotas: give it exactly one",
                self.name,
                self.quotas.len()
            )));
        };
        check_name("quota", name)
    }
}

impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::new(Quota::DEFAULT_NAME).quota(Quota::DEFAULT_NAME, quota)
    }
}

/// Names go into keys, structured fields and JSON without escaping.
fn check_name(what: &str, name: &str) -> Result<(), ConfigError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "invalid {what} name {name:?}: use 1 to 64 of the characters A-Z a-z 0-9 . _ -"
    )))
}
