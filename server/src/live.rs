//! The configuration in use, and its limiters. A reload replaces it as a whole.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use envoy_types::pb::google::protobuf::Any;
use fleetlimit::resolve::ClientIp;
use fleetlimit::{AnyStore, BlockList, ConfigError, Error, Limiter, Policy, Quota};
use futures_util::future;
use indexmap::IndexMap;

use crate::config::{Config, Contents, Errors, Read, Service, Source};
use crate::control_plane::ControlPlane;
use crate::counts::Counts;
use crate::denied::Denied;
use crate::details::Details;
use crate::domain::{Domains, Unit};
use crate::history::{self, History};
use crate::holds::{self, EndedHolds, InFlight, TokenKey};
use crate::lists::Lists;
use crate::near_limit::NearLimit;
use crate::otlp::Traces;
use crate::remembered::Remembered;
use crate::settings::{Checks, FailureMode, Settings};
use crate::telemetry;
use crate::tls::ServerTls;
use crate::warnings::Warnings;

/// The most policies that are remembered after they are gone. Each takes about 10 KiB.
const MAX_GONE: usize = 1_000;
/// Enough to reach most nodes of a cluster.
const KEYS_OF_A_CLUSTER: usize = 16;

/// The state that all requests share.
pub(crate) struct Live {
    active: ArcSwap<Active>,
    pub(crate) store: AnyStore,
    /// The time since 1970 when the counts started.
    pub(crate) started: Duration,
    pub(crate) history: Arc<History>,
    pub(crate) denied: Arc<Denied>,
    pub(crate) details: Details,
    pub(crate) blocked: BlockList,
    /// `None` if other instances could not read the tokens of this one.
    pub(crate) token_key: Option<TokenKey>,
    pub(crate) in_flight: InFlight,
    /// `None` if traces are not exported.
    pub(crate) traces: Option<Traces>,
    /// `None` if the settings name no control plane.
    pub(crate) control_plane: Option<ControlPlane>,
    source: Source,
    tls: Option<Arc<ServerTls>>,
    /// The settings that the process started with.
    started_with: Settings,
    reloads: Mutex<Reloads>,
}

/// The state that lasts from one configuration to the next.
struct Reloads {
    /// The policies in use, and some that are gone, which keep their counts if they come back.
    policies: Remembered<ActivePolicy>,
    /// The files that were reloaded last, also if they were invalid.
    read: Read,
    /// The contents of the files in effect.
    applied: Contents,
    /// The resources in use, once the control plane has sent any.
    received: Option<Vec<Any>>,
}

/// A configuration with its limiters.
pub(crate) struct Active {
    /// The policies of the settings in their order, then those of domains by name.
    policies: IndexMap<String, ActivePolicy>,
    pub(crate) domains: Domains,
    pub(crate) lists: Lists,
    /// The settings in effect: some are still those of the start.
    pub(crate) settings: Settings,
    /// The sections of the files that are not in effect until a restart.
    pub(crate) restart_needed: Vec<&'static str>,
    pub(crate) client_ip: ClientIp,
    pub(crate) ended_holds: EndedHolds,
    pub(crate) warnings: Warnings,
    /// True if the control plane has not sent a configuration yet.
    pub(crate) awaits_control_plane: bool,
}

#[derive(Clone)]
pub(crate) struct ActivePolicy {
    pub(crate) limiter: Limiter,
    name: Arc<str>,
    is_shadow: bool,
    has_holds: bool,
    /// The number of requests per unit, if the policy is one.
    per_unit: Option<(u32, Unit)>,
    /// The decisions since the process started.
    counts: Arc<Counts>,
    near_limit: NearLimit,
}

impl ActivePolicy {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn near_limit(&self) -> &NearLimit {
        &self.near_limit
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn per_unit(&self) -> Option<(u32, Unit)> {
        self.per_unit
    }

