//! The shares by which a fleet of instances divides limits without a store. An instance is a store in a
//! process, and a fleet is the instances that share limits. A plan lists the instances and their weights, and
//! a share is what one of them may use.
//!
//! The alternatives during an outage are to allow everything, to deny everything, or that each instance
//! enforces the whole limit, which multiplies it.
//!
//! All instances compute the same shares of a number from the same plan, as integers. The shares add up to
//! the number, for each key. What a division leaves over goes to the instances that rank first for the key
//! (rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998), so
//! that a limit below the number of instances has owners, and different ones for different keys. Everyone has
//! at least a quarter of an equal share, because demand can move during an outage.
//!
//! Until all instances know the latest plan, each uses the lesser of its shares under that and the agreed
//! one. So the shares add up to at most the limit, whichever plans the instances know when Redis fails;
//! between two plans, a small limit may have no owner. There is one exception: an instance that has just
//! joined uses its share before the others give it up, because denying all its requests for some seconds
//! would be worse. Instances that do not know each other guess their shares, so a small limit may have no
//! owner, or several.
//!
//! An algorithm says what a share of it is (`Algorithm::divided`). Everything else is the memory store. →
//! `algorithm/limits/tests/fleet.rs`, `tests/it/local.rs`

/// Identifies an instance in a fleet.
pub(crate) type InstanceId = u64;

/// The most instances that a plan may have. A division among more would take too long.
pub(crate) const MAX_INSTANCES: usize = 10_000;

/// The first identity of instances that nobody has identified. All others are less.
pub(crate) const FIRST_UNKNOWN: InstanceId = InstanceId::MAX - MAX_INSTANCES as u64;

/// The instances that divide limits, by their identity, and their weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan(Vec<(InstanceId, u32)>);

/// The fraction of the limits that an instance may use. Until the fleet has agreed on a new plan, it is the least of
/// both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    me: InstanceId,
    agreed: Plan,
    /// Some instances may use it already.
    proposed: Option<Plan>,
}

impl Plan {
    /// Instances with a small weight get at least a quarter of an equal share, because demand can move
    /// to them.
    pub(crate) fn new(instances: impl IntoIterator<Item = (InstanceId, u32)>) -> Self {
        let mut instances: Vec<_> = instances.into_iter().collect();
        instances.sort_unstable();
        instances.dedup_by_key(|(id, _)| *id);
        let total: u64 = instances.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let least = (total / (4 * instances.len().max(1) as u64)).max(1) as u32;
        instances.iter_mut().for_each(|(_, weight)| *weight = least.max(*weight));
        Self(instances)
    }

    /// Equal shares for so many instances, which are numbered from 0.
    pub(crate) fn even(instances: u64) -> Self {
        Self::new((0..instances.min(MAX_INSTANCES as u64)).map(|id| (id, 1)))
    }

    /// Adds instances that nobody has identified, so that there are so many.
    fn among(mut self, total: usize) -> Self {
        let known = self.0.len().max(1);
        let all: u64 = self.0.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let equal = (all / known as u64).max(1) as u32;
        let others = self.0.len()..total.min(MAX_INSTANCES);
        self.0.extend(others.map(|number| (unidentified(number), equal)));
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The share of an instance in a number of permits. `None` if it is not in the plan.
    fn share_of(&self, me: InstanceId, key: u64, permits: u64) -> Option<u64> {
        let weight = self.weight(me)?;
        let total: u128 = self.0.iter().map(|(_, weight)| u128::from(*weight)).sum();
        // At most `permits`.
        let floor = |weight: u32| (u128::from(permits) * u128::from(weight) / total) as u64;
        let rest = permits - self.0.iter().map(|(_, weight)| floor(*weight)).sum::<u64>();
        let mine = score(me, key);
        let before = self.0.iter().filter(|(id, _)| score(*id, key) > mine).count() as u64;
        Some(floor(weight) + u64::from(before < rest))
    }

    fn weight(&self, id: InstanceId) -> Option<u32> {
        let index = self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.0[index].1)
    }
}

impl Share {
    /// The share of this instance in the agreed plan.
    pub(crate) fn new(me: InstanceId, agreed: Plan, proposed: Option<Plan>) -> Self {
        Self { me, agreed, proposed }
    }

    /// Returns the share with another plan that is not agreed, if this instance is part of the agreed one.
    pub(crate) fn proposed(&self, me: InstanceId, plan: Plan) -> Self {
        Self::new(me, self.agreed.clone(), Some(plan))
    }

