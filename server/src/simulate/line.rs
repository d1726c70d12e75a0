//! One line of an access log.
//!
//! Common: `host ident user [time] "request" status bytes`. Combined adds `"referer" "agent"`.
//! Apache's `vhost_combined` has the virtual host before these.
//! Source: the Apache HTTP Server's documentation of `mod_log_config`.

use std::borrow::Cow;
use std::net::{Ipv6Addr, SocketAddr};

use fleetlimit::resolve::PeerIp;

use super::json_line::{self, BYTES, Fields, METHOD, PATH, STATUS, USER};
use super::log_time::LogTime;
use crate::range::is_address;

/// What a pattern can refer to.
#[derive(Debug, Default)]
pub(super) struct Line<'a> {
    /// In microseconds since 1970.
    pub(super) time: u64,
    pub(super) ip: Option<Cow<'a, str>>,
    /// This field and the next four are set if and only if the line is not JSON.
    user: Option<&'a str>,
    method: Option<&'a str>,
    path: Option<&'a str>,
    status: Option<&'a str>,
    bytes: Option<&'a str>,
    /// The fields of a JSON line, and empty otherwise.
    pub(super) fields: Fields<'a>,
    /// What the combined format adds, which is only searched if a pattern refers to it.
    pub(super) rest: &'a str,
}

impl<'a> Line<'a> {
    /// # Errors
    ///
    /// Why the line cannot be used.
    pub(super) fn parse(text: &'a str, times: &mut LogTime) -> Result<Self, &'static str> {
        if text.starts_with('{') { json_line::parse(text) } else { Self::common(text, times) }
    }

    pub(super) fn of_object(time: u64, ip: Option<Cow<'a, str>>, fields: Fields<'a>) -> Self {
        Self { time, ip, fields, ..Self::default() }
    }

    fn common(text: &'a str, times: &mut LogTime) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("the line is empty");
        }
        let (ip, rest) = split(text, b" ").ok_or("there is no field {user}")?;
        let (ident, rest) = split(rest, b" ").ok_or("there is no field {user}")?;
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

    pub(super) fn is_json(&self) -> bool {
        self.user.is_none()
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.user.or_else(|| self.fields.first_of(USER))
    }

    pub(super) fn method(&self) -> Option<&str> {
        self.method.or_else(|| self.fields.first_of(METHOD))
    }

    pub(super) fn path(&self) -> Option<&str> {
        self.path.or_else(|| self.fields.first_of(PATH))
    }

    pub(super) fn status(&self) -> Option<&str> {
        self.status.or_else(|| self.fields.first_of(STATUS))
    }

    pub(super) fn bytes(&self) -> Option<&str> {
        self.bytes.or_else(|| self.fields.first_of(BYTES))
    }

    pub(super) fn referer(&self) -> Option<&'a str> {
        self.referer_and_agent().map(|(referer, _)| referer)
    }

    pub(super) fn agent(&self) -> Option<&'a str> {
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

/// Whether it is the client of an address, and not just text.
pub(super) fn is_client(text: &str) -> bool {
    is_address(text.strip_suffix("/64").unwrap_or(text))
}

/// The client of an address, as `/auth` counts it. Some servers write the address with its port.
pub(super) fn client(address: &str) -> Cow<'_, str> {
    if !address.contains(':') {
        return address.into();
    }
    let with_port = || Some(address.parse::<SocketAddr>().ok()?.ip());
    let ip = address.parse::<Ipv6Addr>().map_or_else(|_| with_port(), |ip| Some(ip.into()));
    let Some(ip) = ip else { return address.into() };
    let key = PeerIp::new().key(ip);
    String::from_utf8_lossy(key.as_bytes()).into_owned().into()
}

/// Like `split_once`, which takes several times as long for the short fields of a line.
fn split<'a, const N: usize>(text: &'a str, separator: &[u8; N]) -> Option<(&'a str, &'a str)> {
    let at = text.as_bytes().windows(N).position(|bytes| bytes == separator)?;
    Some((&text[..at], &text[at + N..]))
}

/// What is before the first space, and what is after it.
fn field(text: &str) -> (&str, &str) {
    split(text, b" ").unwrap_or((text, ""))
}

/// What is before the closing quote, and what is after it.
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
    fn clients_are_counted_as_for_gateways() {
        for (address, key) in [
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("host.example", "host.example"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
            ("host.example:4711", "host.example:4711"),
        ] {
            assert_eq!(client(address), key);
            assert_eq!(is_client(key), !key.starts_with("host"), "{key}");
        }
    }

    #[test]
    fn lines_that_cannot_be_used_say_why() {
        let mut times = LogTime::default();
        for (text, why) in [
            ("", "the line is empty"),
            ("a", "no field {user}"),
            ("a b", "no field {user}"),
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
}
