//! The fields of a line with a JSON object.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The names of fields in the formats of Caddy, nginx, Traefik, Envoy and others.
const TIME: &[&str] =
    &["time", "ts", "timestamp", "@timestamp", "time_iso8601", "msec", "StartUTC", "start_time"];
const IP: &[&str] = &[
    "ip",
    "client_ip",
    "remote_ip",
    "remote_addr",
    "ClientHost",
    "request.client_ip",
    "request.remote_ip",
    "downstream_remote_address",
];
pub(crate) const USER: &[&str] = &["user", "user_id", "remote_user", "ClientUsername"];
pub(crate) const METHOD: &[&str] = &["method", "request_method", "RequestMethod", "request.method"];
pub(crate) const PATH: &[&str] = &["path", "uri", "request_uri", "RequestPath", "request.uri"];
pub(crate) const STATUS: &[&str] = &["status", "status_code", "DownstreamStatus", "response_code"];
pub(crate) const BYTES: &[&str] =
    &["bytes", "size", "body_bytes_sent", "bytes_sent", "DownstreamContentSize"];

/// The fields of a JSON object. A nested field is named by its path, such as `request.uri`.
#[derive(Debug, Default)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Fields<'a> {
    /// # Errors
    ///
    /// If the text is not a JSON object.
    pub(crate) fn parse(text: &'a str) -> serde_json::Result<Self> {
        let mut fields = Self(Vec::with_capacity(16));
        add_fields("", text, 0, &mut fields)?;
        Ok(fields)
    }

    /// The time in microseconds since 1970.
    ///
    /// # Errors
    ///
    /// If there is no time, or it is in another format.
    pub(crate) fn time(&self) -> Result<u64, &'static str> {
        let time = self.first_of(TIME).ok_or("there is no time")?;
        micros(time)
            .ok_or("the time is neither RFC 3339 nor seconds since 1970 (are they milliseconds?)")
    }

    /// The address of the client.
    pub(crate) fn ip(&self) -> Option<&Cow<'a, str>> {
        self.text_of(IP)
    }

    /// Returns the last field with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Cow<'a, str>> {
        self.0.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    pub(crate) fn first_of(&self, names: &[&str]) -> Option<&str> {
        self.text_of(names).map(Cow::as_ref)
    }

    fn text_of(&self, names: &[&str]) -> Option<&Cow<'a, str>> {
        names.iter().find_map(|name| self.get(name))
    }
}

fn add_fields<'a>(
    prefix: &str,
    text: &'a str,
    depth: usize,
    fields: &mut Fields<'a>,
) -> serde_json::Result<()> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_map(Object { prefix, depth, fields })?;
    deserializer.end()
}

/// An object nested deeper than this is one field, with its JSON text as the value.
const MAX_DEPTH: usize = 8;

struct Object<'p, 'f, 'a> {
    prefix: &'p str,
    depth: usize,
    fields: &'f mut Fields<'a>,
}

/// Text that is not copied, unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Visitor<'a> for Object<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some((Text(name), value)) = map.next_entry::<Text<'a>, &'a RawValue>()? {
            let name = match self.prefix {
                "" => name,
                prefix => format!("{prefix}.{name}").into(),
            };
            let text = value.get();
            match text.as_bytes() {
                [b'n', ..] => {}
                [b'{', ..] if self.depth < MAX_DEPTH => {
                    add_fields(&name, text, self.depth + 1, self.fields).map_err(Error::custom)?;
                }
                [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => {
                    self.fields.0.push((name, text[1..text.len() - 1].into()));
                }
                [b'"', ..] => {
                    let Text(text) = serde_json::from_str(text).map_err(Error::custom)?;
                    self.fields.0.push((name, text));
                }
                _ => self.fields.0.push((name, text.into())),
            }
        }
        Ok(())
    }
}

/// The seconds since 1970 of the year 5000. Today's milliseconds are more.
const YEAR_5000: f64 = 95_617_584_000.0;

fn micros(text: &str) -> Option<u64> {
    let micros = match text.parse::<f64>() {
        Ok(seconds) if seconds < YEAR_5000 => (seconds * 1e6) as i64,
        Ok(_) => return None,
        Err(_) => text.parse::<Timestamp>().ok()?.as_microsecond(),
    };
    u64::try_from(micros).ok().filter(|micros| *micros > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_fields_are_documented() {
        let page = include_str!("../../docs/server/simulate.md");
        let (_, table) = page.split_once("| pattern | fields of JSON |\n").unwrap();
        let rows = table.lines().skip(1).take_while(|line| !line.is_empty());
        let rows: Vec<_> =
            rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()).collect();
        for (pattern, names) in [
            ("time (required)", TIME),
            ("`{ip}`", IP),
            ("`{user}`", USER),
            ("`{method}`", METHOD),
            ("`{path}`, `{1}`", PATH),
            ("`{status}`", STATUS),
            ("`{bytes}`", BYTES),
        ] {
            let row = rows.iter().find(|row| row[1] == pattern).unwrap();
            let documented = row[2].split(": ").next().unwrap();
            assert_eq!(documented, format!("`{}`", names.join("`, `")), "{pattern}");
        }
    }
}
