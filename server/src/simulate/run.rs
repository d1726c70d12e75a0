//! The replay.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::FutureExt;
use tollgate::{ConfigError, FailureMode, Limiter, ManualClock, MemoryStore, Policy};

use super::line::Line;
use super::log_time::LogTime;
use super::pattern::Pattern;
use crate::config::Config;

/// Maximum number of keys per policy. Beyond it, buckets are evicted.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(10_000_000).unwrap();
const MINUTE: u64 = 60_000_000;

/// One policy, and what it has decided.
pub(super) struct Run {
    pub(super) file: String,
    pub(super) policy: Policy,
    pub(super) total: Counts,
    /// By the minute since 1970.
    pub(super) minutes: BTreeMap<u64, Counts>,
    /// How often each key was denied.
    pub(super) denied: HashMap<String, u64>,
    clock: ManualClock,
    limiter: Limiter,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) admitted: u64,
    pub(super) denied: u64,
}

/// What was in the log.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) all: u64,
    pub(super) used: u64,
    /// Earlier than a line before. They count at the later time.
    pub(super) out_of_order: u64,
    /// In microseconds since 1970.
    pub(super) first: Option<u64>,
    pub(super) last: u64,
    /// Of the first line that could not be used.
    pub(super) first_error: Option<String>,
}

impl Run {
    /// The policies of a configuration with these names, or all of the settings file.
    ///
    /// # Errors
    ///
    /// If there is none with a name.
    pub(super) fn of(file: &Path, config: &Config, names: &[String]) -> Result<Vec<Self>, String> {
        let file = file.display().to_string();
        for name in names {
            if config.policies.get(name).is_none() {
                return Err(format!("{file}: there is no policy `{name}`"));
            }
        }
        let chosen = config
            .policies
            .iter()
            .filter(|policy| names.is_empty() || names.iter().any(|name| name == policy.name()));
        let runs: Vec<_> = chosen
            .map(|policy| Self::new(file.clone(), policy.clone()))
            .collect::<Result<_, _>>()
            .map_err(|error| format!("{file}: {error}"))?;
        if runs.is_empty() { Err(format!("{file}: there is no policy")) } else { Ok(runs) }
    }

    fn new(file: String, policy: Policy) -> Result<Self, ConfigError> {
        let clock = ManualClock::new(UNIX_EPOCH);
        let store = MemoryStore::with_manual_clock(MAX_KEYS, clock.clone());
        let limiter =
            Limiter::builder(store, policy.clone()).failure_mode(FailureMode::Closed).build()?;
        let (minutes, denied) = (BTreeMap::new(), HashMap::new());
        Ok(Self { file, policy, total: Counts::default(), minutes, denied, clock, limiter })
    }

    fn replay(&mut self, time: u64, key: &str, cost: u64) {
        self.clock.advance_to(UNIX_EPOCH + Duration::from_micros(time));
        // A memory store decides at once.
        let decision = self.limiter.check_cost(key, cost).now_or_never();
        let is_allowed = decision.is_some_and(|result| result.is_ok_and(|d| d.is_allowed()));
        let minute = self.minutes.entry(time / MINUTE).or_default();
        for counts in [minute, &mut self.total] {
            if is_allowed {
                counts.admitted += 1;
            } else {
                counts.denied += 1;
            }
        }
        if !is_allowed {
            match self.denied.get_mut(key) {
                Some(count) => *count += 1,
                None => {
                    self.denied.insert(key.to_owned(), 1);
                }
            }
        }
    }
}

/// Replays all lines. Those that cannot be used are counted.
pub(super) fn replay(
    log: &mut impl BufRead,
    key: &Pattern,
    cost: &Pattern,
    runs: &mut [Run],
    lines: &mut Lines,
) -> io::Result<()> {
    let (mut bytes, mut times) = (Vec::new(), LogTime::default());
    let (mut key_text, mut cost_text) = (String::new(), String::new());
    while log.read_until(b'\n', &mut bytes)? > 0 {
        let text = String::from_utf8_lossy(bytes.trim_ascii());
        lines.all += 1;
        let parsed = Line::parse(&text, &mut times).and_then(|line| {
            key.write(&line, &mut key_text);
            cost.write(&line, &mut cost_text);
            // Servers write `-` for no bytes.
            let cost = if cost_text == "-" { Ok(0) } else { cost_text.parse() };
            Ok((line.time, cost.map_err(|_| "the cost is not a number")?))
        });
        match parsed {
            Ok((time, cost)) => {
                lines.used += 1;
                lines.out_of_order += u64::from(time < lines.last);
                lines.first.get_or_insert(time);
                lines.last = lines.last.max(time);
                for run in &mut *runs {
                    run.replay(lines.last, &key_text, cost);
                }
            }
            Err(error) => {
                let number = lines.all;
                lines.first_error.get_or_insert_with(|| format!("line {number}: {error}"));
            }
        }
        bytes.clear();
    }
    Ok(())
}
