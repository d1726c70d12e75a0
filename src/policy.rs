use std::borrow::Cow;

use crate::{ConfigError, Quota};

/// What a limiter enforces: a name, and the quota under it.
///
/// The name tells the buckets of one policy from those of another for the same caller, in Redis
/// and in the response's `RateLimit` fields; give each limiter that has a resolver of its own a
/// name of its own. Limiters of the same name and store share their buckets, whichever process
/// they are in.
///
/// A [`Quota`] alone is a policy named `default` with a quota named `default`.
///
/// Names are 1 to 64 characters out of `A-Z a-z 0-9 . _ -`; another is a
/// [`ConfigError`](crate::ConfigError) from [`Limiter::new`](crate::Limiter::new), and so is a
/// policy without a quota. For the present a policy has exactly one.
///
/// ```
/// use tollgate::{Policy, Quota};
///
/// let search = Policy::new("search").quota("burst", Quota::per_second(10).burst(20));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    pub(crate) name: Cow<'static, str>,
    pub(crate) quotas: Vec<(Cow<'static, str>, Quota)>,
}

impl Policy {
    /// A policy with no quota yet.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), quotas: Vec::new() }
    }

    /// Adds a quota under a name, which the response's `RateLimit` field shows.
    #[must_use]
    pub fn quota(mut self, name: impl Into<Cow<'static, str>>, quota: Quota) -> Self {
        self.quotas.push((name.into(), quota));
        self
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::new("default").quota("default", quota)
    }
}

/// A name is written into keys and into structured fields as it is.
pub(crate) fn valid_name(what: &str, name: &str) -> Result<(), ConfigError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "the {what} name {name:?} must be 1 to 64 characters out of A-Z a-z 0-9 . _ -"
    )))
}
