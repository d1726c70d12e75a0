//! Limiters whose policies come from a file.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Limiter, LimiterBuilder};
use crate::store::Store;
use crate::{ConfigError, Policy, PolicySet};

/// The limiters of a service, with policies by name that can be reloaded while it runs.
///
/// A policy in the set, which usually comes from a file, overrides the one of the same name in the
/// code. [`reload`](Self::reload) changes the numbers of all limiters and keeps what was consumed,
/// as [`Limiter::update`] does, unless an algorithm changes. An invalid set changes nothing. Clones
/// share everything.
///
/// A limiter is in use from [`get`](Self::get) or [`limiter`](Self::limiter) on, for as long as the
/// `Limiters` live: a set without the policy of a limiter from `get` is invalid. If the code names quotas, as
/// with [`Costs::with`](crate::Costs::with), every version of the file needs these names: checks whose
/// costs name a quota that the policy does not have fail with
/// [`UnknownQuota`](crate::ErrorKind::UnknownQuota), in every failure mode, and a layer responds with 503.
///
/// ```
/// use fleetlimit::{Limiters, MemoryStore, Policy, PolicySet, Quota};
///
/// let search = |n| Policy::new("search").quota("second", Quota::per_second(n));
///
/// let limiters = Limiters::new(MemoryStore::new(), PolicySet::new())?;
/// // The numbers in the code apply unless the file has a policy of this name.
/// let limiter = limiters.limiter(search(10))?;
///
/// // Later, from a new version of the file.
/// limiters.reload(PolicySet::new().policy(search(20)))?;
/// assert_eq!(*limiter.policy(), search(20));
///
/// // The code's numbers apply again if the file does not have the policy any more.
/// limiters.reload(PolicySet::new())?;
/// assert_eq!(*limiter.policy(), search(10));
/// # Ok::<(), fleetlimit::ConfigError>(())
/// ```
///
/// With the feature `serde`, and a crate for the format:
///
/// ```
/// # #[cfg(feature = "serde")]
/// # fn start() -> Result<(), Box<dyn std::error::Error>> {
/// use fleetlimit::{Limiters, PolicySet, RedisStore};
///
/// let parse = |text: &str| toml::from_str::<PolicySet>(text);
/// let file = "limits.toml";
/// let store = RedisStore::open("redis://127.0.0.1:6379")?;
/// let limiters = Limiters::new(store, parse(&std::fs::read_to_string(file)?)?)?;
/// let search = limiters.get("search")?;
/// // Reloads the file when it changes, for as long as this lives.
/// let watch = limiters.watch(file, parse)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Limiters(Arc<LimitersInner>);

struct LimitersInner {
    store: Arc<dyn Store>,
    state: Mutex<PoliciesInUse>,
    /// Held while a file is read and applied: of two versions, the one that was read last applies.
    reading: Mutex<()>,
}

struct PoliciesInUse {
    set: PolicySet,
    /// By the name of the policy.
    used: BTreeMap<String, Used>,
}

struct Used {
    limiter: Limiter,
    /// The policy in the code.
    default: Option<Policy>,
}

impl Limiters {
    /// Limiters on a store.
    ///
    /// # Errors
    ///
    /// If a policy of the set is invalid. The text lists all errors, one per line.
    pub fn new(store: impl Store, set: PolicySet) -> Result<Self, ConfigError> {
        set.validate()?;
        let state = Mutex::new(PoliciesInUse { set, used: BTreeMap::new() });
        let reading = Mutex::default();
        Ok(Self(Arc::new(LimitersInner { store: Arc::new(store), state, reading })))
    }

