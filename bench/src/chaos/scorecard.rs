//! The scorecard: the worst figures of each fault, and what they are compared with.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::fault::Fault;
use super::held::{self, Uses};
use super::{INSTANCES, Section, Sections, TIMEOUT};

/// A fault, and the times before and after it.
pub(super) struct Cycle {
    pub(super) fault: Fault,
    pub(super) recovery: Duration,
    pub(super) sections: Sections,
}

/// The worst figures of a fault.
#[derive(Default)]
struct Row {
    count: u32,
    /// How many runs met all requirements.
    survived: u32,
    p999: Duration,
    slowest: Duration,
    recovery: Duration,
    /// Of the permits that the limit allows.
    least: Option<f64>,
    most: f64,
    /// The permits of a run that the limit allows, and that no check got.
    unused: f64,
    beyond: f64,
}

/// The worst figures of permits that are held, in a fault.
#[derive(Default)]
struct HeldRow {
    count: u32,
    survived: u32,
    /// The most permits at a time.
    most: u64,
    /// The fewest permits on average.
    average: Option<f64>,
}

impl HeldRow {
    fn add(&mut self, uses: &Uses, fault: Option<Fault>) {
        let (most, average) = (uses.most(), uses.average());
        let is_used = fault.is_some() || average >= LEAST_IN_USE;
        self.count += 1;
        self.survived += u32::from(most <= most_held(fault) && is_used);
        self.most = self.most.max(most);
        self.average = Some(self.average.map_or(average, |least| least.min(average)));
    }
}

/// The documented bound: while Redis does not count what they hold, instances may take permits up to their shares, and
/// a suspended one adds what it holds.
fn most_held(fault: Option<Fault>) -> u64 {
    match fault {
        None | Some(Fault::ScriptsFlushed | Fault::InstanceKilled) => held::LIMIT,
        Some(Fault::InstanceSuspended) => held::LIMIT + held::TASKS,
        Some(_) => 2 * held::LIMIT,
    }
}

#[derive(Default)]
pub(super) struct Scorecard {
    /// The rows of each fault, or of the time without one: without leases, and with them.
    rows: BTreeMap<Option<Fault>, [Row; 2]>,
    held: BTreeMap<Option<Fault>, HeldRow>,
    checks: u64,
    failed: u64,
    /// The checks of the key with leases that leases have decided, and all of them, apart from cached denials.
    leased: u64,
    of_leased: u64,
    /// Of the largest instance.
    resident_kib: Vec<u64>,
    /// How long 99% of the checks take at most, on an idle machine.
    pub(super) open_breaker: Duration,
}

/// What a check may take, besides the work of a busy machine for one in a thousand.
const LONGEST: Duration = TIMEOUT.saturating_add(Duration::from_millis(5));
const LONGEST_RECOVERY: Duration = Duration::from_secs(1);
/// With an open breaker, for 99% of the checks.
const LONGEST_OPEN: Duration = Duration::from_micros(200);
/// The permits that have to be in use on average without a fault. A task that was denied pauses.
const LEAST_IN_USE: f64 = 0.6 * held::LIMIT as f64;
/// How far an instance may grow from a quarter of the run to its end.
const MAX_GROWTH: f64 = 1.1;

impl Section {
    fn admitted(&self) -> f64 {
        self.reports.iter().map(|report| report.admitted).sum::<u64>() as f64
    }

    fn limit(&self) -> f64 {
        self.burst + self.rate * self.time.as_secs_f64()
    }

    /// The worst of the instances.
    fn p999(&self) -> Duration {
        self.reports.iter().map(|report| report.p999).max().unwrap_or_default()
    }

    fn slowest(&self) -> Duration {
        self.reports.iter().map(|report| report.slowest).max().unwrap_or_default()
    }
}

impl Section {
    /// The documented bound: an outage may add a burst, and lost data another one. While some instances have lost
    /// Redis, they add their shares of the rate.
    fn bound(&self, fault: Option<Fault>) -> f64 {
        let of_outage = fault.map_or(0.0, |fault| fault.lost(INSTANCES));
        let of_lost_data = if fault.is_some_and(Fault::loses_data) { 1.0 } else { 0.0 };
        let alone = self.reports.iter().map(|report| report.alone.as_secs_f64()).sum::<f64>();
        let is_partial = fault.is_some_and(Fault::is_partial);
        let of_shares = if is_partial { self.rate_alone * alone } else { 0.0 };
        self.limit() + (of_outage + of_lost_data) * self.burst + of_shares
    }
}

impl Cycle {
    pub(super) fn summary(&self) -> String {
        let Sections { exact, leased, held } = &self.sections;
        format!(
            "{:<36} 99.9% {:>6.1?} slowest {:>6.1?} recovery {:>6.1?} admitted {} of {:.0}, with leases {} of {:.0}, held {} of {}",
            self.fault.name(),
            exact.p999(),
            exact.slowest(),
            self.recovery,
            exact.admitted(),
            exact.limit(),
            leased.admitted(),
            leased.limit(),
            held.most(),
            held::LIMIT,
        )
    }
}

