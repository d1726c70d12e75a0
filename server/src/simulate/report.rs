//! What a simulation has found.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::busy_keys::KeyCounts;
use super::run::{Counts, Lines, MINUTE, Run, Skipped};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) lines: u64,
    /// Lines that could not be used.
    pub(super) skipped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) skipped_by_reason: Vec<Skipped>,
    pub(super) out_of_order: u64,
    pub(super) from: String,
    pub(super) to: String,
    /// Only those that were kept, if some were dropped.
    pub(super) keys: usize,
    /// How many requests are missing at most in the counts of any key.
    pub(super) missed_per_key: u64,
    pub(super) files: Vec<String>,
    pub(super) policies: Vec<PolicyReport>,
}

/// All `results` are those of the files that have the policy, in the same order.
#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: String,
    pub(super) results: Vec<PolicyResult>,
    /// The second result minus the first, if there are two.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<Difference>,
    pub(super) most_requests: Vec<KeyReport>,
    pub(super) most_denied: Vec<KeyReport>,
    pub(super) minutes: Vec<Minute>,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyResult {
    /// The index of its file.
    #[serde(skip)]
    pub(super) index: usize,
    pub(super) file: String,
    pub(super) quotas: Vec<String>,
    #[serde(flatten)]
    pub(super) counts: Counts,
    pub(super) denied_percent: f64,
    /// Keys that were denied at least once, of those that were kept.
    pub(super) denied_keys: usize,
}

#[derive(Debug, Serialize)]
struct Difference {
    admitted: i64,
    denied: i64,
    denied_percent: f64,
    denied_keys: i64,
}

#[derive(Debug, Serialize)]
pub(super) struct KeyReport {
    pub(super) key: String,
    pub(super) requests: u64,
    pub(super) results: Vec<Counts>,
}

#[derive(Debug, Serialize)]
pub(super) struct Minute {
    /// Since 1970.
    #[serde(rename = "start", serialize_with = "start")]
    pub(super) number: u64,
    pub(super) requests: u64,
    pub(super) results: Vec<Counts>,
}

impl Report {
    /// With at most `top` keys in each list.
    pub(super) fn new(files: Vec<String>, lines: &Lines, runs: &[Run], top: usize) -> Self {
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
            lines: lines.all,
            skipped: lines.all - lines.used,
            first_error: lines.first_error(),
            skipped_by_reason: lines.skipped.clone(),
            out_of_order: lines.out_of_order,
            from: time(lines.first.unwrap_or_default()).to_string(),
            to: time(lines.last).to_string(),
            keys: lines.keys.len(|_| true),
            missed_per_key: lines.keys.missed(),
            policies: policies.collect(),
            files,
        }
    }

    pub(super) fn json(&self) -> String {
        // All keys are strings, so this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl PolicyReport {
    /// With the runs of the policy, and their indexes.
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

/// All runs have the same minutes.
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
pub(super) fn clock(number: u64) -> String {
    time(number.saturating_mul(MINUTE)).strftime("%Y-%m-%d %H:%M").to_string()
}

fn start<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&time(number.saturating_mul(MINUTE)))
}
