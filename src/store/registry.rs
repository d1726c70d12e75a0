//! What the limiters on a store share: the policies in use, so that two limiters cannot give one
//! name two meanings, and the cached denials.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Denials;
use crate::{ConfigError, Policy};

/// Shared by the clones of a store.
#[derive(Default)]
pub struct Registry {
    policies: Mutex<Policies>,
    denials: Arc<Denials>,
}

/// Identifies a revision on a store. The limiters of a policy have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RevisionId(pub(crate) u64);

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
    revision: RevisionId,
    subscribers: Vec<Weak<dyn Subscriber>>,
}

/// Enforces a policy, and follows its changes.
pub(crate) trait Subscriber: Send + Sync {
    /// `policy` is valid and has the same name as before.
    fn policy_changed(&self, policy: &Policy, revision: RevisionId);
}

impl Registry {
    /// Makes a subscriber, and registers it for as long as it lives. Fails if it cannot be made, or
    /// with the error for the policy of the same name that is in use with different quotas.
    pub(crate) fn register<S: Subscriber + 'static>(
        &self,
        part: &str,
        policy: &Policy,
        make: impl FnOnce(RevisionId) -> Result<Arc<S>, ConfigError>,
        conflict: impl FnOnce(&Policy) -> ConfigError,
    ) -> Result<Arc<S>, ConfigError> {
        let mut policies = self.policies();
        policies.entries.retain(|_, entry| entry.is_alive());
        let id = id(part, policy);
        let next = policies.next_revision();
        let existing = policies.entries.get_mut(&id);
        let revision = existing.as_ref().map_or(next, |entry| entry.revision);
        let subscriber = make(revision)?;
        let weak: Weak<S> = Arc::downgrade(&subscriber);
        match existing {
            Some(entry) if entry.policy != *policy => return Err(conflict(&entry.policy)),
            Some(entry) => entry.subscribers.push(weak),
            None => {
                let entry = Entry { policy: policy.clone(), revision, subscribers: vec![weak] };
                policies.entries.insert(id, entry);
            }
        }
        Ok(subscriber)
    }

    /// Changes the policy for everyone who enforces it.
    pub(crate) fn update(&self, part: &str, policy: &Policy) {
        let mut policies = self.policies();
        let revision = policies.next_revision();
        let Some(entry) = policies.entries.get_mut(&id(part, policy)) else { return };
        (entry.policy, entry.revision) = (policy.clone(), revision);
        for subscriber in entry.subscribers.iter().filter_map(Weak::upgrade) {
            subscriber.policy_changed(policy, revision);
        }
    }

    /// The denials that are cached for all limiters on the store.
    pub(crate) fn denials(&self) -> &Arc<Denials> {
        &self.denials
    }

    fn policies(&self) -> MutexGuard<'_, Policies> {
        // A panic leaves whole entries behind, so the poison means nothing.
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Policies {
    fn next_revision(&mut self) -> RevisionId {
        self.revisions += 1;
        RevisionId(self.revisions)
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
