//! The checks of a key in a call, as `lua/frame.lua` reads them: runs of equal checks and their lengths, so that
//! most arguments are short.

use std::fmt::{Arguments, Write};
use std::ptr;

use redis::Cmd;
use smallvec::SmallVec;

use crate::algorithm::{Limits, MAX_TICKS};
use crate::charge::{Charge, Cost};
use crate::store::Op;
use crate::store::lease::LeaseOp;

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

/// Writes the runs of equal operations, as `lua/frame.lua` describes them.
fn write_run(text: &mut String, count: u32, op: &Op, limits: &Limits) {
    let nothing = format_args!("");
    let mut write =
        |kind: &str, count: u64, numbers: &dyn Fn(usize) -> i128, end: Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{kind}{count}");
            for quota in 0..limits.len() {
                let _ = write!(text, ":{}", numbers(quota));
            }
            let _ = write!(text, "{end},");
        };
    let charge_kind = |charge: &Charge| if charge.is_later() { "!" } else { "" };
    let runs = u64::from(count);
    match op {
        Op::Acquire(charge) => {
            write(charge_kind(charge), runs, &|quota| charge.of(quota).into(), nothing);
        }
        Op::Peek => write("", runs, &|_| 0, nothing),
        Op::Adjust(adjustment) => {
            if adjustment.is_charge() {
                let most: SmallVec<[u64; 1]> = limits.most_charged().collect();
                let most = |quota: usize| most.get(quota).copied().unwrap_or(0).into();
                write("*", runs, &most, nothing);
            }
            // More is not in use, and sums of larger numbers would not be exact.
            let most = MAX_TICKS as i64;
            let units = |quota| adjustment.of(quota).clamp(-most, most).into();
            write("+", runs, &units, nothing);
        }
        Op::Queue(queued) if !queued.may_wait => {
            write(charge_kind(&queued.charge), runs, &|quota| queued.of(quota).into(), nothing);
        }
        Op::Queue(queued) => {
            let kind = if queued.charge.is_later() { "~!" } else { "~" };
            let patience = format_args!(";{}", queued.patience.0);
            write(kind, runs, &|quota| queued.of(quota).into(), patience);
        }
        Op::Leave(place) => {
            let end = |quota: usize| place.ends.get(quota).copied().unwrap_or(0).into();
            write("=", runs, &end, nothing);
            write("-", runs, &|quota| place.credit.of(quota).into(), nothing);
        }
        Op::Hold(hold) => {
            write("#", hold.number(), &|quota| hold.held(quota).into(), nothing);
            for equal in hold.checks().chunk_by(|left, right| left == right) {
                let charge = &equal[0];
                let count = equal.len() as u64;
                write(charge_kind(charge), count, &|quota| charge.of(quota).into(), nothing);
            }
        }
        // These are never equal to another one by more than chance.
        Op::Return(timed) => (0..count).for_each(|_| {
            write("<", timed.until, &|_| 0, nothing);
            write("-", 1, &|quota| timed.credit.of(quota).into(), nothing);
        }),
        Op::Lease(lease) => (0..count).for_each(|_| {
            let LeaseOp { credit, charge, checks, costs, .. } = &**lease;
            // Also without a credit: then the reply has the time, for what is given back later.
            write("<", credit.as_ref().map_or(0, |timed| timed.until), &|_| 0, nothing);
            if let Some(timed) = credit {
                write("-", 1, &|quota| timed.credit.of(quota).into(), nothing);
            }
            if let Some(charge) = charge {
                write(charge_kind(charge), 1, &|quota| charge.of(quota).into(), nothing);
            }
            if *checks > 0 {
                write("", *checks, &|quota| costs.of(quota).into(), nothing);
            }
        }),
    }
}