    /// Returns the share in a fleet of so many instances. If a plan has fewer, it leaves equal shares to the others.
    pub(crate) fn among(self, total: usize) -> Self {
        let (agreed, proposed) = (self.agreed.among(total), self.proposed);
        Self { me: self.me, agreed, proposed: proposed.map(|plan| plan.among(total)) }
    }

    /// The share of this instance once the others have forgotten it: what they leave to an instance that they
    /// do not know. `None` if it is none of several instances.
    pub(crate) fn forgotten(&self) -> Option<Self> {
        let mut others = self.latest().clone();
        others.0.retain(|(id, _)| *id != self.me);
        let is_one_of_several = (1..self.instances()).contains(&others.len());
        is_one_of_several.then(|| Self::new(unidentified(others.len()), others, None))
    }

    /// Returns the number of these permits that are for this instance, for a key with this
    /// [hash](Key::stable_hash). One that has just joined uses the plan that it is part of.
    pub(crate) fn of(&self, key: u64, permits: u64) -> u64 {
        let agreed = self.agreed.share_of(self.me, key, permits);
        let proposed = self.proposed.as_ref().and_then(|plan| plan.share_of(self.me, key, permits));
        match (agreed, proposed) {
            (Some(agreed), Some(proposed)) => agreed.min(proposed),
            (Some(share), None) | (None, Some(share)) => share,
            (None, None) => 0,
        }
    }

    /// The share of a large limit, between 0 and 1.
    pub(crate) fn fraction(&self) -> f64 {
        const WHOLE: u64 = 1 << 32;
        self.of(0, WHOLE) as f64 / WHOLE as f64
    }

    /// Returns the number of instances that divide the limits.
    pub(crate) fn instances(&self) -> usize {
        self.latest().len()
    }

    fn latest(&self) -> &Plan {
        self.proposed.as_ref().unwrap_or(&self.agreed)
    }
}

/// The identity of an instance that the fleet does not know.
fn unidentified(number: usize) -> InstanceId {
    FIRST_UNKNOWN + number as u64
}

