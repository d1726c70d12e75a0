use crate::metrics::PolicyMetrics;

/// The settings of the leases under a revision of a policy.
#[derive(Clone, Debug)]
pub(crate) struct LeaseTerms {
    /// The longest time for which permits are kept, in nanoseconds.
    pub(crate) longest: u64,
    /// The longest time until the store receives permits that are given back, in nanoseconds.
    pub(crate) delay: u64,
    pub(crate) metrics: PolicyMetrics,
}
