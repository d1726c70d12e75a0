//! What the limiters on a store share: the policies in use, so that two limiters cannot give one
//! name two meanings, and the cached denials.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;

use super::{Denials, RevisionDenials};
use crate::{ConfigError, Policy};

/// Shared by the clones of a store.
#[derive(Default)]
pub struct Registry {
    policies: Mutex<Policies>,
    denials: Arc<Denials>,
    /// How many tasks give places in queues back.
    leaving: watch::Sender<usize>,
}

/// A task that gives places in queues back, until it is dropped.
pub(crate) struct Leaving(watch::Sender<usize>);

/// Identifies a revision on a store, and its policy in the upper bits. The limiters of a policy have
/// the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RevisionId(pub(crate) u64);

impl RevisionId {
    const NUMBER_BITS: u32 = 40;

    /// Two policies seldom have the same.
    pub(super) fn policy(self) -> u64 {
        self.0 >> Self::NUMBER_BITS
    }
}

#[derive(Default)]
struct Policies {
    entries: HashMap<Id, Entry>,
    /// Counts revisions.
    revisions: u64,
}

/// The part of the store (in Redis the prefix of its keys), and the name of a policy.
type Id = (String, String);

struct Entry {
    policy: Policy,
    denials: Arc<RevisionDenials>,
    subscribers: Vec<Weak<dyn Subscriber>>,
}

/// Enforces a policy, and follows its changes.
pub(crate) trait Subscriber: Send + Sync {
    /// `policy` is valid and has the same name as before.
    fn policy_changed(&self, policy: &Policy, denials: Arc<RevisionDenials>);

    /// Writes what it has counted, and not reported yet, to logs and metrics.
    fn report(&self);
}

impl Registry {
    /// Makes a subscriber, and registers it for as long as it lives. Fails with the error for the
    /// policy of the same name that is in use with different quotas, or if it cannot be made.
    pub(crate) fn register<S: Subscriber + 'static>(
        &self,
        part: &str,
        policy: &Policy,
        make: impl FnOnce(Arc<RevisionDenials>) -> Result<Arc<S>, ConfigError>,
        conflict: impl FnOnce(&Policy) -> ConfigError,
    ) -> Result<Arc<S>, ConfigError> {
        let mut policies = self.policies();
        policies.entries.retain(|_, entry| entry.is_alive());
        let id = id(part, policy);
        let next = self.next_revision(&mut policies, &id);
        let existing = policies.entries.get_mut(&id);
        if let Some(entry) = &existing
            && entry.policy != *policy
        {
            return Err(conflict(&entry.policy));
        }
        let denials = existing.as_ref().map_or(next, |entry| entry.denials.clone());
        let subscriber = make(denials.clone())?;
        let weak: Weak<S> = Arc::downgrade(&subscriber);
        match existing {
            Some(entry) => entry.subscribers.push(weak),
            None => {
                let entry = Entry { policy: policy.clone(), denials, subscribers: vec![weak] };
                policies.entries.insert(id, entry);
            }
        }
        Ok(subscriber)
    }

    /// Changes the policy for everyone who enforces it.
    pub(crate) fn update(&self, part: &str, policy: &Policy) {
        // Dropped after the lock is released, because the last reference to a limiter reports.
        let subscribers: Vec<_>;
        let mut policies = self.policies();
        let id = id(part, policy);
        let denials = self.next_revision(&mut policies, &id);
        let Some(entry) = policies.entries.get_mut(&id) else { return };
        (entry.policy, entry.denials) = (policy.clone(), denials.clone());
        subscribers = entry.subscribers.iter().filter_map(Weak::upgrade).collect();
        for subscriber in &subscribers {
            subscriber.policy_changed(policy, denials.clone());
        }
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

    /// For numbers that only some checks of a policy have.
    pub(crate) fn other_revision(&self, part: &str, policy: &Policy) -> Arc<RevisionDenials> {
        self.next_revision(&mut self.policies(), &id(part, policy))
    }

    fn next_revision(&self, policies: &mut Policies, id: &Id) -> Arc<RevisionDenials> {
        policies.revisions += 1;
        let policy = BuildHasherDefault::<DefaultHasher>::default().hash_one(id);
        let id = RevisionId(policy << RevisionId::NUMBER_BITS | policies.revisions);
        RevisionDenials::new(self.denials.clone(), id).into()
    }

    fn policies(&self) -> MutexGuard<'_, Policies> {
        // A panic leaves whole entries behind, so the poison means nothing.
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Entry {
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

fn id(part: &str, policy: &Policy) -> Id {
    (part.to_owned(), policy.name().to_owned())
}