impl Row {
    fn add(&mut self, section: &Section, recovery: Duration, fault: Option<Fault>) {
        let share = section.admitted() / section.limit();
        let beyond = section.admitted() - section.bound(fault).floor();
        let is_quick =
            section.p999() <= LONGEST || fault.is_some_and(|fault| fault.stops_a_process());
        let is_survived = beyond <= 0.0 && is_quick && recovery <= LONGEST_RECOVERY;
        self.count += 1;
        self.survived += u32::from(is_survived);
        self.p999 = self.p999.max(section.p999());
        self.slowest = self.slowest.max(section.slowest());
        self.recovery = self.recovery.max(recovery);
        self.least = Some(self.least.map_or(share, |least| least.min(share)));
        self.most = self.most.max(share);
        self.unused = self.unused.max(section.limit().floor() - section.admitted());
        self.beyond = self.beyond.max(beyond);
    }
}

impl Scorecard {
    pub(super) fn add(&mut self, calm: Sections, cycle: Cycle) {
        let Cycle { fault, recovery, sections } = cycle;
        let largest = sections.exact.reports.iter().map(|report| report.resident_kib).max();
        self.resident_kib.push(largest.unwrap_or_default());
        for (fault, recovery, sections) in
            [(None, Duration::ZERO, calm), (Some(fault), recovery, sections)]
        {
            let rows = self.rows.entry(fault).or_default();
            for (row, section) in rows.iter_mut().zip([&sections.exact, &sections.leased]) {
                row.add(section, recovery, fault);
                self.checks += section.reports.iter().map(|report| report.checks).sum::<u64>();
                self.failed += section.reports.iter().map(|report| report.failed).sum::<u64>();
            }
            self.held.entry(fault).or_default().add(&sections.held, fault);
            let leased = &sections.leased.reports;
            self.leased += leased.iter().map(|report| report.by_lease).sum::<u64>();
            self.of_leased +=
                leased.iter().map(|report| report.by_lease + report.checks).sum::<u64>();
        }
    }

    pub(super) fn is_met(&self) -> bool {
        let (early, late) = self.resident();
        let has_grown = late as f64 > early as f64 * MAX_GROWTH;
        let is_quick = self.open_breaker <= LONGEST_OPEN;
        self.failed == 0
            && !has_grown
            && is_quick
            && self.rows.values().flatten().all(|row| row.survived == row.count)
            && self.held.values().all(|row| row.survived == row.count)
    }

    fn survived(&self) -> u32 {
        self.of_faults().map(|row| row.survived).sum()
    }

    fn faults(&self) -> u32 {
        self.of_faults().map(|row| row.count).sum()
    }

    fn of_faults(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|(fault, _)| fault.is_some()).flat_map(|(_, rows)| rows)
    }

    /// After a quarter of the run, and at the end.
    fn resident(&self) -> (u64, u64) {
        let at = |index: usize| self.resident_kib.get(index).copied().unwrap_or_default();
        (at(self.resident_kib.len() / 4), at(self.resident_kib.len().saturating_sub(1)))
    }
}

impl fmt::Display for Scorecard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| fault | survived | 99.9% of checks | slowest | recovery | admitted, of the limit | permits unused | beyond the bound |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|--:|")?;
        let rows = self.rows.iter().flat_map(|(fault, [exact, leased])| {
            let name = fault.map_or("none", Fault::name);
            [(name.to_owned(), exact), (format!("{name}, with leases"), leased)]
        });
        for (name, row) in rows {
            let Row { count, survived, p999, slowest, recovery, least, most, unused, beyond } = row;
            let (least, most) = (100.0 * least.unwrap_or_default(), 100.0 * most);
            let millis = |time: &Duration| format!("{:.1} ms", 1e3 * time.as_secs_f64());
            let (p999, slowest, recovery) = (millis(p999), millis(slowest), millis(recovery));
            let (unused, beyond) = (unused.max(0.0), beyond.max(0.0));
            writeln!(
                f,
                "| {name} | {survived} of {count} | {p999} | {slowest} | {recovery} | {least:.0} to {most:.0}% | {unused} | {beyond} |"
            )?;
        }
        writeln!(
            f,
            "\n| fault | survived | permits held at a time, at most, of {} | on average |",
            held::LIMIT
        )?;
        writeln!(f, "|---|--:|--:|--:|")?;
        for (fault, HeldRow { count, survived, most, average }) in &self.held {
            let (name, average) = (fault.map_or("none", Fault::name), average.unwrap_or_default());
            writeln!(f, "| {name} | {survived} of {count} | {most} | {average:.1} |")?;
        }
        let (early, late) = self.resident();
        let Self { checks, failed, open_breaker, .. } = self;
        let by_lease = 100 * self.leased / self.of_leased.max(1);
        writeln!(
            f,
            "\n{} of {} rows of faults survived. {checks} checks, of which {failed} failed. Leases decided {by_lease}% of \
             the checks of their key. Resident memory of the largest process: {early} KiB \
             after a quarter, {late} KiB at the end.\nWith an open breaker, and nothing else running, 99% of \
             the checks took at most {open_breaker:.1?}.\nRequired: at most {LONGEST:?} for 99.9% of the checks, \
             recovery within {LONGEST_RECOVERY:?}, \
             {LONGEST_OPEN:?} with an open breaker, nothing beyond the bound, no failed check, and memory at \
             most {MAX_GROWTH} times: {}.",
            self.survived(),
            self.faults(),
            if self.is_met() { "met" } else { "NOT MET" }
        )
    }
}
