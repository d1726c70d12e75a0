//! The result of a simulation, and its JSON: the fields are those of the JSON. `table` shows it as text, `plot`
//! as a picture.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::busy_keys::KeyCounts;
use crate::run::{Counts, Lines, MINUTE, Run, Skipped};

/// The result of a simulation.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(skip)]
    warning: Option<String>,
    pub(crate) lines: u64,
    /// Lines that could not be used.
    pub(crate) skipped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) skipped_by_reason: Vec<Skipped>,
    /// Used lines in which `{ip}` is part of the key, but not an address.
    not_addresses: u64,
    pub(crate) out_of_order: u64,
    pub(crate) from: String,
    pub(crate) to: String,
    /// The number of keys that were kept: all, or the busiest if there were too many.
    pub(crate) keys: usize,
    /// The most requests that are missing in the counts of any key.
    pub(crate) missed_per_key: u64,
    pub(crate) files: Vec<String>,
    pub(crate) policies: Vec<PolicyReport>,
}

/// A policy in all files that have it. All `results` are in the order of these files.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) policy: String,
    pub(crate) results: Vec<PolicyResult>,
    /// The second result minus the first, if there are two.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<Difference>,
    pub(crate) most_requests: Vec<KeyReport>,
    pub(crate) most_denied: Vec<KeyReport>,
    pub(crate) minutes: Vec<Minute>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PolicyResult {
    /// The index of its file.
    #[serde(skip)]
    pub(crate) index: usize,
    pub(crate) file: String,
    pub(crate) quotas: Vec<String>,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    pub(crate) denied_percent: f64,
    /// Keys that were denied at least once, of those that were kept.
    pub(crate) denied_keys: usize,
}

#[derive(Debug, Serialize)]
struct Difference {
    admitted: i64,
    denied: i64,
    denied_percent: f64,
    denied_keys: i64,
}

#[derive(Debug, Serialize)]
pub(crate) struct KeyReport {
    pub(crate) key: String,
    pub(crate) requests: u64,
    pub(crate) results: Vec<Counts>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Minute {
    /// The number of minutes since 1970.
    #[serde(rename = "start", serialize_with = "start")]
    pub(crate) number: u64,
    pub(crate) requests: u64,
    pub(crate) results: Vec<Counts>,
}

impl Report {
    /// Collects the result, with at most `top` keys in each list.
    pub(crate) fn new(files: Vec<String>, lines: &Lines, runs: &[Run], top: usize) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for run in runs {
            if !names.contains(&run.policy.name()) {
                names.push(run.policy.name());
            }
        }
        let policies = names.into_iter().map(|name| {
            let of_policy = runs.iter().enumerate().filter(|(_, run)| run.policy.name() == name);
            PolicyReport::new(name, &files, lines, &of_policy.collect::<Vec<_>>(), top)
        });
        Self {
            warning: lines.warning(),
            lines: lines.all,
            skipped: lines.all - lines.used,
            first_error: lines.first_error(),
            skipped_by_reason: lines.skipped.clone(),
            not_addresses: lines.not_addresses,
            out_of_order: lines.out_of_order,
            from: time(lines.first.unwrap_or_default()).to_string(),
            to: time(lines.last).to_string(),
            keys: lines.keys.len(|_| true),
            missed_per_key: lines.keys.missed(),
            policies: policies.collect(),
            files,
        }
    }

    /// A warning about the log, such as that `{ip}` is not an address in some lines.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Returns the report as a JSON document.
    pub fn json(&self) -> String {
        // All keys are strings, so this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl PolicyReport {
    /// Collects the result of a policy from its runs, which have their indexes.
    fn new(
        name: &str,
        files: &[String],
        lines: &Lines,
        runs: &[(usize, &Run)],
        top: usize,
    ) -> Self {
        let results: Vec<_> =
            runs.iter().map(|&(index, run)| PolicyResult::new(index, run, files, lines)).collect();
        let difference = match &results[..] {
            [first, second] => Some(Difference::new(first, second)),
            _ => None,
        };
        let keys = |rank: &dyn Fn(&KeyCounts) -> u64| {
            let keys = lines.keys.top(top, rank).into_iter();
            keys.map(|(key, counts)| KeyReport::new(key, counts, runs)).collect()
        };
        let denied = |counts: &KeyCounts| runs.iter().map(|(index, _)| counts.denied[*index]).sum();
        Self {
            policy: name.to_owned(),
            difference,
            most_requests: keys(&|counts| counts.requests),
            most_denied: keys(&denied),
            minutes: minutes(runs),
            results,
        }
    }
}

impl PolicyResult {
    fn new(index: usize, run: &Run, files: &[String], lines: &Lines) -> Self {
        let counts = run.total;
        Self {
            index: run.file,
            file: files[run.file].clone(),
            quotas: run.policy.quotas().map(|(name, quota)| format!("{name} {quota}")).collect(),
            counts,
            denied_percent: counts.denied_percent(),
            denied_keys: lines.keys.len(|counts| counts.denied[index] > 0),
        }
    }
}

impl Difference {
    fn new(first: &PolicyResult, second: &PolicyResult) -> Self {
        Self {
            admitted: second.counts.admitted as i64 - first.counts.admitted as i64,
            denied: second.counts.denied as i64 - first.counts.denied as i64,
            denied_percent: second.denied_percent - first.denied_percent,
            denied_keys: second.denied_keys as i64 - first.denied_keys as i64,
        }
    }
}

impl KeyReport {
    fn new(key: &str, counts: &KeyCounts, runs: &[(usize, &Run)]) -> Self {
        let results = runs.iter().map(|(index, _)| {
            let denied = counts.denied[*index];
            Counts { admitted: counts.requests - denied, denied }
        });
        Self { key: key.to_owned(), requests: counts.requests, results: results.collect() }
    }
}

/// The minutes of runs, which all have the same.
fn minutes(runs: &[(usize, &Run)]) -> Vec<Minute> {
    let Some((_, first)) = runs.first() else { return Vec::new() };
    let minutes = first.minutes.iter().enumerate().map(|(n, &(number, counts))| Minute {
        number,
        requests: counts.admitted + counts.denied,
        results: runs.iter().map(|(_, run)| run.minutes[n].1).collect(),
    });
    minutes.collect()
}

fn time(micros: u64) -> Timestamp {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

/// The start of a minute.
pub(crate) fn clock(number: u64) -> String {
    time(number.saturating_mul(MINUTE)).strftime("%Y-%m-%d %H:%M").to_string()
}

fn start<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&time(number.saturating_mul(MINUTE)))
}
