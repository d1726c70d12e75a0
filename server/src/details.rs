//! Counts by the values of descriptors, for `detailed_metric` and `value_to_metric`.
//!
//! Clients choose the values, and each of them takes memory, here and in Prometheus. So only those that were used
//! last have a series. An exporter keeps its series until the process ends, which is why these are rendered here.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const NAME: &str = "fleetlimit_server_descriptors_total";
const HELP: &str = "Decisions by the values of descriptors with detailed_metric or value_to_metric";
const MAX_SERIES: usize = 1_000;
/// The time between two replacements. It bounds how many series clients can add to Prometheus, and a value that is
/// used more often than once per `MAX_SERIES` of them keeps its series in any flood of others.
const REPLACEMENT_INTERVAL: Duration = Duration::from_secs(1);
/// The label of values without a series.
const OTHER: &str = "other";
/// A longer label is cut.
const MAX_LEN: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Details(Mutex<Table>);

/// The counts by the labels of their series.
#[derive(Debug, Default)]
struct Table {
    series: HashMap<Arc<str>, Series>,
    /// The series of the values without one, one per policy.
    others: HashMap<Arc<str>, Series>,
    /// The number of counted decisions.
    uses: u64,
    replaced_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Series {
    allowed: u64,
    denied: u64,
    /// The number of the last use.
    used: u64,
}

impl Details {
    pub(crate) fn count(&self, policy: &str, descriptor: &str, is_allowed: bool) {
        self.count_at(Instant::now(), policy, descriptor, is_allowed);
    }

    fn count_at(&self, now: Instant, policy: &str, descriptor: &str, is_allowed: bool) {
        let descriptor: String = descriptor.chars().take(MAX_LEN).collect();
        // Not under the lock, for which all requests with such descriptors wait.
        let own = Some(labels(policy, &descriptor)).filter(|_| descriptor != OTHER);
        let others = labels(policy, OTHER);
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.uses += 1;
        let used = table.uses;
        let series = table.series(own, others, now);
        series.used = used;
        *(if is_allowed { &mut series.allowed } else { &mut series.denied }) += 1;
    }

    /// Returns the series in the text format of Prometheus.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for (labels, series) in self.all() {
            if text.is_empty() {
                text = format!("# HELP {NAME} {HELP}\n# TYPE {NAME} counter\n");
            }
            for (outcome, count) in [("allowed", series.allowed), ("denied", series.denied)] {
                if count > 0 {
                    // Writing to a string does not fail.
                    let _ = writeln!(text, "{NAME}{{{labels},outcome=\"{outcome}\"}} {count}");
                }
            }
        }
        text
    }

    /// A copy of all series, because text that is written under the lock would delay requests.
    fn all(&self) -> Vec<(Arc<str>, Series)> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = table.series.iter().chain(&table.others);
        all.map(|(labels, series)| (labels.clone(), *series)).collect()
    }
}

impl Table {
    /// The series of a value, or that of the values without one.
    fn series(&mut self, own: Option<Arc<str>>, others: Arc<str>, now: Instant) -> &mut Series {
        match own.filter(|labels| self.has_series_for(labels, now)) {
            Some(labels) => self.series.entry(labels).or_default(),
            None => self.others.entry(others).or_default(),
        }
    }

    /// Returns false if the value has no series and gets none. May make room for it.
    fn has_series_for(&mut self, labels: &str, now: Instant) -> bool {
        if self.series.len() < MAX_SERIES || self.series.contains_key(labels) {
            return true;
        }
        let since = self.replaced_at.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < REPLACEMENT_INTERVAL) {
            return false;
        }
        let oldest = self.series.iter().min_by_key(|(_, series)| series.used);
        if let Some(oldest) = oldest.map(|(labels, _)| labels.clone()) {
            self.series.remove(&oldest);
        }
        self.replaced_at = Some(now);
        true
    }
}

fn labels(policy: &str, descriptor: &str) -> Arc<str> {
    format!("policy=\"{}\",descriptor=\"{}\"", escaped(policy), escaped(descriptor)).into()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(details: &Details, descriptor: &str) -> bool {
        details.render().contains(&format!("descriptor=\"{descriptor}\""))
    }

    #[test]
    fn clients_cannot_add_series_without_a_bound() {
        let (details, now) = (Details::default(), Instant::now());
        for value in 0..3 * MAX_SERIES {
            details.count_at(now, "p", &format!("path_{value}"), true);
        }
        let text = details.render();
        // With those of `other`, and the two lines before. One replacement has been due.
        assert_eq!(text.lines().count(), MAX_SERIES + 3, "{text}");
        assert!(!has(&details, "path_0") && has(&details, "path_1") && has(&details, OTHER));
        let others = 2 * MAX_SERIES - 1;
        let line =
            format!("{NAME}{{policy=\"p\",descriptor=\"other\",outcome=\"allowed\"}} {others}");
        assert!(text.lines().any(|found| found == line), "{text}");
    }

    #[test]
    fn values_of_one_client_do_not_hold_the_series_that_others_use() {
        let (details, mut now) = (Details::default(), Instant::now());
        for value in 0..MAX_SERIES {
            details.count_at(now, "p", &format!("junk_{value}"), true);
        }
        // The client goes on with new values all the time.
        for second in 0..3 * MAX_SERIES {
            now += REPLACEMENT_INTERVAL;
            details.count_at(now, "p", "path_used", second % 2 == 0);
            details.count_at(now, "p", &format!("new_{second}"), true);
            assert!(has(&details, "path_used"), "after {second} s");
        }
        let text = details.render();
        for outcome in ["allowed", "denied"] {
            let line = format!(
                "{NAME}{{policy=\"p\",descriptor=\"path_used\",outcome=\"{outcome}\"}} {}",
                3 * MAX_SERIES / 2
            );
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        assert_eq!(text.matches("junk_").count(), 0, "they have not been used");
    }

    #[test]
    fn values_cannot_forge_series() {
        let details = Details::default();
        details.count("p", "a\"} 9\nforged{b=\"\\", true);
        details.count("p", OTHER, false);
        details.count("p", OTHER, true);
        let text = details.render();
        assert!(
            text.contains(r#"descriptor="a\"} 9\nforged{b=\"\\",outcome="allowed"} 1"#),
            "{text}"
        );
        assert_eq!(text.lines().count(), 5, "{text}");
    }
}
