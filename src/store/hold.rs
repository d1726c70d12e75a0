//! The operation of a policy with permits that are held: it says how many of them this process holds, and takes more.
//!
//! A process counts for itself what it holds, and tells the store the number instead of the changes. So a call whose
//! reply is lost needs no correction, and neither does a store that has lost its data. Only one such call of a key is
//! in flight at a time, with all checks that wait for it, and calls are numbered.

use std::sync::{Arc, OnceLock};

use crate::algorithm::{Limits, Permits, Standing};
use crate::charge::Charge;
use crate::verdict::Verdict;

/// A call for one key. Two of them are equal if they are the same.
#[derive(Clone, Debug)]
pub struct HoldOp(Arc<HoldCall>);

#[derive(Debug)]
struct HoldCall {
    /// The number of the call, among those of the process.
    number: u64,
    /// The permits of each quota that the process holds. 0 of quotas whose permits are not held.
    held: Permits,
    checks: Vec<Charge>,
    /// The verdicts on the checks, once they are known.
    verdicts: OnceLock<Vec<Verdict>>,
}

impl HoldOp {
    pub(crate) fn new(number: u64, mut held: Permits, checks: Vec<Charge>) -> Self {
        // A store keeps no larger number.
        held.iter_mut().for_each(|permits| *permits = (*permits).min(u32::MAX.into()));
        Self(Arc::new(HoldCall { number, held, checks, verdicts: OnceLock::new() }))
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    pub(crate) fn held(&self, quota: usize) -> u64 {
        self.0.held.get(quota).copied().unwrap_or(0)
    }

    pub(crate) fn checks(&self) -> &[Charge] {
        &self.0.checks
    }

    /// Returns the verdicts on the checks. None if the store has not decided them.
    pub(crate) fn verdicts(&self) -> &[Verdict] {
        self.0.verdicts.get().map_or(&[], Vec::as_slice)
    }

    /// Decides the checks in order. Returns the last verdict or, without a check, that of a peek.
    pub(crate) fn decide(&self, limits: &Limits, standing: &mut Standing) -> Verdict {
        let HoldCall { number, held, checks, verdicts } = &*self.0;
        limits.hold(standing, held, *number);
        let decided: Vec<_> = checks.iter().map(|charge| limits.check(standing, charge)).collect();
        let last = decided.last().cloned().unwrap_or_else(|| limits.peek(standing));
        let _ = verdicts.set(decided);
        last
    }
}

impl PartialEq for HoldOp {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HoldOp {}