    /// Returns true if permits have to be given back.
    pub(crate) fn has_holds(&self) -> bool {
        self.has_holds
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.is_shadow
    }
}

/// The outcome of a reload.
pub(crate) type Reloaded = Result<(), Box<dyn std::error::Error + Send + Sync>>;

impl Live {
    /// # Errors
    ///
    /// If the store cannot hold the policies.
    pub(crate) fn new(
        Service { config, store, tls }: Service,
        read: Read,
        source: Source,
        traces: Option<Traces>,
    ) -> Result<Self, ConfigError> {
        let started_with = config.settings.clone();
        warn_of_large_networks(&started_with);
        let mut policies = Remembered::new(MAX_GONE);
        let active = Active::new(config, &store, &mut policies, Vec::new())?;
        let blocked = BlockList::new(&store);
        let control_plane = started_with.xds.as_ref().map(ControlPlane::new);
        let token_key = match &started_with.holds.secret {
            Some(secret) => Some(TokenKey::new(secret.expose().as_bytes())),
            // What is held in memory ends with the process, too.
            None if matches!(store, AnyStore::Memory(_)) => TokenKey::random(),
            None => None,
        };
        Ok(Self {
            active: ArcSwap::from_pointee(active),
            store,
            started: history::now(),
            history: Arc::default(),
            denied: Arc::default(),
            details: Details::default(),
            blocked,
            token_key,
            in_flight: InFlight::default(),
            traces,
            control_plane,
            source,
            tls,
            started_with,
            reloads: Mutex::new(Reloads {
                policies,
                applied: read.contents().clone(),
                read,
                received: None,
            }),
        })
    }

    /// Requests keep it while they wait, and a guard of `load` is for shorter times.
    pub(crate) fn active(&self) -> Arc<Active> {
        self.active.load_full()
    }

    /// Returns true if checks are decided: by the store, or by the failure mode.
    pub(crate) async fn can_decide(&self) -> bool {
        self.active().settings.checks.failure_mode != FailureMode::Closed
            || self.try_store().await.is_ok()
    }

    /// Asks the store about some keys, whatever the failure mode.
    ///
    /// # Errors
    ///
    /// If none of them is answered. In a cluster, some keys may be answered while others are not.
    pub(crate) async fn try_store(&self) -> Result<(), Error> {
        let active = self.active();
        let Some((_, policy)) = active.policies().next() else { return Ok(()) };
        let is_cluster = !active.settings.store.cluster.is_empty();
        let keys = if is_cluster { KEYS_OF_A_CLUSTER } else { 1 };
        let peek = |n| Box::pin(policy.limiter.peek(format!("readyz-{n}")));
        future::select_ok((0..keys).map(peek)).await.map(|_| ())
    }

    /// Returns true if the control plane has not sent a configuration yet, and the server is not ready without one.
    pub(crate) fn waits_for_control_plane(&self) -> bool {
        let active = self.active();
        active.awaits_control_plane
            && active.settings.xds.as_ref().is_some_and(|xds| !xds.ready_without)
    }

    /// Reads the files again. Consumed permits stay consumed.
    ///
    /// # Errors
    ///
    /// If a file is invalid. The current configuration stays in effect then.
    pub(crate) fn reload(&self) -> Reloaded {
        // Of two reloads, the one that read the files last applies.
        let mut reloads = self.reloads();
        let (read, service) = self.source.load(reloads.received.as_deref());
        self.apply(&mut reloads, read, service)
    }

    /// Replaces the resources of the control plane.
    ///
    /// # Errors
    ///
    /// If a resource is invalid, or conflicts with the files. The current configuration stays in effect then.
    pub(crate) fn receive(&self, resources: Vec<Any>) -> Reloaded {
        let mut reloads = self.reloads();
        let config = self.source.load_received(&resources, &reloads.applied)?;
        // The files are those in effect, and so are their settings.
        let current = self.active();
        let config = Config { settings: current.settings.clone(), ..config };
        let restart_needed = current.restart_needed.clone();
        let active = Active::new(config, &self.store, &mut reloads.policies, restart_needed)?;
        self.active.store(Arc::new(active));
        reloads.received = Some(resources);
        Ok(())
    }

    /// Reads the files again, also those that the last ones did not name. Returns `None` if they are as they were at
    /// the last reload.
    pub(crate) fn changed(&self) -> Option<Read> {
        let reloads = self.reloads();
        reloads.read.has_changed().then(|| self.source.load(reloads.received.as_deref()).0)
    }

    /// Reloads files that have changed, and are still as they were read. Returns `None` if they are not, or if somebody
    /// has reloaded them meanwhile.
    ///
    /// # Errors
    ///
    /// If a file is invalid. The current configuration stays in effect then.
    pub(crate) fn reload_settled(&self, settled: &Read) -> Option<Reloaded> {
        let mut reloads = self.reloads();
        let (read, service) = self.source.load(reloads.received.as_deref());
        let is_due = read == *settled && read != reloads.read;
        is_due.then(|| self.apply(&mut reloads, read, service))
    }

