//! Times such as `10/Oct/2000:13:55:36 -0700`.

use jiff::fmt::strtime;

const FORMAT: &str = "%d/%b/%Y:%H:%M:%S %z";

/// Parses times. Neighbours in a log often have the same one, so it remembers the last.
#[derive(Debug, Default)]
pub(crate) struct LogTime {
    last: Option<(String, u64)>,
}

impl LogTime {
    /// Returns the microseconds since 1970.
    pub(crate) fn parse(&mut self, text: &str) -> Option<u64> {
        if let Some((last, micros)) = &self.last
            && last == text
        {
            return Some(*micros);
        }
        let time = strtime::parse(FORMAT, text).ok()?.to_timestamp().ok()?;
        let micros = u64::try_from(time.as_microsecond()).ok()?;
        self.last = Some((text.to_owned(), micros));
        Some(micros)
    }
}
