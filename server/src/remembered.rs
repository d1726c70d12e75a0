//! Values by name that are replaced as a whole from time to time. Those that are gone are remembered for a while, because
//! they may come back.

use std::collections::HashMap;

/// The values in use, and those that are gone.
#[derive(Debug)]
pub(crate) struct Remembered<T> {
    /// Each with the number of the last set that had it.
    values: HashMap<String, (T, u64)>,
    set: u64,
    most_gone: usize,
}

impl<T> Remembered<T> {
    /// At most `most_gone` values are kept that are not in use.
    pub(crate) fn new(most_gone: usize) -> Self {
        Self { values: HashMap::new(), set: 0, most_gone }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.values.get(name).map(|(value, _)| value)
    }

    /// Replaces the values in use, and forgets those that have been gone for the longest time.
    pub(crate) fn replace(&mut self, values: impl Iterator<Item = (String, T)>) {
        self.set += 1;
        let set = self.set;
        self.values.extend(values.map(|(name, value)| (name, (value, set))));
        let gone = self.values.values().filter(|(_, last)| *last < set);
        let mut gone: Vec<_> = gone.map(|(_, last)| *last).collect();
        gone.sort_unstable();
        if let Some(excess) = gone.len().checked_sub(self.most_gone).filter(|it| *it > 0) {
            // Of several that went at the same time, all or none.
            let newest = gone[excess - 1];
            self.values.retain(|_, (_, last)| *last > newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ones_that_have_been_gone_for_longest_are_forgotten() {
        let mut remembered = Remembered::new(3);
        for set in 0..100 {
            let names = ["stays".to_owned(), format!("name-{set}")];
            remembered.replace(names.into_iter().map(|name| (name, set)));
            assert_eq!(remembered.get("stays"), Some(&set));
            for gone in 0..set {
                let is_kept = remembered.get(&format!("name-{gone}")).is_some();
                assert_eq!(is_kept, set - gone <= 3, "{gone} of {set}");
            }
        }
        remembered.replace(["name-99"].into_iter().map(|name| (name.to_owned(), 7)));
        assert_eq!((remembered.get("name-99"), remembered.get("stays")), (Some(&7), Some(&99)));
    }
}
