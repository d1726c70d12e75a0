//! Hours, days, weeks and months of time zones. `algorithm/fixed_window.rs` has the windows.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// A length that differs, or that starts at another time, between time zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalendarUnit {
    /// An hour, which starts at half past the hours of UTC in some time zones.
    Hour,
    Day,
    /// A week from Monday to Sunday.
    Week,
    Month,
}

/// The name of a time zone, which may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Zone(pub(crate) &'static str);

impl Zone {
    pub(crate) const UTC: Self = Self("UTC");
    /// The most names that are kept. The IANA has about 600, in any case of their letters.
    const MAX_NAMES: usize = 4_096;
    /// The length of the longest name in bytes. The names of the IANA are shorter.
    pub(crate) const MAX_LEN: usize = 64;

    /// Returns the time zone of this name. `None` if it does not exist, as far as is known. The names are kept
    /// for ever, so that a quota can be copied. There are not many.
    pub(crate) fn named(name: &str) -> Option<Self> {
        static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
        if !exists(name) {
            return None;
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get_or_insert_default();
        if let Some(name) = names.get(name) {
            return Some(Self(name));
        }
        if names.len() >= Self::MAX_NAMES {
            return None;
        }
        let name: &'static str = name.to_owned().leak();
        names.insert(name);
        Some(Self(name))
    }
}

#[cfg(feature = "jiff")]
fn exists(name: &str) -> bool {
    jiff::tz::TimeZone::get(name).is_ok()
}

/// Accepts any name, because it is unknown which exist. [`boundaries`] fails later.
#[cfg(not(feature = "jiff"))]
fn exists(name: &str) -> bool {
    !name.is_empty()
}

/// Returns the starts of the previous, this, the next window and the one after that, in microseconds since
/// 1970. `now` is in this window.
#[cfg(feature = "jiff")]
pub(crate) fn boundaries(unit: CalendarUnit, zone: Zone, now: u64) -> Result<[u64; 4], String> {
    use jiff::civil::Weekday;
    use jiff::tz::TimeZone;
    use jiff::{Span, Timestamp, ToSpan};

    let Zone(name) = zone;
    let error = |error: jiff::Error| format!("time zone `{name}`: {error}");
    let zone = TimeZone::get(name).map_err(|_| {
        format!("there is no time zone `{name}`: write it like `Europe/Berlin` or `UTC`")
    })?;
    let now = Timestamp::from_microsecond(i64::try_from(now).unwrap_or(i64::MAX)).map_err(error)?;
    let here = now.to_zoned(zone.clone());
    let today = here.date();
    let (this, step): (_, Span) = match unit {
        CalendarUnit::Hour => return Ok(hours(&here)),
        CalendarUnit::Day => (today, 1.day()),
        CalendarUnit::Week => {
            let days = today.weekday().since(Weekday::Monday);
            (today.checked_sub(days.days()).map_err(error)?, 1.week())
        }
        CalendarUnit::Month => (today.first_of_month(), 1.month()),
    };
    // A day without a midnight starts when the clock jumps.
    let start = |steps: i64| {
        let date = this.checked_add(step.checked_mul(steps)?)?;
        let micros = date.to_zoned(zone.clone())?.timestamp().as_microsecond();
        Ok(u64::try_from(micros).unwrap_or(0))
    };
    let starts = [start(-1), start(0), start(1), start(2)];
    let [previous, this, next, last] = starts.map(|start| start.map_err(error));
    Ok([previous?, this?, next?, last?])
}

/// Returns the starts of hours as [`boundaries`] does. All have the same length: at a change of the clock by
/// half an hour, two may overlap or be apart.
#[cfg(feature = "jiff")]
fn hours(now: &jiff::Zoned) -> [u64; 4] {
    const HOUR: i64 = 3_600_000_000;
    let micros = now.timestamp().as_microsecond();
    let offset = i64::from(now.offset().seconds()) * 1_000_000;
    let this = micros - (micros + offset).rem_euclid(HOUR);
    [-1, 0, 1, 2].map(|hours| u64::try_from(this + hours * HOUR).unwrap_or(0))
}

#[cfg(not(feature = "jiff"))]
pub(crate) fn boundaries(_: CalendarUnit, _: Zone, _: u64) -> Result<[u64; 4], String> {
    Err("months and time zones need the feature `jiff` of the crate".into())
}

#[cfg(all(test, feature = "jiff"))]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn at(text: &str) -> u64 {
        let zoned: jiff::Zoned = text.parse().unwrap();
        zoned.timestamp().as_microsecond() as u64
    }

    fn lengths(unit: CalendarUnit, zone: &'static str, now: &str) -> [u64; 3] {
        let bounds = boundaries(unit, Zone(zone), at(now)).unwrap();
        assert!(bounds[1] <= at(now) && at(now) < bounds[2], "{now}");
        [1, 2, 3].map(|n| (bounds[n] - bounds[n - 1]) / HOUR)
    }

    #[test]
    fn a_day_of_23_or_25_hours_is_one_day() {
        let day = |now| lengths(CalendarUnit::Day, "Europe/Berlin", now);
        assert_eq!(day("2026-03-29T12:00[Europe/Berlin]"), [24, 23, 24]);
        assert_eq!(day("2026-10-25T00:00[Europe/Berlin]"), [24, 25, 24]);
        assert_eq!(day("2026-10-25T23:59[Europe/Berlin]"), [24, 25, 24]);
        assert_eq!(day("2026-10-26T00:00[Europe/Berlin]"), [25, 24, 24]);
        // There is no midnight on the day on which summer time begins.
        let day =
            lengths(CalendarUnit::Day, "America/Santiago", "2026-09-06T12:00[America/Santiago]");
        assert_eq!(day, [24, 23, 24]);
    }

    #[test]
    fn an_hour_starts_when_the_clocks_of_the_time_zone_say_so() {
        let bounds = |now: &str, zone| boundaries(CalendarUnit::Hour, Zone(zone), at(now)).unwrap();
        let start = at("2026-11-24T11:30Z[UTC]");
        let hours = [start - HOUR, start, start + HOUR, start + 2 * HOUR];
        assert_eq!(bounds("2026-11-24T12:29[UTC]", "Asia/Kolkata"), hours);
        assert_eq!(bounds("2026-11-24T11:30[UTC]", "Asia/Kolkata"), hours);
        // The hour that occurs twice is two hours.
        let again = at("2026-10-25T01:30Z[UTC]");
        let second = bounds("2026-10-25T01:30[UTC]", "Europe/Berlin");
        assert_eq!(second[1], again - HOUR / 2);
        // The clock is set back by half an hour, to half past one.
        let now = at("2026-04-04T15:15Z[UTC]");
        let starts = bounds("2026-04-04T15:15[UTC]", "Australia/Lord_Howe");
        assert!(starts[1] <= now && now < starts[2], "{starts:?}");
    }

    #[test]
    fn a_month_has_its_own_length_and_a_week_starts_on_monday() {
        let days = |unit, now| lengths(unit, "UTC", now).map(|hours| hours / 24);
        assert_eq!(days(CalendarUnit::Month, "2027-02-28T23:59[UTC]"), [31, 28, 31]);
        assert_eq!(days(CalendarUnit::Month, "2028-01-31T00:00[UTC]"), [31, 31, 29]);
        assert_eq!(days(CalendarUnit::Week, "2026-11-22T12:00[UTC]"), [7, 7, 7]);
        let monday = boundaries(CalendarUnit::Week, Zone::UTC, at("2026-11-22T12:00[UTC]"));
        assert_eq!(monday.unwrap()[1], at("2026-11-16T00:00[UTC]"));
    }

    #[test]
    fn a_zone_that_does_not_exist_is_an_error_that_says_what_to_write() {
        let error = boundaries(CalendarUnit::Day, Zone("Europe/Berln"), 0).unwrap_err();
        assert!(error.contains("`Europe/Berln`: write it like `Europe/Berlin`"), "{error}");
        assert!(boundaries(CalendarUnit::Day, Zone::UTC, u64::MAX).is_err());
        assert!(boundaries(CalendarUnit::Month, Zone::UTC, 0).is_ok());
    }

    #[test]
    fn a_name_is_kept_once() {
        let names =
            ["Asia/Tokyo", concat!("Asia/", "Tokyo")].map(|name| Zone::named(name).unwrap());
        assert!(std::ptr::eq(names[0].0, names[1].0));
        assert_eq!(Zone::named("Asia/Nowhere"), None);
    }
}
