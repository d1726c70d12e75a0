//! A report as text.

use std::cmp::Reverse;
use std::fmt::Write;

use crate::report::{Minute, PolicyReport, PolicyResult, Report, clock};
use crate::run::{Counts, Skipped};
use crate::text::{counted, grouped, shortened};

const DIFFERENCE: &str = "denied B - A";

type Row = Vec<String>;
type Column = (&'static str, fn(&PolicyResult) -> String);

const COLUMNS: [Column; 4] = [
    ("admitted", |result| grouped(result.counts.admitted)),
    ("denied", |result| grouped(result.counts.denied)),
    ("% denied", |result| percent(result.counts)),
    ("keys denied", |result| grouped(result.denied_keys as u64)),
];

/// The report as text, with this many minutes of each policy, those with the most requests.
pub(crate) fn table(report: &Report, minutes: usize) -> String {
    let mut text = String::new();
    header(report, &mut text);
    text.push('\n');
    let mut rows = vec![headings(report)];
    rows.extend(report.policies.iter().map(|policy| totals(policy, report)));
    align(&rows, &mut text);
    for policy in &report.policies {
        text.push('\n');
        for result in &policy.results {
            let (suffix, quotas) = (suffix(report, result.index), result.quotas.join(", "));
            line(&mut text, format_args!("{}{suffix}: {quotas}", policy.policy));
        }
        let mut rows = Vec::new();
        details(policy, report, minutes, &mut rows);
        align(&rows, &mut text);
    }
    text
}

fn header(report: &Report, text: &mut String) {
    let Report { lines, skipped, out_of_order, from, to, keys, missed_per_key, .. } = report;
    line(text, format_args!("{}, from {from} to {to}", counted(*lines, "line")));
    if let Some(error) = &report.first_error {
        let skipped = grouped(*skipped);
        line(text, format_args!("lines skipped: {skipped}; the first error: {error}"));
    }
    if report.skipped_by_reason.len() > 1 {
        for Skipped { reason, lines, .. } in &report.skipped_by_reason {
            line(text, format_args!("  {}: {reason}", counted(*lines, "line")));
        }
    }
    if *out_of_order > 0 {
        line(
            text,
            format_args!(
                "{} out of order, replayed at the latest time so far. If there are many, sort the log",
                counted(*out_of_order, "line")
            ),
        );
    }
    if *missed_per_key == 0 {
        line(text, format_args!("{}", counted(*keys as u64, "key")));
    } else {
        let missed = grouped(*missed_per_key);
        line(
            text,
            format_args!(
                "too many keys to count exactly: keys with few requests are neither listed nor counted as \
                 keys denied, and each count of a key below may be too low by up to {missed}"
            ),
        );
    }
    if let [first, second] = &report.files[..] {
        line(text, format_args!("A is {first}, B is {second}"));
    }
}

fn headings(report: &Report) -> Row {
    let mut row = vec!["policy".to_owned()];
    for (name, _) in COLUMNS {
        row.extend((0..report.files.len()).map(|file| format!("{name}{}", suffix(report, file))));
    }
    if report.files.len() > 1 {
        row.push(DIFFERENCE.to_owned());
    }
    row
}

fn totals(policy: &PolicyReport, report: &Report) -> Row {
    let mut row = vec![policy.policy.clone()];
    for (_, cell) in COLUMNS {
        row.extend((0..report.files.len()).map(|file| {
            let result = policy.results.iter().find(|result| result.index == file);
            result.map_or("-".to_owned(), cell)
        }));
    }
    if report.files.len() > 1 {
        let counts: Vec<_> = policy.results.iter().map(|result| result.counts).collect();
        row.push(difference(&counts).unwrap_or("-".to_owned()));
    }
    row
}

/// The keys and the minutes of a policy.
fn details(policy: &PolicyReport, report: &Report, minutes: usize, rows: &mut Vec<Row>) {
    let mut section = |title: &str, lines: Vec<(String, u64, &[Counts])>| {
        if lines.is_empty() {
            return;
        }
        rows.push(Row::new());
        let mut headings = vec![title.to_owned(), "requests".to_owned()];
        for name in ["admitted", "denied"] {
            let suffixes = policy.results.iter().map(|result| suffix(report, result.index));
            headings.extend(suffixes.map(|suffix| format!("{name}{suffix}")));
        }
        headings.push(if policy.results.len() > 1 { DIFFERENCE } else { "% denied" }.to_owned());
        rows.push(headings);
        rows.extend(lines.into_iter().map(|(label, requests, counts)| {
            let mut row = vec![label, grouped(requests)];
            row.extend(counts.iter().map(|counts| grouped(counts.admitted)));
            row.extend(counts.iter().map(|counts| grouped(counts.denied)));
            row.push(difference(counts).unwrap_or_else(|| percent(counts[0])));
            row
        }));
    };
    for (title, keys) in [
        ("keys with the most requests", &policy.most_requests),
        ("keys denied most", &policy.most_denied),
    ] {
        let keys = keys.iter().map(|key| (shortened(&key.key), key.requests, &key.results[..]));
        section(title, keys.collect());
    }
    let busiest = busiest(&policy.minutes, minutes).into_iter();
    let busiest =
        busiest.map(|minute| (clock(minute.number), minute.requests, &minute.results[..]));
    let title = if minutes < policy.minutes.len() { "busiest minutes" } else { "minutes" };
    section(title, busiest.collect());
}

/// The minutes with the most requests, in order.
fn busiest(minutes: &[Minute], most: usize) -> Vec<&Minute> {
    let mut busiest: Vec<_> = minutes.iter().collect();
    busiest.sort_by_key(|minute| Reverse(minute.requests));
    busiest.truncate(most);
    busiest.sort_by_key(|minute| minute.number);
    busiest
}

fn suffix(report: &Report, file: usize) -> &'static str {
    match (report.files.len(), file) {
        (1, _) => "",
        (_, 0) => " A",
        _ => " B",
    }
}

fn difference(counts: &[Counts]) -> Option<String> {
    let [first, second] = counts else { return None };
    let sign = if second.denied < first.denied { "-" } else { "+" };
    Some(match second.denied.abs_diff(first.denied) {
        0 => "0".to_owned(),
        difference => format!("{sign}{}", grouped(difference)),
    })
}

fn percent(counts: Counts) -> String {
    format!("{:.2}", counts.denied_percent())
}

/// Writes columns: the first one to the left, all others to the right.
fn align(rows: &[Row], text: &mut String) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let mut cells = row.iter().zip(&widths);
        if let Some((first, &width)) = cells.next() {
            let _ = write!(text, "  {first:width$}");
        }
        for (cell, &width) in cells {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
}

/// Writing to a string cannot fail.
fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{words}");
}
