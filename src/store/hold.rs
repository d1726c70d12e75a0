//! The operation that reports how many permits this process holds, and takes more.
//!
//! A process counts for itself what it holds, and tells the store the number instead of the changes. So a call whose
//! reply is lost needs no correction, and neither does a store that has lost its data. Only one such call of a key is
//! in flight at a time, with all checks that wait for it, and calls are numbered.

use std::sync::{Arc, OnceLock};

use crate::algorithm::{Limits, Permits, Standing};
use crate::charge::Charge;
use crate::verdict::Verdict;

/// One call for one key. Two values are equal only if they are clones of the same call.
#[derive(Clone, Debug)]
pub struct HoldOp(Arc<HoldCall>);

#[derive(Debug)]
struct HoldCall {
    /// The number of the call, among those of the process.
    number: u64,
    /// The permits that the process holds, by quota; 0 for quotas that are not concurrent.
    held: Permits,
    checks: Vec<Charge>,
    decided: OnceLock<Decided>,
}

/// The decisions of the store.
#[derive(Debug)]
struct Decided {
    verdicts: Vec<Verdict>,
    /// The permits of each quota that are free afterwards.
    free: Permits,
}

impl HoldOp {
    pub(crate) fn new(number: u64, mut held: Permits, checks: Vec<Charge>) -> Self {
        // A store keeps no larger number.
        held.iter_mut().for_each(|permits| *permits = (*permits).min(u32::MAX.into()));
        Self(Arc::new(HoldCall { number, held, checks, decided: OnceLock::new() }))
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

    /// Returns the verdicts on the checks, or none if the store has not decided them.
    pub(crate) fn verdicts(&self) -> &[Verdict] {
        self.0.decided.get().map_or(&[], |decided| &decided.verdicts)
    }

    /// Returns the permits of a quota that are free after the checks. 0 if the store has not decided them.
    pub(crate) fn free(&self, quota: usize) -> u64 {
        let decided = self.0.decided.get();
        decided.and_then(|decided| decided.free.get(quota)).copied().unwrap_or(0)
    }

    /// Decides the checks in order. Returns the last verdict or, without a check, that of a peek.
    pub(crate) fn decide(&self, limits: &Limits, standing: &mut Standing) -> Verdict {
        let HoldCall { number, held, checks, decided } = &*self.0;
        limits.hold(standing, held, *number);
        let verdicts: Vec<_> = checks.iter().map(|charge| limits.check(standing, charge)).collect();
        let last = verdicts.last().cloned().unwrap_or_else(|| limits.peek(standing));
        let _ = decided.set(Decided { verdicts, free: limits.free(standing) });
        last
    }
}

impl PartialEq for HoldOp {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HoldOp {}
