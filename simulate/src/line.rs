//! One line of an access log.
//!
//! Common: `host ident user [time] "request" status bytes`. Combined adds `"referer" "agent"`.
//! Apache's `vhost_combined` has the virtual host before these.
//! Source: the Apache HTTP Server's documentation of `mod_log_config`.

use std::borrow::Cow;

use crate::address::{client, is_address};
use crate::fields::{BYTES, Fields, METHOD, PATH, STATUS, USER};
use crate::log_time::LogTime;

/// The reason for which text without even three fields cannot be used.
const UNKNOWN_FORMAT: &str = "it is neither in the common or combined format nor a JSON object";

/// The parts of a line that a pattern can refer to.
#[derive(Debug, Default)]
pub(crate) struct Line<'a> {
    /// The time in microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) ip: Option<Cow<'a, str>>,
    /// The user. This field and the next four are set if and only if the line is not JSON.
    user: Option<&'a str>,
    method: Option<&'a str>,
    path: Option<&'a str>,
    status: Option<&'a str>,
    bytes: Option<&'a str>,
    /// The fields of a JSON line, and empty otherwise.
    pub(crate) fields: Fields<'a>,
    /// The fields that the combined format adds, which are only searched if a pattern refers to one of them.
    pub(crate) rest: &'a str,
}

impl<'a> Line<'a> {
    /// # Errors
    ///
    /// The reason for which the line cannot be used.
    pub(crate) fn parse(text: &'a str, times: &mut LogTime) -> Result<Self, &'static str> {
        if text.starts_with('{') { Self::json(text) } else { Self::common(text, times) }
    }

    fn json(text: &'a str) -> Result<Self, &'static str> {
        let fields = Fields::parse(text).map_err(|_| "it is not a JSON object")?;
        let ip = fields.ip().cloned().map(|ip| match ip {
            Cow::Borrowed(ip) => client(ip),
            Cow::Owned(ip) => client(&ip).into_owned().into(),
        });
        Ok(Self { time: fields.time()?, ip, fields, ..Self::default() })
    }

    fn common(text: &'a str, times: &mut LogTime) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("the line is empty");
        }
        let (ip, rest) = split(text, b" ").ok_or(UNKNOWN_FORMAT)?;
        let (ident, rest) = split(rest, b" ").ok_or(UNKNOWN_FORMAT)?;
        let (user, rest) = split(rest, b" [").ok_or("there is no [time]")?;
        let (ip, user) =
            if ident == "-" { (ip, user) } else { without_virtual_host(ip, ident, user) };
        let (time, rest) = split(rest, b"] \"").ok_or("there is no \"request\"")?;
        let time = times.parse(time).ok_or("the time is not like 02/Jan/2026:03:04:05 +0000")?;
        let (request, rest) = quoted(rest).ok_or("the \"request\" does not end")?;
        let (method, path) = field(request);
        let (path, _) = field(path);
        let (status, rest) = field(rest.trim_start());
        let (bytes, rest) = field(rest);
        Ok(Self {
            time,
            ip: Some(client(ip)),
            user: Some(user),
            method: Some(method),
            path: Some(path),
            status: Some(status),
            bytes: Some(bytes),
            rest,
            ..Self::default()
        })
    }

    pub(crate) fn is_json(&self) -> bool {
        self.user.is_none()
    }

    pub(crate) fn user(&self) -> Option<&str> {
        self.user.or_else(|| self.fields.first_of(USER))
    }

    pub(crate) fn method(&self) -> Option<&str> {
        self.method.or_else(|| self.fields.first_of(METHOD))
    }

    pub(crate) fn path(&self) -> Option<&str> {
        self.path.or_else(|| self.fields.first_of(PATH))
    }

    pub(crate) fn status(&self) -> Option<&str> {
        self.status.or_else(|| self.fields.first_of(STATUS))
    }

    pub(crate) fn bytes(&self) -> Option<&str> {
        self.bytes.or_else(|| self.fields.first_of(BYTES))
    }

    pub(crate) fn referer(&self) -> Option<&'a str> {
        self.referer_and_agent().map(|(referer, _)| referer)
    }

    pub(crate) fn agent(&self) -> Option<&'a str> {
        let (_, rest) = self.referer_and_agent()?;
        quoted(rest.strip_prefix('"')?).map(|(agent, _)| agent)
    }

    fn referer_and_agent(&self) -> Option<(&'a str, &'a str)> {
        let (referer, rest) = quoted(self.rest.strip_prefix('"')?)?;
        Some((referer, rest.trim_start()))
    }
}

/// The client and the user of a line in which the second field is not `-`.
///
/// If that is an address, and two fields follow before the time, the first one is a virtual host.
fn without_virtual_host<'a>(first: &'a str, second: &'a str, third: &'a str) -> (&'a str, &'a str) {
    match split(third, b" ") {
        Some((_, user)) if is_address(second) => (second, user),
        _ => (first, third),
    }
}

/// Like `split_once`, which takes several times as long for the short fields of a line.
fn split<'a, const N: usize>(text: &'a str, separator: &[u8; N]) -> Option<(&'a str, &'a str)> {
    let at = text.as_bytes().windows(N).position(|bytes| bytes == separator)?;
    Some((&text[..at], &text[at + N..]))
}

/// The text before the first space, and the text after it.
fn field(text: &str) -> (&str, &str) {
    split(text, b" ").unwrap_or((text, ""))
}

