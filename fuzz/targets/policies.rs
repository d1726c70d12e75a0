//! Policies with a quota of each algorithm, and one with several.

use fleetlimit::{Policy, Quota};

const QUOTAS: [&str; 10] = [
    "10/s burst 5",
    "7/s burst 5",
    "10/s burst 5 borrow 3",
    "10/s burst 5 debt 50",
    "10/min queue 30s",
    "5/s interval",
    "5/min fixed",
    "5/day calendar",
    "5/min sliding 12",
    "5/min sliding approximate",
];

pub fn policy(index: u8) -> Policy {
    let quota = |text: &str| text.parse::<Quota>().expect("the quota is valid");
    let index = usize::from(index) % (QUOTAS.len() + 1);
    match QUOTAS.get(index) {
        Some(text) => Policy::new("fuzz").quota("a", quota(text)),
        None => {
            let policy = Policy::new("fuzz").quota("a", quota(QUOTAS[0]));
            policy.quota("b", quota(QUOTAS[6])).quota("c", quota(QUOTAS[8]))
        }
    }
}
