//! The replay: each line of a log becomes a check of each policy, at the time of the line, and is counted.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{self, BufRead};
use std::num::NonZeroUsize;
use std::time::{Duration, UNIX_EPOCH};

use fleetlimit::{ConfigError, FailureMode, Limiter, ManualClock, MemoryStore, Policy};
use futures_util::FutureExt;
use serde::Serialize;

use crate::address::is_client;
use crate::busy_keys::BusyKeys;
use crate::line::Line;
use crate::log_time::LogTime;
use crate::pattern::{Pattern, fields_of};
use crate::text::{counted, shortened};

/// Maximum number of keys per policy. Beyond it, buckets are evicted.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(10_000_000).unwrap();
/// The most keys of which all are counted. Of more, the rare ones are not.
const MAX_COUNTED_KEYS: usize = 1 << 18;
/// A minute in microseconds.
pub(crate) const MINUTE: u64 = 60_000_000;

/// One policy of a file, and what it has decided.
#[derive(Debug)]
pub(crate) struct Run {
    /// The index of its file.
    pub(crate) file: usize,
    pub(crate) policy: Policy,
    pub(crate) total: Counts,
    /// The counts by minute, in order, with the number of the minute since 1970.
    pub(crate) minutes: Vec<(u64, Counts)>,
    clock: ManualClock,
    limiter: Limiter,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

impl Counts {
    pub(crate) fn denied_percent(self) -> f64 {
        100.0 * self.denied as f64 / (self.admitted + self.denied).max(1) as f64
    }

    fn add(&mut self, is_denied: bool) {
        self.admitted += u64::from(!is_denied);
        self.denied += u64::from(is_denied);
    }
}

impl Run {
    /// # Errors
    ///
    /// If the policy cannot be replayed.
    pub(crate) fn new(file: usize, policy: Policy) -> Result<Self, ConfigError> {
        let clock = ManualClock::new(UNIX_EPOCH);
        let store = MemoryStore::with_manual_clock(MAX_KEYS, clock.clone());
        let limiter =
            Limiter::builder(store, policy.clone()).failure_mode(FailureMode::Closed).build()?;
        Ok(Self { file, policy, total: Counts::default(), minutes: Vec::new(), clock, limiter })
    }

    /// Returns true if the request is denied. Times do not go back.
    fn check(&mut self, time: u64, key: &str, cost: u64) -> bool {
        self.clock.advance_to(UNIX_EPOCH + Duration::from_micros(time));
        // A memory store decides at once.
        let decision = self.limiter.check_cost(key, cost).now_or_never();
        let is_denied = !decision.is_some_and(|result| result.is_ok_and(|d| d.is_allowed()));
        self.total.add(is_denied);
        let minute = time / MINUTE;
        match self.minutes.last_mut() {
            Some((last, counts)) if *last == minute => counts.add(is_denied),
            _ => {
                let mut counts = Counts::default();
                counts.add(is_denied);
                self.minutes.push((minute, counts));
            }
        }
        is_denied
    }
}

/// The lines of a log, counted.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) all: u64,
    pub(crate) used: u64,
    /// The lines that are earlier than a line before. They count at the later time.
    pub(crate) out_of_order: u64,
    /// The first time in microseconds since 1970.
    pub(crate) first: Option<u64>,
    pub(crate) last: u64,
    /// The reasons for which lines could not be used, in the order of their first lines.
    pub(crate) skipped: Vec<Skipped>,
    /// The number of the first line that lacks a field, and those that it has.
    pub(crate) lacking: Option<(u64, String)>,
    /// The used lines in which `{ip}` is part of the key, but not an address.
    pub(crate) not_addresses: u64,
    /// The number of the first of these lines, and its `{ip}`.
    first_not_address: Option<(u64, String)>,
    pub(crate) keys: BusyKeys,
}

/// Lines that could not be used, for the same reason.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Skipped {
    pub(crate) reason: Cow<'static, str>,
    pub(crate) lines: u64,
    pub(crate) first_line: u64,
}

impl Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.first_line, self.reason)
    }
}

