//! Times such as `10/Oct/2000:13:55:36 -0700`.

use jiff::fmt::strtime;

const FORMAT: &str = "%d/%b/%Y:%H:%M:%S %z";

/// Parses times. Neighbours in a log often have the same one, so it remembers the last.
#[derive(Debug, Default)]
pub(super) struct LogTime {
    text: String,
    micros: u64,
}

impl LogTime {
    /// In microseconds since 1970.
    pub(super) fn parse(&mut self, text: &str) -> Option<u64> {
        if text != self.text {
            let time = strtime::parse(FORMAT, text).ok()?.to_timestamp().ok()?;
            self.micros = u64::try_from(time.as_microsecond()).ok()?;
            self.text.clear();
            self.text.push_str(text);
        }
        Some(self.micros)
    }
}