    fn apply(
        &self,
        reloads: &mut Reloads,
        read: Read,
        service: Result<Service, Errors>,
    ) -> Reloaded {
        let result = self.try_apply(reloads, service);
        if result.is_ok() {
            reloads.applied = read.contents().clone();
        }
        reloads.read = read;
        telemetry::reloaded(result.is_ok());
        result
    }

    fn try_apply(&self, reloads: &mut Reloads, service: Result<Service, Errors>) -> Reloaded {
        let Service { mut config, tls, .. } = service?;
        let restart_needed = config.settings.restore(&self.started_with);
        if !config.settings.failure_mode_answers() {
            let current = config.settings.resource_limits.request_timeout;
            return Err(format!(
                "checks.timeout: must be less than resource_limits.request_timeout, which stays {current:?} until a \
                 restart"
            )
            .into());
        }
        warn_of_large_networks(&config.settings);
        let active = Active::new(config, &self.store, &mut reloads.policies, restart_needed)?;
        if !active.restart_needed.is_empty() {
            let settings = active.restart_needed.join(", ");
            tracing::warn!(
                event = "restart_needed",
                settings,
                "some settings have changed that need a restart"
            );
        }
        // Other files need a restart.
        let has_same_files = !active.restart_needed.contains(&"tls");
        self.active.store(Arc::new(active));
        if let (Some(current), Some(new), true) = (&self.tls, tls, has_same_files) {
            current.replace(&new);
        }
        Ok(())
    }

