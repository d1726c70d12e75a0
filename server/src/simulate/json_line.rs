//! A line with a JSON object.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::line::{Line, client};

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
pub(super) const USER: &[&str] = &["user", "user_id", "remote_user", "ClientUsername"];
pub(super) const METHOD: &[&str] = &["method", "request_method", "RequestMethod", "request.method"];
pub(super) const PATH: &[&str] = &["path", "uri", "request_uri", "RequestPath", "request.uri"];
pub(super) const STATUS: &[&str] = &["status", "status_code", "DownstreamStatus", "response_code"];
pub(super) const BYTES: &[&str] =
    &["bytes", "size", "body_bytes_sent", "bytes_sent", "DownstreamContentSize"];

/// The fields of a JSON object. A nested field is named by its path, such as `request.uri`.
#[derive(Debug, Default)]
pub(super) struct Fields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Fields<'a> {
    /// The last field with this name counts.
    pub(super) fn get(&self, name: &str) -> Option<&Cow<'a, str>> {
        self.0.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    pub(super) fn first_of(&self, names: &[&str]) -> Option<&str> {
        self.text_of(names).map(Cow::as_ref)
    }

    fn text_of(&self, names: &[&str]) -> Option<&Cow<'a, str>> {
        names.iter().find_map(|name| self.get(name))
    }
}

pub(super) fn parse(text: &str) -> Result<Line<'_>, &'static str> {
    let mut fields = Fields(Vec::with_capacity(16));
    add_fields("", text, 0, &mut fields).map_err(|_| "it is not a JSON object")?;
    let time = fields.first_of(TIME).ok_or("there is no time")?;
    let time = micros(time)
        .ok_or("the time is neither RFC 3339 nor seconds since 1970 (are they milliseconds?)")?;
    let ip = fields.text_of(IP).cloned().map(|ip| match ip {
        Cow::Borrowed(ip) => client(ip),
        Cow::Owned(ip) => client(&ip).into_owned().into(),
    });
    Ok(Line::of_object(time, ip, fields))
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

/// Today's milliseconds are later seconds.
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
    fn formats_of_several_servers_are_understood() {
        for text in [
            r#"{"ts":1800000000.5,"request":{"remote_ip":"192.0.2.7","uri":"/a","method":"GET"},"status":200,"size":12}"#,
            r#"{"time":"2027-01-15T08:00:00.5Z","remote_addr":"192.0.2.7","request_uri":"/a","request_method":"GET","status":"200","bytes":12}"#,
        ] {
            let line = parse(text).unwrap();
            assert_eq!(line.time, 1_800_000_000_500_000, "{text}");
            let fields =
                [line.ip.as_deref(), line.path(), line.method(), line.status(), line.bytes()];
            let fields = fields.map(Option::unwrap);
            assert_eq!(fields, ["192.0.2.7", "/a", "GET", "200", "12"]);
        }
        let envoy =
            r#"{"start_time":"2027-01-15T08:00:00Z","downstream_remote_address":"192.0.2.7:4711"}"#;
        assert_eq!(parse(envoy).unwrap().ip.as_deref(), Some("192.0.2.7"));
        let line = parse(r#"{"time":1,"tenant":{"id":7}}"#).unwrap();
        assert_eq!(line.fields.get("tenant.id").unwrap(), "7");
        let text =
            r#"{"time":1,"a\u0062":"c\"d","n":null,"l":[1, 2],"ab":{"":1e3,"ab":true},"time":2}"#;
        let line = parse(text).unwrap();
        let fields: Vec<_> = line.fields.iter().collect();
        let expected = [("time", "1"), ("ab", "c\"d"), ("l", "[1, 2]"), ("ab.", "1e3")];
        assert_eq!(fields[..4], expected);
        assert_eq!((fields[4], fields[5]), (("ab.ab", "true"), ("time", "2")));
        assert_eq!(line.time, 2_000_000, "the last one counts");
        for text in ["{\"time\":1", "{\"time\":1}}", "{\"time\":01}", "[]", "{\"time\":1,\"a\":{]}"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        // Without the limit this would overflow the stack.
        let deep =
            format!("{{\"time\":1,\"a\":{}1{}}}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(parse(&deep).unwrap().fields.iter().count(), 2);
        for time in ["1800000000500", "1e300", "\"inf\"", "-1"] {
            assert!(parse(&format!("{{\"time\":{time}}}")).is_err(), "{time}");
        }
    }
}
