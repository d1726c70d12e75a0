//! Durations as Go writes them.
//!
//! Source: the documentation of `time.ParseDuration`.

use std::time::Duration;

/// Parses a duration as Go writes it, such as `1h30m` or `1.5s`.
pub(super) fn parse(text: &str) -> Result<Duration, &'static str> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("\u{3bc}s", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3_600.0),
    ];
    let error = "must be a duration such as 500ms, 10s or 1h30m";
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(error)?;
        let number: f64 = rest[..end].parse().map_err(|_| error)?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, of_unit) = UNITS.iter().find(|(unit, _)| *unit == &rest[..end]).ok_or(error)?;
        seconds += number * of_unit;
        rest = &rest[end..];
    }
    if text.is_empty() {
        Err(error)
    } else {
        Duration::try_from_secs_f64(seconds).map_err(|_| error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, microseconds) in [
            ("0", 0),
            ("500ms", 500_000),
            ("1.5h", 5_400_000_000),
            (".5s", 500_000),
            ("+1h30m", 5_400_000_000),
            ("1h0m0.25s", 3_600_250_000),
            ("2m", 120_000_000),
            ("3us", 3),
            ("3\u{b5}s", 3),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_micros(microseconds)), "{text}");
        }
        for text in ["", "+", "24", "1M", "1d", "-1s", "s", "1.2.3s", "1 h", "1e400h", "1ms1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("{}h", "9".repeat(30))).is_err());
    }
}
