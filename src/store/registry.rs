//! The policies in use on a store, and the other things that its limiters share.
//!
//! A policy name has one meaning on a store, because two limiters of the same name share buckets: with
//! different quotas the limit of a key would depend on which one is asked. So the second one is a
//! `ConfigError` while the first one lives, and an update is passed on to every limiter of that name. The
//! references are weak: a name is free again when its last limiter is dropped. A second store on the same
//! server has a registry of its own. → `tests/it/traps.rs`

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::{RevisionStates, StateCache};
use crate::{ConfigError, Policy};

/// The policies and the cached states that the clones of a store share.
#[derive(Default)]
pub struct Registry {
    policies: Mutex<Policies>,
    states: Arc<StateCache>,
    /// The number of tasks that give places in queues back.
    leaving: watch::Sender<usize>,
}

/// A task that gives places in queues back, until it is dropped.
pub(crate) struct Leaving(watch::Sender<usize>);

/// The identity of a revision on a store. The limiters of a policy have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RevisionId {
    /// A hash of the name of the policy, and of the namespace. The names are not those of
    /// clients, and 64 bits do not collide by chance.
    pub(crate) policy: u64,
    /// The number of the revision, of all policies on the store. It is never used again.
    pub(crate) number: u64,
}

#[derive(Default)]
struct Policies {
    entries: HashMap<PolicyId, RegisteredPolicy>,
    /// The number of revisions so far.
    revisions: u64,
}

/// The namespace of a store (in Redis the prefix of its keys), and the name of a policy.
type PolicyId = (String, String);

/// A policy with the limiters that enforce it.
struct RegisteredPolicy {
    policy: Policy,
    lease: Duration,
    states: Arc<RevisionStates>,
    subscribers: Vec<Weak<dyn Subscriber>>,
}

/// A limiter as the registry sees it: it enforces a policy, and follows its changes.
pub(crate) trait Subscriber: Send + Sync {
    /// `policy` is valid and has the same name as before.
    fn policy_changed(&self, policy: &Policy, states: Arc<RevisionStates>);

    /// Writes everything that was counted, and not reported yet, to logs and metrics.
    fn report(&self);
}

impl Registry {
    /// Makes a subscriber, and registers it for as long as it lives. Fails with the error for the
    /// policy of the same name that is in use with different quotas or another lease, or if it cannot be made.
    pub(crate) fn register<S: Subscriber + 'static>(
        &self,
        namespace: &str,
        policy: &Policy,
        lease: Duration,
        make: impl FnOnce(Arc<RevisionStates>) -> Result<Arc<S>, ConfigError>,
        conflict: impl FnOnce(&Policy, Duration) -> ConfigError,
    ) -> Result<Arc<S>, ConfigError> {
        let mut policies = self.policies();
        policies.entries.retain(|_, entry| entry.is_alive());
        let id = id(namespace, policy);
        let next = self.next_revision(&mut policies, &id);
        let existing = policies.entries.get_mut(&id);
        if let Some(entry) = &existing
            && (entry.policy != *policy || entry.lease != lease)
        {
            return Err(conflict(&entry.policy, entry.lease));
        }
        let states = existing.as_ref().map_or(next, |entry| entry.states.clone());
        let subscriber = make(states.clone())?;
        let weak: Weak<S> = Arc::downgrade(&subscriber);
        match existing {
            Some(entry) => entry.subscribers.push(weak),
            None => {
                let entry = RegisteredPolicy {
                    policy: policy.clone(),
                    lease,
                    states,
                    subscribers: vec![weak],
                };
                policies.entries.insert(id, entry);
            }
        }
        Ok(subscriber)
    }

    /// Changes the policy for everyone who enforces it.
    pub(crate) fn update(&self, namespace: &str, policy: &Policy) {
        // Dropped after the lock is released, because the last reference to a limiter reports.
        let subscribers: Vec<_>;
        let mut policies = self.policies();
        let id = id(namespace, policy);
        let states = self.next_revision(&mut policies, &id);
        let Some(entry) = policies.entries.get_mut(&id) else { return };
        (entry.policy, entry.states) = (policy.clone(), states.clone());
        subscribers = entry.subscribers.iter().filter_map(Weak::upgrade).collect();
        for subscriber in &subscribers {
            subscriber.policy_changed(policy, states.clone());
        }
    }

    /// The cache of the states of keys, under all policies.
    pub(crate) fn states(&self) -> &Arc<StateCache> {
        &self.states
    }

    /// Makes all subscribers report what they have counted.
    pub(crate) fn report(&self) {
        // Not under the lock, because the subscriber of a log may use a limiter.
        let subscribers: Vec<_> = {
            let policies = self.policies();
            let subscribers = policies.entries.values().flat_map(|entry| &entry.subscribers);
            subscribers.filter_map(Weak::upgrade).collect()
        };
        subscribers.iter().for_each(|subscriber| subscriber.report());
    }

    /// Registers a task that gives places in queues back.
    pub(crate) fn leaving(&self) -> Leaving {
        self.leaving.send_modify(|count| *count += 1);
        Leaving(self.leaving.clone())
    }

    /// Waits until all places are given back that checks have given up.
    pub(crate) async fn all_left(&self) {
        // It only fails without a sender.
        let _ = self.leaving.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Starts a revision for numbers that only some checks of a policy have.
    pub(crate) fn other_revision(&self, namespace: &str, policy: &Policy) -> Arc<RevisionStates> {
        self.next_revision(&mut self.policies(), &id(namespace, policy))
    }

    fn next_revision(&self, policies: &mut Policies, id: &PolicyId) -> Arc<RevisionStates> {
        policies.revisions += 1;
        let policy = BuildHasherDefault::<DefaultHasher>::default().hash_one(id);
        let id = RevisionId { policy, number: policies.revisions };
        RevisionStates::new(self.states.clone(), id).into()
    }

    fn policies(&self) -> MutexGuard<'_, Policies> {
        // A panic leaves whole entries behind, so the poison means nothing.
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The states may refer to policies, which refer to them.
impl Drop for Registry {
    fn drop(&mut self) {
        self.states.clear();
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl RegisteredPolicy {
    fn is_alive(&mut self) -> bool {
        self.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        !self.subscribers.is_empty()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}

fn id(namespace: &str, policy: &Policy) -> PolicyId {
    (namespace.to_owned(), policy.name().to_owned())
}
