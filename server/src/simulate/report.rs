//! What a simulation has found.

use std::fmt::Write;

use jiff::Timestamp;
use serde::Serialize;

use super::run::{Lines, Run};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    lines: u64,
    /// Lines that could not be used.
    skipped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    out_of_order: u64,
    from: String,
    to: String,
    pub(super) policies: Vec<PolicyReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    file: String,
    pub(super) policy: String,
    quotas: Vec<String>,
    admitted: u64,
    denied: u64,
    denied_percent: f64,
    /// Keys that were denied at least once.
    denied_keys: usize,
    most_denied: Vec<DeniedKey>,
    pub(super) minutes: Vec<Minute>,
}

#[derive(Debug, Serialize)]
struct DeniedKey {
    key: String,
    denied: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Minute {
    pub(super) start: String,
    /// Since 1970.
    #[serde(skip)]
    pub(super) number: u64,
    pub(super) admitted: u64,
    pub(super) denied: u64,
}

impl Report {
    /// With at most `top` keys of each policy.
    pub(super) fn new(lines: &Lines, runs: &[Run], top: usize) -> Self {
        Self {
            lines: lines.all,
            skipped: lines.all - lines.used,
            first_error: lines.first_error.clone(),
            out_of_order: lines.out_of_order,
            from: time(lines.first.unwrap_or_default()),
            to: time(lines.last),
            policies: runs.iter().map(|run| PolicyReport::new(run, top)).collect(),
        }
    }

    pub(super) fn json(&self) -> String {
        // All keys are strings, so this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let Self { lines, skipped, out_of_order, from, to, .. } = self;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{lines} lines, from {from} to {to}");
        if let Some(error) = &self.first_error {
            let _ = writeln!(text, "{skipped} lines were skipped, the first one: {error}");
        }
        if *out_of_order > 0 {
            let _ = writeln!(
                text,
                "lines out of order, replayed at the latest time before them: {out_of_order}. If there are \
                 many, sort the log"
            );
        }
        let has_files = self.policies.iter().any(|policy| policy.file != self.policies[0].file);
        for policy in &self.policies {
            let _ = write!(text, "\n{}: {}", policy.policy, policy.quotas.join(", "));
            let _ = if has_files { writeln!(text, " ({})", policy.file) } else { writeln!(text) };
            let PolicyReport { admitted, denied, denied_percent, denied_keys, .. } = policy;
            let _ = writeln!(text, "  admitted {admitted:>12}");
            let _ = writeln!(text, "  denied   {denied:>12}  {denied_percent:.2}% of requests");
            let _ = writeln!(text, "  keys     {denied_keys:>12}  denied at least once");
            for DeniedKey { key, denied } in &policy.most_denied {
                let _ = writeln!(text, "           {denied:>12}  {}", key.escape_debug());
            }
        }
        text
    }
}

impl PolicyReport {
    fn new(run: &Run, top: usize) -> Self {
        let mut denied: Vec<_> = run.denied.iter().collect();
        denied.sort_by(|(a, a_count), (b, b_count)| b_count.cmp(a_count).then(a.cmp(b)));
        let most_denied = denied.iter().take(top);
        let most_denied =
            most_denied.map(|&(key, denied)| DeniedKey { key: key.clone(), denied: *denied });
        let all = run.total.admitted + run.total.denied;
        let minutes = run.minutes.iter().map(|(&number, counts)| Minute {
            start: time(number * 60_000_000),
            number,
            admitted: counts.admitted,
            denied: counts.denied,
        });
        Self {
            file: run.file.clone(),
            policy: run.policy.name().to_owned(),
            quotas: run.policy.quotas().map(|(name, quota)| format!("{name} {quota}")).collect(),
            admitted: run.total.admitted,
            denied: run.total.denied,
            denied_percent: 100.0 * run.total.denied as f64 / all.max(1) as f64,
            denied_keys: run.denied.len(),
            most_denied: most_denied.collect(),
            minutes: minutes.collect(),
        }
    }
}

fn time(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX).to_string()
}
