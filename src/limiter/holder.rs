//! A holder of permits that is not the process, such as a client of a server, whose next call may reach another
//! process.
//!
//! The store has an entry for each holder, as it has one for each process that holds permits of a key
//! (`algorithm/concurrent.rs`). A call reports how many permits the holder has, and then takes more. So a call whose reply
//! is lost needs no correction but the next one, and any process can make that.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::taken::micros;
use crate::algorithm::{Limits, Permits};
use crate::charge::Charge;
use crate::store::{HoldOp, Op};

/// The number of the last call. A record that is not the latest one does not know how many calls there were.
const LAST_CALL: u64 = 1 << 52;

/// A holder of permits of one key.
#[derive(Debug)]
pub(crate) struct Holder {
    number: u64,
    /// The time for which the store counts its permits unless it renews them, in microseconds.
    lifetime: u64,
    state: Mutex<Holding>,
}

/// The permits of a holder, and its latest call.
#[derive(Clone, Debug)]
pub(super) struct Holding {
    /// The number of the latest call, which is below [`LAST_CALL`]. It is the time in microseconds since 1970, unless the
    /// clock of the process before was ahead: of two calls that continue the same record, the later one counts.
    pub(super) latest: u64,
    /// The permits of each quota.
    pub(super) permits: Permits,
}

impl Holder {
    /// Creates a holder with a number from 1 to 2^53, and what it holds already.
    pub(super) fn new(number: u64, lifetime: u64, holding: Holding) -> Self {
        Self { number, lifetime, state: Mutex::new(holding) }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn lifetime(&self) -> u64 {
        self.lifetime
    }

    /// Returns the number of the latest call.
    pub(super) fn latest(&self) -> u64 {
        self.with(|state| state.latest)
    }

    /// Returns a call that takes more permits.
    pub(super) fn call(&self, charge: Charge) -> Op {
        self.with(|state| state.call(vec![charge]))
    }

    /// Counts permits that the store has granted.
    pub(super) fn count(&self, permits: &[u64]) {
        self.with(|state| {
            for (held, more) in state.permits.iter_mut().zip(permits) {
                *held = held.saturating_add(*more);
            }
        });
    }

    /// Returns a call that renews what it holds.
    pub(super) fn report(&self) -> Op {
        self.with(|state| state.call(Vec::new()))
    }

    /// Returns the call that gives all permits back. No other call comes after it.
    pub(super) fn end(&self) -> Op {
        self.with(|state| {
            state.latest = LAST_CALL - 1;
            state.permits.iter_mut().for_each(|permits| *permits = 0);
            state.call(Vec::new())
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Holding) -> T) -> T {
        // Nothing that panics runs under the lock.
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Holding {
    pub(super) fn nothing(limits: &Limits) -> Self {
        Self { latest: 0, permits: limits.held_of(|_| 0) }
    }

    fn call(&mut self, checks: Vec<Charge>) -> Op {
        self.latest = unix_micros().clamp(self.latest + 1, LAST_CALL);
        Op::Hold(HoldOp::new(self.latest, self.permits.clone(), checks))
    }
}

/// Returns the microseconds since 1970.
pub(super) fn unix_micros() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
