//! Quotas as text: see [`Quota`].

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::calendar::Zone;
use crate::quota::{Kind, WindowStart};
use crate::{ConfigError, Quota};

/// The units of a period and their nanoseconds, from the longest to the shortest. The first name of a
/// unit is the one that is written.
const UNITS: [(&str, u128); 11] = [
    ("week", 604_800_000_000_000),
    ("day", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("hour", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("minute", 60_000_000_000),
    ("s", 1_000_000_000),
    ("second", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The words for all kinds except the default.
const KINDS: [(&str, Kind); 4] = [
    ("interval", Kind::IntervalRefill),
    ("fixed", Kind::FixedWindow(WindowStart::FirstCheck)),
    ("calendar", Kind::FixedWindow(WindowStart::Clock)),
    ("sliding approximate", Kind::ApproximateSlidingWindow),
];

/// The word for the kind that has no period.
const CONCURRENT: &str = "concurrent";

impl FromStr for Quota {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut parser = Parser { text, rest: text };
        let permits = parser.number("the number of permits")?;
        let word = parser.rest.trim_start_matches(' ');
        if word == CONCURRENT && word.len() < parser.rest.len() {
            return Ok(Self::concurrent(permits));
        }
        parser.literal("/")?;
        let is_month = parser.rest.starts_with("month");
        let period = match is_month {
            true => parser.literal("month").map(|()| Self::MONTH)?,
            false => parser.period()?,
        };
        let mut quota = Self::new(permits, period);
        if let Some(burst) = parser.option("burst", "the burst")? {
            quota = quota.burst(burst);
        }
        if let Some(permits) = parser.option("borrow", "the number of permits")? {
            quota = quota.borrow_up_to(permits);
        }
        if let Some(permits) = parser.option("debt", "the number of permits")? {
            quota = quota.debt_up_to(permits);
        }
        let before = parser.rest;
        match parser.kind()? {
            Some(Kind::FixedWindow(WindowStart::Clock)) if is_month => quota = quota.in_month(),
            Some(Kind::FixedWindow(WindowStart::Zone(zone))) => {
                quota = if is_month { quota.in_month() } else { quota }.in_zone(zone);
            }
            _ if is_month => {
                parser.rest = before;
                return Err(parser.error("` calendar`, because months have different lengths,"));
            }
            Some(kind) => quota = quota.with_kind(kind),
            None => {}
        }
        if parser.rest.is_empty() { Ok(quota) } else { Err(parser.error("the end")) }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind() == Kind::Concurrent {
            return write!(f, "{} {CONCURRENT}", self.permits());
        }
        write!(f, "{}/", self.permits())?;
        let month = match self.kind() {
            Kind::FixedWindow(WindowStart::Month(_)) => Some((1, "month")),
            _ => None,
        };
        match month.unwrap_or_else(|| in_units(self.period())) {
            (1, unit) => write!(f, "{unit}")?,
            (count, unit) => write!(f, "{count}{unit}")?,
        }
        if self.capacity() != self.default_burst() {
            write!(f, " burst {}", self.capacity())?;
        }
        if self.borrowed() > 0 {
            write!(f, " borrow {}", self.borrowed())?;
        }
        if let Some(debt) = self.most_debt() {
            write!(f, " debt {debt}")?;
        }
        match self.kind() {
            Kind::FixedWindow(WindowStart::Month(Zone::UTC)) => f.write_str(" calendar"),
            Kind::FixedWindow(WindowStart::Month(Zone(zone)) | WindowStart::Zone(Zone(zone))) => {
                write!(f, " calendar {zone}")
            }
            Kind::SlidingWindow(segments) => write!(f, " sliding {segments}"),
            Kind::Queue(wait) => {
                let (count, unit) = in_units(wait);
                write!(f, " queue {count}{unit}")
            }
            kind => match KINDS.into_iter().find(|(_, other)| *other == kind) {
                Some((name, _)) => write!(f, " {name}"),
                None => Ok(()),
            },
        }
    }
}

/// A number and the longest unit that it is a multiple of.
fn in_units(time: Duration) -> (u128, &'static str) {
    let nanos = time.as_nanos();
    if nanos == 0 {
        return (0, "s");
    }
    let unit = UNITS.into_iter().find(|(_, unit)| nanos.is_multiple_of(*unit));
    let (name, unit) = unit.unwrap_or(("ns", 1));
    (nanos / unit, name)
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn number<N: FromStr>(&mut self, what: &str) -> Result<N, ConfigError> {
        let (digits, rest) = self.split(|c| c.is_ascii_digit());
        let number = digits.parse().map_err(|_| match digits {
            "" => self.error(what),
            _ => self.error("a smaller number"),
        })?;
        self.rest = rest;
        Ok(number)
    }

    /// A unit, maybe with a number of them.
    fn period(&mut self) -> Result<Duration, ConfigError> {
        let start = self.rest;
        let count = match start.starts_with(|c: char| c.is_ascii_digit()) {
            true => self.number("a number")?,
            false => 1u128,
        };
        let (name, rest) = self.split(|c| c.is_ascii_alphabetic());
        let Some((_, unit)) = UNITS.into_iter().find(|(unit, _)| *unit == name) else {
            let units = UNITS.map(|(unit, _)| unit).join(", ");
            return Err(self.error(&format!("one of the units month, {units}")));
        };
        let too_long = |parser: &mut Self| {
            parser.rest = start;
            parser.error("a shorter period")
        };
        let nanos = count.checked_mul(unit).ok_or_else(|| too_long(self))?;
        let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| too_long(self))?;
        self.rest = rest;
        Ok(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
    }

    /// A word and a number, if this word is next.
    fn option(&mut self, word: &str, number: &str) -> Result<Option<u64>, ConfigError> {
        let rest = self.rest.trim_start_matches(' ');
        if rest.len() == self.rest.len() || !rest.starts_with(word) {
            return Ok(None);
        }
        self.rest = &rest[word.len()..];
        self.space()?;
        self.number(number).map(Some)
    }

    /// The last word, if there is one.
    fn kind(&mut self) -> Result<Option<Kind>, ConfigError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.space()?;
        let (word, rest) = self.split(|c| c.is_ascii_alphabetic());
        if word == "queue" {
            self.rest = rest;
            self.space()?;
            return self.period().map(Kind::Queue).map(Some);
        }
        if word == "sliding" {
            self.rest = rest;
            return self.sliding().map(Some);
        }
        let Some((_, kind)) = KINDS.into_iter().find(|(name, _)| *name == word) else {
            return Err(self.error(
                "`burst`, `borrow`, `debt`, `queue`, `interval`, `fixed`, `calendar` or `sliding`",
            ));
        };
        self.rest = rest;
        if kind == Kind::FixedWindow(WindowStart::Clock) && !self.rest.is_empty() {
            self.space()?;
            let is_part = |c: char| c.is_ascii_alphanumeric() || "/_+-".contains(c);
            let (name, rest) = self.split(is_part);
            let is_short = name.len() <= Zone::MAX_LEN;
            let Some(zone) = is_short.then(|| Zone::named(name)).flatten() else {
                return Err(self.error("the name of a time zone such as Europe/Berlin"));
            };
            self.rest = rest;
            return Ok(Some(Kind::FixedWindow(WindowStart::Zone(zone))));
        }
        Ok(Some(kind))
    }

    /// The rest of a sliding window: the number of its segments, or that it is approximate.
    fn sliding(&mut self) -> Result<Kind, ConfigError> {
        const SEGMENTS: &str = "the number of segments, or `approximate`";
        if self.rest.is_empty() {
            return Err(self.error(&format!("` `, and {SEGMENTS}")));
        }
        self.space()?;
        let (word, rest) = self.split(|c| c.is_ascii_alphabetic());
        if word == "approximate" {
            self.rest = rest;
            return Ok(Kind::ApproximateSlidingWindow);
        }
        self.number(SEGMENTS).map(Kind::SlidingWindow)
    }

    fn space(&mut self) -> Result<(), ConfigError> {
        let (spaces, rest) = self.split(|c| c == ' ');
        if spaces.is_empty() {
            return Err(self.error("a space"));
        }
        self.rest = rest;
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), ConfigError> {
        self.rest = self.rest.strip_prefix(word).ok_or_else(|| self.error(&format!("`{word}`")))?;
        Ok(())
    }

    /// The characters at the start that are of this kind, and the rest.
    fn split(&self, is_part: impl Fn(char) -> bool) -> (&'a str, &'a str) {
        self.rest.split_at(self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len()))
    }

    fn error(&self, expected: &str) -> ConfigError {
        // All characters before an error are ASCII.
        let column = self.text.len() - self.rest.len() + 1;
        ConfigError::new(format!(
            "invalid quota {:?}: expected {expected} at column {column}; write it like `10/s burst 20`",
            self.text
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form_of_the_grammar_is_the_quota_that_it_says() {
        for (text, quota) in [
            ("10/s", Quota::per_second(10)),
            ("10/s burst 20", Quota::per_second(10).burst(20)),
            ("1000/day", Quota::per_day(1_000)),
            ("100/min", Quota::per_minute(100)),
            ("100/minute", Quota::per_minute(100)),
            ("1000/week", Quota::new(1_000, Duration::from_secs(7 * 86_400))),
            ("7/hour", Quota::per_hour(7)),
            ("7/2second", Quota::new(7, Duration::from_secs(2))),
            ("7/h  burst  1", Quota::per_hour(7).burst(1)),
            ("3/15min", Quota::new(3, Duration::from_secs(900))),
            ("1/250ms", Quota::new(1, Duration::from_millis(250))),
            ("1/5us", Quota::new(1, Duration::from_micros(5))),
            ("0/0s burst 0", Quota::new(0, Duration::ZERO)),
            ("10/s burst 20 borrow 30", Quota::per_second(10).burst(20).borrow_up_to(30)),
            ("10/s borrow 1 debt 0", Quota::per_second(10).borrow_up_to(1).debt_up_to(0)),
            ("9/h debt 7 fixed", Quota::per_hour(9).fixed_window().debt_up_to(7)),
            ("5/s queue 30s", Quota::per_second(5).queue(Duration::from_secs(30))),
            ("5/s burst 5 queue min", Quota::per_second(5).queue(Duration::from_secs(60)).burst(5)),
            ("10/min interval", Quota::per_minute(10).interval_refill()),
            ("5/15min  fixed", Quota::new(5, Duration::from_secs(900)).fixed_window()),
            ("1000/day calendar", Quota::per_day(1_000).calendar()),
            (
                "1000/day calendar Europe/Berlin",
                Quota::per_day(1_000).in_zone(Zone("Europe/Berlin")),
            ),
            (
                "9/7day calendar Etc/GMT+5",
                Quota::new(9, Duration::from_secs(604_800)).in_zone(Zone("Etc/GMT+5")),
            ),
            ("100/min sliding approximate", Quota::per_minute(100).approximate_sliding_window()),
            ("100/min sliding 12", Quota::per_minute(100).sliding_window(12)),
            ("5  concurrent", Quota::concurrent(5)),
        ] {
            assert_eq!(text.parse::<Quota>().unwrap(), quota, "{text}");
        }
    }

    #[test]
    fn a_quota_is_written_in_its_shortest_form() {
        for (quota, text) in [
            (Quota::per_second(10).burst(10), "10/s"),
            (Quota::per_minute(10).burst(20), "10/min burst 20"),
            (Quota::new(3, Duration::from_secs(900)), "3/15min"),
            (Quota::new(3, Duration::from_secs(14 * 86_400)), "3/2week"),
            (Quota::new(1, Duration::from_micros(1_500)), "1/1500us"),
            (Quota::per_second(5).burst(1).queue(Duration::from_secs(60)), "5/s queue 1min"),
            (Quota::per_second(5).burst(5).queue(Duration::ZERO), "5/s burst 5 queue 0s"),
            (Quota::concurrent(5), "5 concurrent"),
        ] {
            assert_eq!(quota.to_string(), text);
        }
    }

    #[test]
    fn an_error_lists_every_unit_that_is_allowed() {
        let error = "10/fortnight".parse::<Quota>().unwrap_err().to_string();
        assert!(error.contains("one of the units month, week, day, h, hour, min,"), "{error}");
        for (unit, _) in UNITS {
            assert!(error.contains(&format!(", {unit}")), "{unit}: {error}");
        }
    }

    #[test]
    fn an_error_says_what_is_expected_and_where() {
        for (text, expected, column) in [
            ("", "the number of permits", 1),
            ("ten/s", "the number of permits", 1),
            ("-1/s", "the number of permits", 1),
            ("99999999999999999999/s", "a smaller number", 1),
            ("10", "`/`", 3),
            ("10 /s", "`/`", 3),
            ("5concurrent", "`/`", 2),
            ("5 concurrent 3", "`/`", 2),
            ("10/", "one of the units", 4),
            ("10/fortnight", "one of the units", 4),
            ("10/5", "one of the units", 5),
            ("10/99999999999999999999day", "a shorter period", 4),
            ("10/s, burst 20", "a space", 5),
            ("10/s 20", "`burst`, `borrow`, `debt`, `queue`", 6),
            ("10/s burst", "a space", 11),
            ("10/s borrow 1 burst 2", "`burst`, `borrow`, `debt`, `queue`", 15),
            ("10/s debt 1 borrow 2", "`burst`, `borrow`, `debt`, `queue`", 13),
            ("10/s debt", "a space", 10),
            ("10/s sliding", "` `, and the number of segments, or `approximate`", 13),
            ("10/s sliding approx", "the number of segments, or `approximate`", 14),
            ("10/s sliding approximate 5", "the end", 25),
            ("10/s sliding x", "the number of segments, or `approximate`", 14),
            ("10/month", "` calendar`, because months have different lengths,", 9),
            ("10/month fixed", "` calendar`, because months have different lengths,", 9),
            ("10/2month calendar", "one of the units", 5),
            ("10/day calendar ", "the name of a time zone", 17),
            #[cfg(feature = "jiff")]
            ("10/day calendar Europe/Berln", "the name of a time zone", 17),
            ("10/day calendar Europe/Berlin x", "the end", 30),
            ("10/s queue", "a space", 11),
            ("10/s queue 30", "one of the units", 14),
            ("10/s fixed 5", "the end", 11),
            ("10/s burst x", "the burst", 12),
            ("10/s burst 20 ", "`burst`, `borrow`, `debt`, `queue`", 15),
            ("10/s b\u{fc}rst 20", "`burst`, `borrow`, `debt`, `queue`", 6),
            ("10/\u{fc}", "one of the units", 4),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            let says = format!("expected {expected}");
            assert!(error.contains(&says), "{text}: {error}");
            assert!(error.contains(&format!("at column {column};")), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn every_quota_is_read_back_from_its_text(
            permits: u64, seconds: u64, nanos in 0..1_000_000_000u32, burst: u64,
            borrow in prop_oneof![Just(0), any::<u64>()], debt: Option<u64>, kind in 0..9, segments: u32,
            wait: Duration, zone in prop::sample::select(vec!["Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"]),
        ) {
            let quota = Quota::new(permits, Duration::new(seconds, nanos));
            let quota = quota.burst(burst).borrow_up_to(borrow);
            let quota = match kind {
                0 => quota,
                1 => quota.interval_refill(),
                2 => quota.fixed_window(),
                3 => quota.calendar(),
                4 => quota.approximate_sliding_window(),
                5 => quota.queue(wait),
                6 => quota.in_zone(Zone::named(zone).unwrap()),
                7 => {
                    let month = Quota::new(permits, Quota::MONTH).burst(burst).borrow_up_to(borrow);
                    let month = month.in_month();
                    if segments % 2 == 0 { month } else { month.in_zone(Zone::named(zone).unwrap()) }
                }
                _ => quota.sliding_window(segments),
            };
            let quota = debt.map_or(quota, |debt| quota.debt_up_to(debt));
            prop_assert_eq!(quota.to_string().parse::<Quota>().unwrap(), quota);
        }

        #[test]
        fn no_text_panics(text in "[0-9/a-z \u{e4}]{0,20}") {
            let _ = text.parse::<Quota>();
        }
    }
}
