//! The permits of a concurrent quota that the processes hold at a time. Each use of a permit is surely between two times
//! of a clock that all processes have: after it was taken, and before it was given back.

use std::str::FromStr;
use std::time::SystemTime;

use crate::subjects::BoxError;

/// The most permits at a time, and the tasks of each process that want one.
pub(super) const LIMIT: u64 = 18;
pub(super) const TASKS: u64 = 12;

/// The uses of permits in a section, from and to times in microseconds since 1970.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses(Vec<(u64, u64)>);

impl Uses {
    pub(super) fn add(&mut self, began: u64, ended: u64) {
        self.0.push((began, ended));
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// Returns the most permits that were surely in use at a time.
    pub(super) fn most(&self) -> u64 {
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for &(began, ended) in &self.0 {
            changes.extend([(began, 1), (ended, -1)]);
        }
        // What ends at a time ends first.
        changes.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, change) in changes {
            now += change;
            most = most.max(now);
        }
        most.unsigned_abs()
    }

    /// Returns how many were in use on average, from the first use to the last.
    pub(super) fn average(&self) -> f64 {
        let first = self.0.iter().map(|(began, _)| *began).min().unwrap_or_default();
        let last = self.0.iter().map(|(_, ended)| *ended).max().unwrap_or_default();
        let used: u64 = self.0.iter().map(|(began, ended)| ended.saturating_sub(*began)).sum();
        used as f64 / last.saturating_sub(first).max(1) as f64
    }

    pub(super) fn write(&self) -> String {
        let uses = self.0.iter().map(|(began, ended)| format!("{began}-{ended}"));
        uses.collect::<Vec<_>>().join(",")
    }
}

impl FromStr for Uses {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self, BoxError> {
        let uses = text.split(',').filter(|text| !text.is_empty()).map(|text| {
            let (began, ended) = text.split_once('-').ok_or("not a use")?;
            Ok::<_, BoxError>((began.parse()?, ended.parse()?))
        });
        Ok(Self(uses.collect::<Result<_, _>>()?))
    }
}

/// The clock of all processes, in microseconds since 1970.
pub(super) fn clock() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros() as u64
}
