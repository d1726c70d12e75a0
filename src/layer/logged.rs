use std::borrow::Borrow;
use std::sync::{Mutex, PoisonError};

/// The items that a layer has logged, each of them once. It logs at most 16.
pub(super) struct Logged<T>(Mutex<Vec<T>>);

const MOST: usize = 16;

impl<T> Logged<T> {
    /// Returns true if the item has to be logged now.
    pub(super) fn is_new<Q>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
        Q: PartialEq + ToOwned<Owned = T> + ?Sized,
    {
        // Nothing that panics leaves it half changed.
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = logged.len() < MOST && !logged.iter().any(|known| known.borrow() == item);
        if is_new {
            logged.push(item.to_owned());
        }
        is_new
    }
}

impl<T> Default for Logged<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
