//! The policies in use on a store, so that two limiters cannot give one name two meanings.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::Policy;

/// Shared by the clones of a store.
#[derive(Default)]
pub struct Registry {
    policies: Mutex<HashMap<Id, Entry>>,
}

/// The part of the store (in Redis the prefix of its keys), and the name of a policy.
type Id = (String, String);

struct Entry {
    policy: Policy,
    subscribers: Vec<Weak<dyn Subscriber>>,
}

/// Enforces a policy, and follows its changes.
pub(crate) trait Subscriber: Send + Sync {
    /// `policy` is valid and has the same name as before.
    fn policy_changed(&self, policy: &Policy);
}

impl Registry {
    /// Registers a subscriber for as long as it lives. Fails with the policy of the same name that
    /// is in use with different quotas.
    pub(crate) fn register(
        &self,
        part: &str,
        policy: &Policy,
        subscriber: Weak<dyn Subscriber>,
    ) -> Result<(), Policy> {
        let mut policies = self.policies();
        policies.retain(|_, entry| entry.is_alive());
        let entry = policies
            .entry(id(part, policy))
            .or_insert_with(|| Entry { policy: policy.clone(), subscribers: Vec::new() });
        if entry.policy != *policy {
            return Err(entry.policy.clone());
        }
        entry.subscribers.push(subscriber);
        Ok(())
    }

    /// Changes the policy for everyone who enforces it.
    pub(crate) fn update(&self, part: &str, policy: &Policy) {
        let mut policies = self.policies();
        let Some(entry) = policies.get_mut(&id(part, policy)) else { return };
        entry.policy = policy.clone();
        for subscriber in entry.subscribers.iter().filter_map(Weak::upgrade) {
            subscriber.policy_changed(policy);
        }
    }

    fn policies(&self) -> MutexGuard<'_, HashMap<Id, Entry>> {
        // A panic leaves whole entries behind, so the poison means nothing.
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
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
