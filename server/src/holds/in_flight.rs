//! The permits in flight, by policy.
//!
//! A hold is taken, extended and ended by any instance, and none of them knows what the others do. So each counts the
//! difference that a request makes for as long as the token of that request, or the one before, is valid: what is taken
//! counts until then, and what another instance has taken and this one gives back counts as negative until then. So only
//! the sum over all instances means something, and it is right also for holds that nobody ends. An instance that ends, or
//! a request that is repeated, makes it wrong for as long as those tokens are valid.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::Gauge;

use super::unix_millis;

/// The gauge of the library.
const GAUGE: &str = "fleetlimit.permits.held";
/// Its label.
const POLICY: &str = "fleetlimit.policy";

/// The permits in flight, as far as this instance has answered for them.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<HashMap<String, Permits>>);

#[derive(Debug)]
struct Permits {
    now: i64,
    /// The differences that end at a time, in seconds since 1970.
    ends: BTreeMap<u64, i64>,
    gauge: Gauge,
}

impl InFlight {
    /// Counts so many permits more, or less, until a time in milliseconds since 1970.
    pub(crate) fn add(&self, policy: &str, permits: i64, until: u64) {
        self.add_at(now(), policy, permits, until.div_ceil(1_000));
    }

    /// Returns the part of this instance in the permits of a policy. It may be negative: only the sum is right.
    pub(crate) fn get(&self, policy: &str) -> i64 {
        self.get_at(now(), policy)
    }

    /// Updates the gauges.
    pub(crate) fn refresh(&self) {
        let now = now();
        self.lock().values_mut().for_each(|permits| permits.end(now));
    }

    fn add_at(&self, now: u64, policy: &str, permits: i64, until: u64) {
        if permits == 0 || until <= now {
            return;
        }
        let mut all = self.lock();
        let of_policy = match all.get_mut(policy) {
            Some(of_policy) => of_policy,
            None => all.entry(policy.to_owned()).or_insert_with(|| Permits {
                now: 0,
                ends: BTreeMap::new(),
                gauge: metrics::gauge!(GAUGE, POLICY => policy.to_owned()),
            }),
        };
        of_policy.now += permits;
        *of_policy.ends.entry(until).or_default() += permits;
        of_policy.end(now);
    }

    fn get_at(&self, now: u64, policy: &str) -> i64 {
        self.lock().get_mut(policy).map_or(0, |permits| {
            permits.end(now);
            permits.now
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Permits>> {
        // Nothing that panics leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    unix_millis() / 1_000
}

impl Permits {
    /// Removes the differences that have ended.
    fn end(&mut self, now: u64) {
        while let Some(first) = self.ends.first_entry().filter(|first| *first.key() <= now) {
            self.now -= first.remove();
        }
        self.gauge.set(self.now as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum over two instances, of which one takes, and the other extends and ends.
    #[test]
    fn the_sum_over_all_instances_is_right_at_any_time() {
        let instances = [InFlight::default(), InFlight::default()];
        let [a, b] = &instances;
        let sum = |now| instances.iter().map(|instance| instance.get_at(now, "p")).sum::<i64>();
        a.add_at(0, "p", 5, 60);
        a.add_at(0, "p", 1, 60);
        assert_eq!((sum(0), sum(59)), (6, 6));
        // Extended by 2.
        b.add_at(30, "p", -5, 60);
        b.add_at(30, "p", 7, 90);
        assert_eq!((sum(30), sum(59)), (8, 8));
        assert_eq!(sum(60), 7, "one has ended by itself");
        a.add_at(70, "p", -7, 90);
        assert_eq!((sum(70), sum(89), sum(90)), (0, 0, 0));
        assert!(instances.iter().all(|instance| instance.get_at(90, "p") == 0));
    }
}
