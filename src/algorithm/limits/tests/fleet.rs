//! The shares of a limit.

use proptest::prelude::*;

use super::drawn::*;
use crate::quota::Kind;

proptest! {
    /// All take what they can at the same times.
    #[test]
    fn the_shares_of_a_fleet_admit_no_more_than_the_whole(
        quota in small_quota(), weights in prop::collection::vec(0..5u64, 1..5),
        pauses in prop::collection::vec(0..=3_000_000u64, 1..20),
    ) {
        let total = weights.iter().sum::<u64>().max(1);
        // The first gets what is left over.
        let share = |index: usize, permits: u64| {
            let floor = |weight: &u64| permits * weight / total;
            let rest = permits - weights.iter().map(floor).sum::<u64>();
            floor(&weights[index]) + if index == 0 { rest } else { 0 }
        };
        let whole = limits(&[quota]);
        let shares: Vec<_> =
            (0..weights.len()).filter_map(|index| whole.divided(&|n| share(index, n))).collect();
        let mut users: Vec<_> = shares.iter().map(Used::new).collect();
        let (mut of_whole, mut admitted, mut of_shares) = (Used::new(&whole), 0, 0);
        let mut rounded = 0;
        for pause in pauses {
            rounded += weights.len() as u64;
            users.iter_mut().chain([&mut of_whole]).for_each(|user| user.now += pause);
            while of_whole.check(1).is_allowed() {
                admitted += 1;
            }
            for user in &mut users {
                while user.check(1).is_allowed() {
                    of_shares += 1;
                }
            }
            let most = match quota.kind() {
                // Each share rounds its estimate down.
                Kind::ApproximateSlidingWindow => admitted + rounded,
                // The whole starts a new interval when it is full. A share that is not full goes on, so
                // its refill may come earlier.
                Kind::IntervalRefill => admitted + quota.permits(),
                _ => admitted,
            };
            prop_assert!(of_shares <= most, "{of_shares} of {admitted}");
            let least = match quota.kind() {
                Kind::IntervalRefill => 0,
                _ => admitted / 2,
            };
            prop_assert!(of_shares + 2 * weights.len() as u64 >= least, "{of_shares} of {admitted}");
        }
    }
}