    /// A limiter with the policy of this name in the set.
    ///
    /// # Errors
    ///
    /// If there is none, and as for [`limiter`](Self::limiter).
    pub fn get(&self, name: &str) -> Result<Limiter, ConfigError> {
        let policy = self.state().set.get(name).cloned();
        let policy = policy.ok_or_else(|| {
            let names: Vec<_> = self.names();
            ConfigError::new(format!(
                "there is no policy `{name}` (only {}): add it to the file, or give its numbers in the \
                 code with `limiter`",
                names.join(", ")
            ))
        })?;
        self.build(policy, None, |builder| builder)
    }

    /// A limiter with the set's policy of the same name as `default` or, if there is none, with
    /// `default`. Both must be valid.
    ///
    /// # Errors
    ///
    /// As for [`LimiterBuilder::build`].
    pub fn limiter(&self, default: impl Into<Policy>) -> Result<Limiter, ConfigError> {
        self.limiter_with(default, |builder| builder)
    }

    /// Like [`limiter`](Self::limiter), with other settings.
    ///
    /// ```
    /// use fleetlimit::{FailureMode, Limiters, MemoryStore, Policy, PolicySet, Quota};
    ///
    /// let limiters = Limiters::new(MemoryStore::new(), PolicySet::new())?;
    /// let login = Policy::new("login").quota("failures", Quota::per_hour(5));
    /// let login = limiters.limiter_with(login, |builder| builder.failure_mode(FailureMode::Closed))?;
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`LimiterBuilder::build`].
    pub fn limiter_with(
        &self,
        default: impl Into<Policy>,
        settings: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
    ) -> Result<Limiter, ConfigError> {
        let default = default.into();
        let policy = self.state().set.get(default.name()).cloned();
        self.build(policy.unwrap_or_else(|| default.clone()), Some(default), settings)
    }

    /// Replaces the set, and changes all limiters to its numbers.
    ///
    /// Policies that no limiter uses are logged as a warning: their names may be misspelled.
    ///
    /// # Errors
    ///
    /// If a policy is invalid, or one is missing that is in use and that the code does not define.
    /// The text lists all errors, one per line, and nothing changes.
    pub fn reload(&self, set: PolicySet) -> Result<(), ConfigError> {
        let mut state = self.state();
        let mut errors: Vec<_> = set.validate().err().iter().map(ToString::to_string).collect();
        let mut updates = Vec::new();
        for (name, Used { limiter, default }) in &state.used {
            match set.get(name).or(default.as_ref()) {
                Some(policy) => updates.push((limiter, policy)),
                None => errors.push(format!("policy `{name}` is in use, but not there any more")),
            }
        }
        ConfigError::all_or_nothing(errors)?;
        // All policies are valid, so that all of them are changed.
        updates.iter().try_for_each(|(limiter, policy)| limiter.update((*policy).clone()))?;
        state.set = set;
        drop(state);
        for name in self.unused() {
            let message = "no route uses this policy of the file";
            tracing::warn!(target: "fleetlimit", event = "policy_unused", policy = name, "{message}");
        }
        Ok(())
    }

    /// Reads a file, and [reloads](Self::reload) what `parse` makes of it. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or parsed, and as for [`reload`](Self::reload). Nothing changes then.
    /// If `parse` fails, there is only its error: a missing policy that is in use is reported when
    /// the file can be parsed.
    pub fn reload_file<E: Display>(
        &self,
        path: impl AsRef<Path>,
        parse: impl FnOnce(&str) -> Result<PolicySet, E>,
    ) -> Result<(), ConfigError> {
        let path = path.as_ref();
        let _reading = self.start_reading();
        let error = |error: &dyn Display| ConfigError::new(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|read| error(&read))?;
        let set = parse(&text).map_err(|parse| error(&parse))?;
        self.reload(set).map_err(|reload| error(&reload))
    }

    /// The names of the policies in the set that no limiter uses. Call it when all routes are there: a
    /// name may be misspelled.
    pub fn unused(&self) -> Vec<String> {
        let state = self.state();
        let names = state.set.iter().map(|policy| policy.name().to_owned());
        names.filter(|name| !state.used.contains_key(name)).collect()
    }

    pub(super) fn is_set(&self, set: &PolicySet) -> bool {
        self.state().set == *set
    }

    pub(super) fn start_reading(&self) -> MutexGuard<'_, ()> {
        self.0.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> Vec<String> {
        self.state().set.iter().map(|policy| format!("`{}`", policy.name())).collect()
    }

    fn build(
        &self,
        policy: Policy,
        default: Option<Policy>,
        settings: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
    ) -> Result<Limiter, ConfigError> {
        // A default that never applies until the file changes has to be valid too.
        if let Some(default) = &default {
            PolicySet::new().policy(default.clone()).validate()?;
        }
        let name = policy.name().to_owned();
        let builder = settings(LimiterBuilder::new(self.0.store.clone(), policy));
        let mut state = self.state();
        // There may be another set by now.
        let builder = match state.set.get(&name) {
            Some(policy) => builder.policy(policy.clone()),
            None => builder,
        };
        let limiter = builder.build()?;
        let earlier = state.used.remove(&name).and_then(|used| used.default);
        let used = Used { limiter: limiter.clone(), default: default.or(earlier) };
        state.used.insert(name, used);
        Ok(limiter)
    }

    fn state(&self) -> MutexGuard<'_, PoliciesInUse> {
        // Nothing that panics leaves it half changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Limiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Limiters")
            .field("store", &self.0.store)
            .field("set", &state.set)
            .field("used", &state.used.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, Quota};

    fn policy(name: &'static str, n: u64) -> Policy {
        Policy::new(name).quota("q", Quota::per_day(n))
    }

    #[tokio::test]
    async fn the_file_overrides_the_code_and_a_reload_keeps_what_was_consumed() {
        let set = PolicySet::new().policy(policy("a", 3));
        let limiters = Limiters::new(MemoryStore::new(), set).unwrap();
        let (a, b) = (limiters.limiter(policy("a", 9)).unwrap(), limiters.limiter(policy("b", 9)));
        assert_eq!(a.check_cost("key", 3).await.unwrap().remaining(), 0);
        assert_eq!(b.unwrap().check_cost("key", 3).await.unwrap().remaining(), 6);
        assert!(limiters.unused().is_empty());

        limiters.reload(PolicySet::new().policy(policy("a", 6)).policy(policy("c", 1))).unwrap();
        assert_eq!(a.peek("key").await.unwrap().remaining(), 3);
        assert_eq!(limiters.unused(), ["c"]);
        limiters.reload(PolicySet::new()).unwrap();
        assert_eq!(a.peek("key").await.unwrap().limit(), 9);
    }

    #[tokio::test]
    async fn an_invalid_set_changes_nothing_and_lists_all_errors() {
        let set = PolicySet::new().policy(policy("a", 3)).policy(policy("b", 3));
        let limiters = Limiters::new(MemoryStore::new(), set).unwrap();
        let (a, b) = (limiters.get("a").unwrap(), limiters.get("b").unwrap());
        let error = limiters.get("c").unwrap_err().to_string();
        assert!(error.contains("no policy `c` (only `a`, `b`)"), "{error}");

        let invalid = PolicySet::new().policy(policy("b", 5)).policy(policy("c", 0));
        let error = limiters.reload(invalid).unwrap_err().to_string();
        let lines: Vec<_> = error.lines().collect();
        assert_eq!(lines.len(), 2, "{error}");
        assert!(lines[0].contains("policy `c`: quota `q`: 0 permits"), "{error}");
        assert!(lines[1].contains("policy `a` is in use"), "{error}");
        for limiter in [a, b] {
            assert_eq!(limiter.peek("key").await.unwrap().limit(), 3);
        }
        assert!(
            Limiters::new(MemoryStore::new(), PolicySet::new().policy(policy("a", 0))).is_err()
        );
        assert!(limiters.limiter(policy("b", 0)).is_err(), "also if the file overrides it");
    }
}
