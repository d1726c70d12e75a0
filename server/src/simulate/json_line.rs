//! A line with a JSON object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

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
const USER: &[&str] = &["user", "user_id", "remote_user", "ClientUsername"];
const METHOD: &[&str] = &["method", "request_method", "RequestMethod", "request.method"];
const PATH: &[&str] = &["path", "uri", "request_uri", "RequestPath", "request.uri"];
const STATUS: &[&str] = &["status", "status_code", "DownstreamStatus", "response_code"];
const BYTES: &[&str] = &["bytes", "size", "body_bytes_sent", "bytes_sent", "DownstreamContentSize"];

pub(super) fn parse(text: &str) -> Result<Line<'static>, &'static str> {
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|_| "it is not a JSON object")?;
    let mut fields = BTreeMap::new();
    flatten("", &object, &mut fields);
    let find = |names: &[&str]| names.iter().find_map(|name| fields.get(*name)).cloned();
    let time = find(TIME).ok_or("there is no time")?;
    let time = micros(&time)
        .ok_or("the time is neither RFC 3339 nor seconds since 1970 (are they milliseconds?)")?;
    let field = |names| find(names).map(Cow::from);
    let ip = find(IP).map(|ip| client(&ip).into_owned().into());
    let (user, method, path) = (field(USER), field(METHOD), field(PATH));
    let (status, bytes) = (field(STATUS), field(BYTES));
    Ok(Line { time, ip, user, method, path, status, bytes, fields, ..Line::default() })
}

/// The fields of objects in objects have names such as `request.uri`.
fn flatten(prefix: &str, object: &Map<String, Value>, fields: &mut BTreeMap<String, String>) {
    for (name, value) in object {
        let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Null => {}
            Value::Object(object) => flatten(&name, object, fields),
            Value::String(text) => {
                fields.insert(name, text.clone());
            }
            value => {
                fields.insert(name, value.to_string());
            }
        }
    }
}

/// Today's milliseconds are later seconds.
const YEAR_5000: f64 = 95_617_584_000.0;

fn micros(text: &str) -> Option<u64> {
    let micros = match text.parse::<Timestamp>() {
        Ok(time) => time.as_microsecond(),
        Err(_) => (text.parse::<f64>().ok().filter(|seconds| *seconds < YEAR_5000)? * 1e6) as i64,
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
            let fields = [&line.ip, &line.path, &line.method, &line.status, &line.bytes];
            let fields = fields.map(|field| field.as_deref().unwrap());
            assert_eq!(fields, ["192.0.2.7", "/a", "GET", "200", "12"]);
        }
        let envoy =
            r#"{"start_time":"2027-01-15T08:00:00Z","downstream_remote_address":"192.0.2.7:4711"}"#;
        assert_eq!(parse(envoy).unwrap().ip.as_deref(), Some("192.0.2.7"));
        let line = parse(r#"{"time":1,"tenant":{"id":7}}"#).unwrap();
        assert_eq!(line.fields["tenant.id"], "7");
        for time in ["1800000000500", "1e300", "\"inf\"", "-1"] {
            assert!(parse(&format!("{{\"time\":{time}}}")).is_err(), "{time}");
        }
    }
}