    fn reloads(&self) -> MutexGuard<'_, Reloads> {
        self.reloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Active {
    fn new(
        config: Config,
        store: &AnyStore,
        all: &mut Remembered<ActivePolicy>,
        restart_needed: Vec<&'static str>,
    ) -> Result<Self, ConfigError> {
        let Config { settings, policies, shadow, domains, lists, client_ip, awaits_control_plane } =
            config;
        // By name, because the domains are in another order in each process.
        let mut overrides: Vec<_> = domains.override_names().collect();
        overrides.sort_unstable();
        let overrides = overrides.into_iter().map(|name| {
            // Its numbers are those of the requests.
            Policy::new(name.to_owned()).quota("limit", Quota::per_second(1).calendar())
        });
        let mut active = IndexMap::new();
        for policy in policies.iter().cloned().chain(overrides) {
            let name = policy.name().to_owned();
            let is_shadow = shadow.contains(&name);
            let policy =
                ActivePolicy::new(policy, is_shadow, &settings.checks, store, all.get(&name))?;
            active.insert(name, policy);
        }
        all.replace(active.iter().map(|(name, policy)| (name.clone(), policy.clone())));
        let ended_holds = EndedHolds::new(store, &settings.checks)?;
        Ok(Self {
            policies: active,
            domains,
            lists,
            settings,
            restart_needed,
            client_ip,
            ended_holds,
            warnings: Warnings::default(),
            awaits_control_plane,
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
        let (name, per_unit): (Arc<str>, _) = (policy.name().into(), per_unit(&policy));
        let near_limit = NearLimit::new(&name, checks.near_limit_ratio);
        let has_holds = holds::are_in(&policy);
        if let Some(before) = before {
            before.limiter.update(policy.clone())?;
            if before.is_shadow == is_shadow && checks.are_of(&before.limiter) {
                let (limiter, counts) = (before.limiter.clone(), before.counts.clone());
                return Ok(Self {
                    limiter,
                    name,
                    is_shadow,
                    has_holds,
                    per_unit,
                    counts,
                    near_limit,
                });
            }
        }
        let limiter = Limiter::builder(store.clone(), policy)
            .timeout(checks.timeout)
            .failure_mode(checks.failure_mode.into())
            .cache_denials(checks.cache_denials)
            .enforce_for_percent(if is_shadow { 0.0 } else { 100.0 })
            .build()?;
        let counts = before.map(|before| before.counts.clone()).unwrap_or_default();
        Ok(Self { limiter, name, is_shadow, has_holds, per_unit, counts, near_limit })
    }
}

fn warn_of_large_networks(settings: &Settings) {
    for range in settings.auth.trusted_proxies.iter().filter(|range| range.is_large()) {
        tracing::warn!(
            event = "trusted_network_large",
            %range,
            "a network in `auth.trusted_proxies` is large: a client with an address in it can claim any other. \
             List only the proxies before the gateways, and the gateways in `auth.gateways`"
        );
    }
}

/// The limit as gateways know it.
fn per_unit(policy: &Policy) -> Option<(u32, Unit)> {
    let mut quotas = policy.quotas();
    let ((_, quota), None) = (quotas.next()?, quotas.next()) else { return None };
    let permits = u32::try_from(quota.permits()).ok()?;
    (quota.capacity() == quota.permits()).then_some((permits, Unit::of(quota)?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use fleetlimit::internal::Settling;

    use super::*;
    use crate::config::Origin;

    fn live(settings: &Path) -> Live {
        let source = Source { origin: Origin::File(settings.to_owned()), ..Source::default() };
        let (read, service) = source.load(None);
        Live::new(service.unwrap(), read, source, None).unwrap()
    }

    /// The names of the limits, sorted.
    fn limits(live: &Live) -> Vec<String> {
        let active = live.active();
        let names = active.policies().map(|(name, _)| name.to_owned());
        let mut names: Vec<_> = names.filter(|name| !active.domains.is_override(name)).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_file_that_is_written_in_steps_applies_only_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let [settings, domain] =
            ["settings.yaml", "d.yaml"].map(|name| directory.path().join(name));
        fs::write(&settings, "policies: { old: { q: 1/s } }").unwrap();
        let live = live(&settings);
        let mut settling = Settling::default();
        let mut poll = || settling.read(live.changed()).and_then(|read| live.reload_settled(&read));
        let limits = || limits(&live);
        let complete = "domain: d\ndescriptors:\n- { key: a, rate_limit: { unit: day, requests_per_unit: 1 } }\n\
                        - { key: b, rate_limit: { unit: day, requests_per_unit: 1 } }\n";
        // All of it is valid, and some of it has fewer limits. The settings do not name the other file at first.
        let lines: Vec<_> = complete.split_inclusive('\n').collect();
        fs::write(&settings, "policies: { new: { q: 1/s } }\n").unwrap();
        assert!(poll().is_none());
        fs::write(&settings, "policies: { new: { q: 1/s } }\ndomains: [d.yaml]").unwrap();
        for written in 0..=lines.len() {
            fs::write(&domain, lines[..written].concat()).unwrap();
            assert!(poll().is_none(), "after {written} lines");
            assert_eq!(limits(), ["old"], "after {written} lines");
        }
        assert!(poll().unwrap().is_ok());
        assert_eq!(limits(), ["d.a", "d.b", "new"]);
        assert!(poll().is_none(), "nothing has changed");

        // Changed and changed back.
        fs::write(&domain, lines[..3].concat()).unwrap();
        assert!(poll().is_none());
        fs::write(&domain, complete).unwrap();
        assert!(poll().is_none());
        fs::write(&domain, lines[..3].concat()).unwrap();
        assert!(poll().is_none());
        // A request means the files as they are.
        assert!(live.reload().is_ok());
        assert_eq!(limits(), ["d.a", "new"]);
    }
    #[tokio::test]
    async fn a_config_map_that_kubernetes_swaps_applies_once_and_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path();
        let write = |version: &str, policy: &str| {
            fs::create_dir_all(volume.join(version)).unwrap();
            let settings = format!("policies: {{ {policy}: {{ q: 1/s }} }}\ndomains: [d.yaml]");
            fs::write(volume.join(version).join("settings.yaml"), settings).unwrap();
            let domain = format!(
                "domain: d\ndescriptors:\n- {{ key: {policy}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}"
            );
            fs::write(volume.join(version).join("d.yaml"), domain).unwrap();
        };
        write("..2024_1", "old");
        symlink("..2024_1", volume.join("..data")).unwrap();
        for file in ["settings.yaml", "d.yaml"] {
            symlink(Path::new("..data").join(file), volume.join(file)).unwrap();
        }
        let live = live(&volume.join("settings.yaml"));
        let mut settling = Settling::default();
        let mut poll = || settling.read(live.changed()).and_then(|read| live.reload_settled(&read));
        write("..2024_2", "new");
        assert!(poll().is_none() && poll().is_none(), "the other version is not in use yet");
        symlink("..2024_2", volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        fs::remove_dir_all(volume.join("..2024_1")).unwrap();
        assert!(poll().is_none());
        assert_eq!(limits(&live), ["d.old", "old"]);
        assert!(poll().unwrap().is_ok());
        assert_eq!(limits(&live), ["d.new", "new"]);
        assert!(poll().is_none() && poll().is_none(), "it has been applied");
    }
}
