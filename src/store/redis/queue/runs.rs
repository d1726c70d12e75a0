//! The checks of a key in a call, as `lua/frame.lua` reads them: runs of equal checks and their lengths, so that
//! most arguments are short.

use std::fmt::Write;
use std::ptr;

use redis::Cmd;
use smallvec::SmallVec;

use crate::algorithm::{Limits, MAX_TICKS};
use crate::charge::{Charge, Cost, TimedCredit};
use crate::store::Op;
use crate::store::lease::{LeaseOp, LeaseRequest};

/// The checks of a key, as runs of equal ones and their lengths.
#[derive(Debug, Default)]
pub(super) struct Runs<'a>(SmallVec<[(u32, &'a Op); 1]>);

impl<'a> Runs<'a> {
    pub(super) fn push(&mut self, op: &'a Op) {
        match self.0.last_mut() {
            Some((count, last)) if ptr::eq(*last, op) || *last == op => *count += 1,
            _ => self.0.push((1, op)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of checks.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|(count, _)| *count as usize).sum()
    }

    /// Returns true if this is a single check of cost 1, like nearly all.
    pub(super) fn is_one(&self) -> bool {
        matches!(*self.0, [(1, Op::Acquire(Charge::Same(1)))])
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let costs = self.0.iter().map(|(count, op)| match op {
            Op::Acquire(charge) => (charge.of(0), *count as usize),
            _ => (0, *count as usize),
        });
        costs.flat_map(|(cost, count)| std::iter::repeat_n(cost, count))
    }

    pub(super) fn write(&self, call: &mut Cmd, limits: &Limits) {
        match self.0.as_slice() {
            [(1, Op::Acquire(Charge::Same(cost)))] => {
                call.arg(cost);
            }
            [(1, Op::Peek)] => {
                call.arg(0);
            }
            runs => {
                let mut text = String::with_capacity(8 * runs.len());
                for (count, op) in runs {
                    write_run(&mut text, *count, op, limits);
                }
                call.arg(text);
            }
        }
    }
}

/// Writes a run as `lua/frame.lua` describes it.
fn write_run(text: &mut String, count: u32, op: &Op, limits: &Limits) {
    let mut write = |kind: &str, numbers: &dyn Fn(usize) -> i128, end: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{kind}{count}");
        for quota in 0..limits.len() {
            let _ = write!(text, ":{}", numbers(quota));
        }
        let _ = write!(text, "{end},");
    };
    let nothing = format_args!("");
    match op {
        Op::Acquire(charge) => {
            let kind = if charge.is_later() { "!" } else { "" };
            write(kind, &|quota| charge.of(quota).into(), nothing);
        }
        Op::Peek => write("", &|_| 0, nothing),
        Op::Adjust(adjustment) => {
            if adjustment.is_charge() {
                let most: SmallVec<[u64; 1]> = limits.most_charged().collect();
                write("*", &|quota| most.get(quota).copied().unwrap_or(0).into(), nothing);
            }
            // More is not in use, and sums of larger numbers would not be exact.
            let most = MAX_TICKS as i64;
            write("+", &|quota| adjustment.of(quota).clamp(-most, most).into(), nothing);
        }
        Op::Queue(queued) if !queued.may_wait => {
            let kind = if queued.charge.is_later() { "!" } else { "" };
            write(kind, &|quota| queued.of(quota).into(), nothing);
        }
        Op::Queue(queued) => {
            let kind = if queued.charge.is_later() { "~!" } else { "~" };
            let patience = queued.patience.0;
            write(kind, &|quota| queued.of(quota).into(), format_args!(";{patience}"));
        }
        Op::Return(timed) => {
            for _ in 0..count {
                write_return(text, timed, limits);
            }
        }
        Op::Lease(lease) => {
            for _ in 0..count {
                write_lease(text, lease, limits);
            }
        }
        Op::Leave(place) => {
            let end = |quota: usize| place.ends.get(quota).copied().unwrap_or(0).into();
            write("=", &end, nothing);
            write("-", &|quota| place.credit.of(quota).into(), nothing);
        }
    }
}

/// Writes what a lease returns, the check, and the checks in advance.
fn write_lease(text: &mut String, lease: &LeaseOp, limits: &Limits) {
    let LeaseOp { charge, request: LeaseRequest { checks, costs, credit }, .. } = lease;
    match credit {
        Some(credit) => write_return(text, credit, limits),
        // The reply has to have the time, for what is given back later.
        None => write_until(text, 0, limits),
    }
    if let Some(charge) = charge {
        write_run(text, 1, &Op::Acquire(charge.clone()), limits);
    }
    if *checks > 0 {
        // At most `MAX_CHECKS`.
        write_run(text, *checks as u32, &Op::Acquire(costs.clone()), limits);
    }
}

fn write_return(text: &mut String, timed: &TimedCredit, limits: &Limits) {
    write_until(text, timed.until, limits);
    write_numbers(text, "-1", limits, |quota| timed.credit.of(quota));
}

fn write_until(text: &mut String, until: u64, limits: &Limits) {
    write_numbers(text, &format!("<{until}"), limits, |_| 0);
}

fn write_numbers(text: &mut String, start: &str, limits: &Limits, of: impl Fn(usize) -> i64) {
    // Writing to a string cannot fail.
    text.push_str(start);
    for quota in 0..limits.len() {
        let _ = write!(text, ":{}", of(quota));
    }
    text.push(',');
}