/// The text before the closing quote, and the text after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].bytes().position(|byte| byte == b'"')?;
        let backslashes = text[..at].bytes().rev().take_while(|byte| *byte == b'\\').count();
        if backslashes % 2 == 0 {
            return Some((&text[..at], &text[at + 1..]));
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_and_combined_lines_have_their_fields() {
        let mut times = LogTime::default();
        let text =
            r#"192.0.2.7 - ada [10/Oct/2000:13:55:36 -0700] "GET /a\"b?c=d HTTP/1.0" 200 2326"#;
        let line = Line::parse(text, &mut times).unwrap();
        assert_eq!(line.time, 971_211_336_000_000);
        let of_request = [line.method(), line.path(), line.status(), line.bytes()];
        let fields = [&[line.ip.as_deref(), line.user()][..], &of_request].concat();
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        assert_eq!(fields, ["192.0.2.7", "ada", "GET", r#"/a\"b?c=d"#, "200", "2326"]);
        assert_eq!((line.referer(), line.agent()), (None, None));
        let combined = format!(r#"{text} "http://a/" "curl/8 \"x\"""#);
        let line = Line::parse(&combined, &mut times).unwrap();
        assert_eq!((line.referer(), line.agent()), (Some("http://a/"), Some(r#"curl/8 \"x\""#)));
    }

    #[test]
    fn a_virtual_host_is_only_what_cannot_be_anything_else() {
        let mut times = LogTime::default();
        for (start, ip, user) in [
            ("app.example.com:443 192.0.2.7 - ada", "192.0.2.7", "ada"),
            ("app.example.com 192.0.2.7 - -", "192.0.2.7", "-"),
            ("192.0.2.1:443 2001:db8::7 - ada lovelace", "2001:db8::/64", "ada lovelace"),
            ("192.0.2.7 - ada lovelace", "192.0.2.7", "ada lovelace"),
            ("192.0.2.7 198.51.100.1 ada", "192.0.2.7", "ada"),
            ("192.0.2.7 ident ada lovelace", "192.0.2.7", "ada lovelace"),
        ] {
            let text = format!(r#"{start} [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#);
            let line = Line::parse(&text, &mut times).unwrap();
            assert_eq!((line.ip.as_deref(), line.user()), (Some(ip), Some(user)), "{text}");
        }
    }

    #[test]
    fn lines_that_cannot_be_used_say_why() {
        let mut times = LogTime::default();
        for (text, why) in [
            ("", "the line is empty"),
            ("a", "neither in the common or combined format nor a JSON object"),
            ("a b", "neither in the common or combined format nor a JSON object"),
            ("a b c", "no [time]"),
            (r#"a - - [nonsense] "GET / HTTP/1.1" 200 1"#, "the time is not like"),
            (r#"a - - [] "GET / HTTP/1.1" 200 1"#, "the time is not like"),
            (r#"a - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1 200 1"#, "does not end"),
            ("{", "not a JSON object"),
            ("{}", "no time"),
        ] {
            let error = Line::parse(text, &mut times).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn formats_of_several_servers_are_understood() {
        for text in [
            r#"{"ts":1800000000.5,"request":{"remote_ip":"192.0.2.7","uri":"/a","method":"GET"},"status":200,"size":12}"#,
            r#"{"time":"2027-01-15T08:00:00.5Z","remote_addr":"192.0.2.7","request_uri":"/a","request_method":"GET","status":"200","bytes":12}"#,
        ] {
            let line = Line::json(text).unwrap();
            assert_eq!(line.time, 1_800_000_000_500_000, "{text}");
            let fields =
                [line.ip.as_deref(), line.path(), line.method(), line.status(), line.bytes()];
            let fields = fields.map(Option::unwrap);
            assert_eq!(fields, ["192.0.2.7", "/a", "GET", "200", "12"]);
        }
        let envoy =
            r#"{"start_time":"2027-01-15T08:00:00Z","downstream_remote_address":"192.0.2.7:4711"}"#;
        assert_eq!(Line::json(envoy).unwrap().ip.as_deref(), Some("192.0.2.7"));
        let line = Line::json(r#"{"time":1,"tenant":{"id":7}}"#).unwrap();
        assert_eq!(line.fields.get("tenant.id").unwrap(), "7");
        let text =
            r#"{"time":1,"a\u0062":"c\"d","n":null,"l":[1, 2],"ab":{"":1e3,"ab":true},"time":2}"#;
        let line = Line::json(text).unwrap();
        let fields: Vec<_> = line.fields.iter().collect();
        let expected = [("time", "1"), ("ab", "c\"d"), ("l", "[1, 2]"), ("ab.", "1e3")];
        assert_eq!(fields[..4], expected);
        assert_eq!((fields[4], fields[5]), (("ab.ab", "true"), ("time", "2")));
        assert_eq!(line.time, 2_000_000, "the last one counts");
        for text in ["{\"time\":1", "{\"time\":1}}", "{\"time\":01}", "[]", "{\"time\":1,\"a\":{]}"]
        {
            assert!(Line::json(text).is_err(), "{text}");
        }
        // Without the limit this would overflow the stack.
        let deep =
            format!("{{\"time\":1,\"a\":{}1{}}}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(Line::json(&deep).unwrap().fields.iter().count(), 2);
        for time in ["1800000000500", "1e300", "\"inf\"", "-1"] {
            assert!(Line::json(&format!("{{\"time\":{time}}}")).is_err(), "{time}");
        }
    }
}