/// Returns the rank of an instance for a key: the finalizer of SplitMix64.
fn score(id: InstanceId, key: u64) -> u64 {
    let mut score = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key;
    score = (score ^ (score >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    score = (score ^ (score >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    score ^ (score >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Key;

    fn plan() -> impl Strategy<Value = Plan> {
        prop::collection::vec((0..1_000u64, 0..100u32), 1..20).prop_map(Plan::new)
    }

    /// The instances, each of which knows the agreed plan, both, or only that a new one is agreed.
    fn shares(
        old: &Plan,
        new: &Plan,
        knows: impl Fn(InstanceId) -> u8,
        key: u64,
        permits: u64,
    ) -> u64 {
        let share = |id| match knows(id) {
            0 => Share::new(id, old.clone(), None).of(key, permits),
            _ => Share::new(id, old.clone(), Some(new.clone())).of(key, permits),
        };
        old.0.iter().map(|(id, _)| share(*id)).sum()
    }

    proptest! {
        #[test]
        fn the_shares_of_a_number_add_up_to_it(plan in plan(), key: u64, permits in 0..=1u64 << 52) {
            let shares = plan.0.iter().map(|(id, _)| plan.share_of(*id, key, permits).unwrap());
            prop_assert_eq!(shares.sum::<u64>(), permits);
        }

        #[test]
        fn a_new_plan_that_some_do_not_know_yet_adds_nothing(
            old in plan(), new in plan(), knows in prop::collection::vec(0..2u8, 1_000), key: u64,
            permits in 0..=10_000u64,
        ) {
            let knows = |id: InstanceId| knows[id as usize];
            prop_assert!(shares(&old, &new, knows, key, permits) <= permits);
            // Once all know it, some may know that it is agreed.
            let of_all = new.0.iter().map(|(id, _)| match (old.weight(*id), knows(*id)) {
                (Some(_), 0) => Share::new(*id, old.clone(), Some(new.clone())).of(key, permits),
                _ => Share::new(*id, new.clone(), None).of(key, permits),
            });
            prop_assert!(of_all.sum::<u64>() <= permits);
        }

        #[test]
        fn a_share_is_near_the_weight(plan in plan(), key: u64, permits in 0..=1_000_000u64) {
            let total: f64 = plan.0.iter().map(|(_, weight)| f64::from(*weight)).sum();
            for (id, weight) in &plan.0 {
                prop_assert!(f64::from(*weight) >= total / (8.0 * plan.len() as f64));
                let share = plan.share_of(*id, key, permits).unwrap() as f64;
                let ideal = permits as f64 * f64::from(*weight) / total;
                prop_assert!((share - ideal).abs() <= 1.0);
            }
        }
    }

    #[test]
    fn a_limit_below_the_number_of_instances_has_owners_that_depend_on_the_key() {
        let plan = Plan::even(5);
        let owners = |key: u32| -> Vec<u64> {
            let hash = Key::from(key).stable_hash();
            (0..5).filter(|id| plan.share_of(*id, hash, 2).unwrap() > 0).collect()
        };
        let mut counts = [0; 5];
        for key in 0..1_000 {
            assert_eq!(owners(key).len(), 2);
            owners(key).into_iter().for_each(|id| counts[id as usize] += 1);
        }
        // Each is expected to own 400.
        assert!(counts.iter().all(|count| (320..480).contains(count)), "{counts:?}");
        assert!((0..100).map(owners).collect::<HashSet<_>>().len() == 10);
    }

    #[test]
    fn instances_that_redis_does_not_know_get_equal_shares() {
        let known = (0..2).map(|id| Share::new(id, Plan::new([(0, 30), (1, 10)]), None).among(5));
        let shares: Vec<u64> = known.map(|share| share.of(7, 1_000)).collect();
        assert_eq!(shares, [300, 100]);
        let unknown = Share::new(3, Plan::even(5), None).among(5);
        assert_eq!((unknown.of(7, 1_000), unknown.instances()), (200, 5));
        // An instance may have ended: nobody knows which.
        assert_eq!(Share::new(0, Plan::even(2), None).among(1).of(7, 1_000), 500);
    }

    #[test]
    fn a_small_limit_is_not_lost_among_instances_that_redis_does_not_know() {
        let shares = |key: u64| -> u64 {
            let share = |id| Share::new(id, Plan::even(9), None).among(10);
            (0..9).map(|id| share(id).of(Key::from(key).stable_hash(), 1)).sum()
        };
        let enforced: u64 = (0..1_000).map(shares).sum();
        assert!((0..1_000).all(|key| shares(key) <= 1));
        assert!((850..=950).contains(&enforced), "{enforced} of 1,000 keys");
    }

    #[test]
    fn an_instance_that_the_others_have_forgotten_has_only_what_they_leave() {
        let plan = Plan::new([(0, 30), (1, 10), (2, 20)]);
        let forgotten = Share::new(2, plan.clone(), None).forgotten().unwrap();
        let shares = |total: usize| {
            let others = [0, 1].map(|id| Share::new(id, Plan::new([(0, 30), (1, 10)]), None));
            let shares = others.into_iter().chain([forgotten.clone()]);
            shares.map(|share| share.among(total).of(7, 1_200)).collect::<Vec<_>>()
        };
        assert_eq!(shares(0), [900, 300, 0]);
        // Somebody else counts it.
        assert_eq!(shares(3), [600, 200, 400]);
        assert_eq!(forgotten.forgotten(), None, "it has no more to lose");
        // Of the latest plan.
        let joined = Share::new(2, Plan::even(2), Some(plan)).forgotten().unwrap();
        assert_eq!((joined.of(7, 1_200), joined.instances()), (0, 2));
    }

    /// Nobody else can have its share.
    #[test]
    fn the_only_instance_is_never_forgotten() {
        assert_eq!(Share::new(0, Plan::even(1), None).forgotten(), None);
        assert_eq!(Share::new(7, Plan::even(3), None).forgotten(), None, "it has no share");
    }

    #[test]
    fn a_fleet_of_any_size_is_divided() {
        let share = Share::new(0, Plan::even(u64::MAX), None).among(usize::MAX);
        assert_eq!(share.instances(), MAX_INSTANCES);
        assert_eq!(share.of(7, 20_000), 2);
    }

    #[test]
    fn an_instance_that_has_just_joined_has_a_part() {
        let (old, new) = (Plan::even(2), Plan::even(3));
        assert_eq!(Share::new(2, old.clone(), Some(new)).of(7, 300), 100);
        assert_eq!(Share::new(2, old, None).of(7, 300), 0);
    }
}