impl Lines {
    /// The error of the first line that could not be used.
    pub(crate) fn first_error(&self) -> Option<String> {
        self.skipped.first().map(Skipped::to_string)
    }

    /// The reason for which there is nothing to report, if no line could be used.
    pub(crate) fn error(&self) -> Option<String> {
        if self.used > 0 {
            return None;
        }
        let lines = match self.all {
            0 => return Some("the log is empty".to_owned()),
            1 => "the only line could not be used".to_owned(),
            all => format!("none of {all} lines could be used"),
        };
        let errors: Vec<_> = self.skipped.iter().map(Skipped::to_string).collect();
        let mut error = format!("{lines}: {}", errors.join("; "));
        if let Some((line, fields)) = &self.lacking {
            error += &format!(". Line {line} has {fields}");
        }
        Some(error)
    }

    fn skip(&mut self, reason: Cow<'static, str>) {
        match self.skipped.iter_mut().find(|skipped| skipped.reason == reason) {
            Some(skipped) => skipped.lines += 1,
            None => self.skipped.push(Skipped { reason, lines: 1, first_line: self.all }),
        }
    }

    /// Counts the line if its client is not an address. Such a value is a key like any other.
    fn check_client(&mut self, line: &Line<'_>) {
        if let Some(ip) = line.ip.as_deref()
            && !is_client(ip)
        {
            self.not_addresses += 1;
            self.first_not_address.get_or_insert_with(|| (self.all, shortened(ip)));
        }
    }

    /// A warning that `{ip}` is not an address in some lines.
    pub(crate) fn warning(&self) -> Option<String> {
        let (line, ip) = self.first_not_address.as_ref()?;
        let lines = counted(self.not_addresses, "line");
        Some(format!("{{ip}} is not an address in {lines}; the first is line {line}, with `{ip}`"))
    }
}

/// Replays all lines. Those that cannot be used are counted. Not generic, so that it is compiled with what it calls.
///
/// # Errors
///
/// If the log cannot be read.
pub(crate) fn replay(
    log: &mut dyn BufRead,
    key: &Pattern,
    cost: &Pattern,
    runs: &mut [Run],
) -> io::Result<Lines> {
    let mut lines = Lines {
        all: 0,
        used: 0,
        out_of_order: 0,
        first: None,
        last: 0,
        skipped: Vec::new(),
        lacking: None,
        not_addresses: 0,
        first_not_address: None,
        keys: BusyKeys::new(MAX_COUNTED_KEYS),
    };
    let (mut bytes, mut times) = (Vec::new(), LogTime::default());
    let (mut key_text, mut cost_text) = (String::new(), String::new());
    let mut is_denied = Vec::with_capacity(runs.len());
    let has_ip = key.has_ip();
    while log.read_until(b'\n', &mut bytes)? > 0 {
        let line = bytes.trim_ascii();
        // `from_utf8_lossy` alone takes a fifth of the time of a line.
        let text = str::from_utf8(line).map_or_else(|_| String::from_utf8_lossy(line), Cow::from);
        lines.all += 1;
        let parsed = Line::parse(&text, &mut times).map_err(Cow::Borrowed).and_then(|line| {
            key.write(&line, &mut key_text)
                .and_then(|()| cost.write(&line, &mut cost_text))
                .inspect_err(|_| {
                    lines.lacking.get_or_insert_with(|| (lines.all, fields_of(&line)));
                })?;
            // Servers write `-` for no bytes.
            let cost = if cost_text == "-" { Ok(0) } else { cost_text.parse() };
            let cost = cost.map_err(|_| "the cost is not a number")?;
            if has_ip {
                lines.check_client(&line);
            }
            Ok((line.time, cost))
        });
        match parsed {
            Ok((time, cost)) => {
                lines.used += 1;
                lines.out_of_order += u64::from(time < lines.last);
                lines.first.get_or_insert(time);
                lines.last = lines.last.max(time);
                is_denied.clear();
                is_denied.extend(runs.iter_mut().map(|run| run.check(lines.last, &key_text, cost)));
                lines.keys.count(&key_text, &is_denied);
            }
            Err(reason) => lines.skip(reason),
        }
        bytes.clear();
    }
    Ok(lines)
}
