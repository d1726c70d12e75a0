//! The configuration in use, and its limiters. A reload replaces it as a whole.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate::resolve::ClientIp;
use tollgate::{ConfigError, Limiter, Policy, Quota};

use crate::checker::Answer;
use crate::config::{self, Config, Source};
use crate::denied::Denied;
use crate::domain::{Domains, QUOTA_NAME};
use crate::lists::Lists;
use crate::settings::{Auth, Checks, FailureMode};
use crate::store::AnyStore;

/// What all requests share.
pub(crate) struct Live {
    active: ArcSwap<Active>,
    pub(crate) store: AnyStore,
    pub(crate) denied: Arc<Denied>,
    source: Source,
    reloading: Mutex<()>,
}

/// A configuration with its limiters.
pub(crate) struct Active {
    policies: HashMap<String, ActivePolicy>,
    pub(crate) domains: Domains,
    pub(crate) lists: Lists,
    pub(crate) auth: Auth,
    pub(crate) failure_mode: FailureMode,
    pub(crate) client_ip: ClientIp,
    /// Descriptors in a request, at most.
    pub(crate) max_descriptors: usize,
    paths: Vec<PathBuf>,
    digest: Vec<u8>,
}

pub(crate) struct ActivePolicy {
    pub(crate) limiter: Limiter,
    is_shadow: bool,
    counts: Arc<Counts>,
}

/// Since this process started.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) allowed: AtomicU64,
    pub(crate) denied: AtomicU64,
}

impl ActivePolicy {
    pub(crate) fn count(&self, answer: &Answer) {
        let count = if answer.is_allowed() { &self.counts.allowed } else { &self.counts.denied };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.is_shadow
    }
}

impl Live {
    /// # Errors
    ///
    /// If the store cannot hold the policies.
    pub(crate) fn new(
        config: Config,
        store: AnyStore,
        source: Source,
    ) -> Result<Self, ConfigError> {
        let active = Active::new(config, &store, None)?;
        Ok(Self {
            active: ArcSwap::from_pointee(active),
            store,
            denied: Arc::new(Denied::new()),
            source,
            reloading: Mutex::default(),
        })
    }

    pub(crate) fn active(&self) -> arc_swap::Guard<Arc<Active>> {
        self.active.load()
    }

    /// A hash of the files when the configuration was read from them.
    pub(crate) fn digest(&self) -> Vec<u8> {
        self.active().digest.clone()
    }

    /// A hash of these files as they are now.
    pub(crate) fn digest_of_files(&self) -> Vec<u8> {
        config::digest(&self.active().paths)
    }

    /// Reads the files again. What was consumed stays.
    ///
    /// # Errors
    ///
    /// If a file is invalid. The configuration stays as it is then.
    pub(crate) fn reload(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Of two reloads, the one that read the files last applies.
        let _reloading = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let config = self.source.load()?;
        let active = Active::new(config, &self.store, Some(&self.active()))?;
        self.active.store(Arc::new(active));
        Ok(())
    }
}

impl Active {
    fn new(config: Config, store: &AnyStore, before: Option<&Active>) -> Result<Self, ConfigError> {
        let Config { settings, paths, digest, policies, shadow, domains, lists } = config;
        let overrides = domains.override_names().map(|name| {
            // Its numbers are those of the requests.
            Policy::new(name.to_owned()).quota(QUOTA_NAME, Quota::per_second(1).calendar())
        });
        let all = policies.iter().cloned().chain(overrides);
        let policies = all
            .map(|policy| {
                let name = policy.name().to_owned();
                let before = before.and_then(|active| active.policies.get(&name));
                let is_shadow = shadow.contains(&name);
                ActivePolicy::new(policy, is_shadow, &settings.checks, store, before)
                    .map(|active| (name, active))
            })
            .collect::<Result<_, _>>()?;
        let client_ip = ClientIp::new(&settings.auth.trusted_proxies)?;
        let max_descriptors = settings.limits.descriptors;
        let (auth, failure_mode) = (settings.auth, settings.checks.failure_mode);
        Ok(Self {
            policies,
            domains,
            lists,
            auth,
            failure_mode,
            client_ip,
            max_descriptors,
            paths,
            digest,
        })
    }

    pub(crate) fn policy(&self, name: &str) -> Option<&ActivePolicy> {
        self.policies.get(name)
    }

    pub(crate) fn policies(&self) -> impl Iterator<Item = (&str, &ActivePolicy)> {
        self.policies.iter().map(|(name, policy)| (name.as_str(), policy))
    }
}

impl ActivePolicy {
    fn new(
        policy: Policy,
        is_shadow: bool,
        checks: &Checks,
        store: &AnyStore,
        before: Option<&Self>,
    ) -> Result<Self, ConfigError> {
        if let Some(before) = before {
            before.limiter.update(policy.clone())?;
            if before.is_shadow == is_shadow && checks.are_of(&before.limiter) {
                let (limiter, counts) = (before.limiter.clone(), before.counts.clone());
                return Ok(Self { limiter, is_shadow, counts });
            }
        }
        let limiter = store
            .limiter(policy)
            .timeout(checks.timeout)
            .failure_mode(checks.failure_mode.into())
            .cache_denials(checks.cache_denials)
            .enforce_for_percent(if is_shadow { 0.0 } else { 100.0 })
            .build()?;
        let counts = before.map(|before| before.counts.clone()).unwrap_or_default();
        Ok(Self { limiter, is_shadow, counts })
    }
}
