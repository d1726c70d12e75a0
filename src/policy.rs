use std::borrow::Cow;

use crate::{ConfigError, Quota};

/// A named set of quotas, which a limiter enforces together.
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
/// Names have 1 to 64 characters out of `A-Z a-z 0-9 . _ -`. The names of quotas are unique in a
/// policy. A policy has 1 to 16 quotas. At most 8 of them can be sliding windows (exact or approximate)
/// or calendar windows. Anything else is a [`ConfigError`](crate::ConfigError) from
/// [`Limiter::new`](crate::Limiter::new).
///
/// # Several quotas
///
/// A check takes permits from all quotas, or from none: a denial by one of them leaves the others as
/// they are. On Redis they are kept in one key and decided in one call.
///
/// ```
/// use fleetlimit::{Policy, Quota};
///
/// let search = Policy::new("search")
///     .quota("second", Quota::per_second(10))
///     .quota("minute", Quota::per_minute(100))
///     .quota("day", Quota::per_day(1_000));
/// ```
///
/// An [update](crate::Limiter::update) can add and remove quotas. A quota keeps what was consumed
/// as long as its name and its algorithm stay the same: you can change the permits, the period, the
/// burst, the number of segments and what may be borrowed, and switch between
/// [`fixed_window`](crate::Quota::fixed_window) and [`calendar`](crate::Quota::calendar). If the
/// algorithm changes, the quota starts full, and during a rolling deployment old and new instances
/// count separately.
///
/// A [`queue`](crate::Quota::queue) is a token bucket, so adding or removing it does
/// not change the algorithm.
///
/// One exception: a policy whose only quota is a token bucket does not store the quota's name. If
/// quotas are added to it, what was consumed belongs to the first token bucket with the same number of
/// permits per time or, if there is none, to the first token bucket. So do not change that number in the
/// same update.
///
/// # Examples
///
/// ```
/// use fleetlimit::{Policy, Quota};
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
    /// The script has variables for each quota, and Lua at most 200. Sliding windows,
    /// calendars and concurrent quotas need the most.
    const MAX_QUOTAS: usize = 16;
    const MAX_LARGE: usize = 8;

    /// A policy without quotas.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), quotas: Vec::new() }
    }

    /// Adds a quota. Clients see its name in the `RateLimit` fields. [`Decision::quotas`] keeps the
    /// order.
    ///
    /// [`Decision::quotas`]: crate::Decision::quotas
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

    /// Returns the policy with another quota in place of the only one. `None` if there are several.
    pub(crate) fn with_only(&self, quota: Quota) -> Option<Self> {
        let [(name, _)] = &*self.quotas else { return None };
        Some(Self { name: self.name.clone(), quotas: vec![(name.clone(), quota)] })
    }

    /// Checks the names and the number of quotas. The error lists all errors, one per line.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let mut errors: Vec<_> = name_error("policy", &self.name).into_iter().collect();
        let quotas = self.quotas.len();
        if !(1..=Self::MAX_QUOTAS).contains(&quotas) {
            errors.push(format!(
                "policy `{}` has {quotas} quotas: give it 1 to {}",
                self.name,
                Self::MAX_QUOTAS
            ));
        }
        let large =
            |quota: &Quota| quota.is_sliding() || quota.is_calendar() || quota.is_concurrent();
        let large = self.quotas.iter().filter(|(_, quota)| large(quota)).count();
        if large > Self::MAX_LARGE {
            errors.push(format!(
                "policy `{}` has {large} sliding windows, calendars and concurrent quotas: give it at most {}",
                self.name,
                Self::MAX_LARGE
            ));
        }
        let has = |kind: fn(&Quota) -> bool| self.quotas.iter().any(|(_, quota)| kind(quota));
        if has(Quota::is_queue) && has(Quota::is_concurrent) {
            errors.push(format!(
                "policy `{}` has a queue and a concurrent quota: use a policy for each, because a check that waits in \
                 a queue would hold its permit meanwhile",
                self.name
            ));
        }
        for (index, (name, _)) in self.quotas().enumerate() {
            if let Some(error) = name_error("quota", name) {
                errors.push(format!("policy `{}`: {error}", self.name));
            }
            if self.quotas().take(index).any(|(other, _)| other == name) {
                errors.push(format!(
                    "quota `{name}` of policy `{}`: another has the same name: choose another name",
                    self.name
                ));
            }
        }
        ConfigError::all_or_nothing(errors)
    }
}

impl From<Quota> for Policy {
    fn from(quota: Quota) -> Self {
        Self::new(Quota::DEFAULT_NAME).quota(Quota::DEFAULT_NAME, quota)
    }
}

/// Names go into keys, structured fields and JSON without escaping.
fn name_error(what: &str, name: &str) -> Option<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_valid = (1..=64).contains(&name.len()) && name.bytes().all(is_allowed);
    (!is_valid).then(|| {
        format!("invalid {what} name {name:?}: use 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    })
}
