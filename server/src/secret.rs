//! Settings that must not be shown, and texts in messages that may have some of them by mistake.

use std::borrow::Cow;
use std::fmt::{self, Debug, Display};
use std::path::Path;

use fleetlimit::{ConfigError, RedisStore};
use serde::{Deserialize, Serialize, Serializer};

pub(crate) const HIDDEN: &str = "(hidden)";
/// The most characters of a name or value in a message.
const MOST_CHARS: usize = 40;
/// The most characters of a path in a message.
const MOST_CHARS_OF_PATH: usize = 255;

/// Returns a name or value as messages show it: the start, because a mistake can put a secret after a name.
/// `token:s3cret`, without a space, is a name in YAML, and so is `token=s3cret`.
pub(crate) fn excerpt(text: &str) -> Cow<'_, str> {
    start(text, text.find(|c: char| matches!(c, ':' | '=') || c.is_control()), MOST_CHARS)
}

/// Returns the name of a field that does not exist, as messages show it.
pub(crate) fn excerpt_of_field(name: &str) -> Cow<'_, str> {
    // `token s3cret`, without a colon, is a name, too.
    match name.split_once(char::is_whitespace) {
        Some((name, _)) => format!("{}…", excerpt(name).trim_end_matches('…')).into(),
        None => excerpt(name),
    }
}

/// Returns a path as messages show it. It may be the text of settings or of a key instead.
pub(crate) fn excerpt_of_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    let end = text.find(|c: char| matches!(c, ':' | '=' | '{') || c.is_control());
    let end = end.into_iter().chain(text.find("-----")).min();
    start(&text, end, MOST_CHARS_OF_PATH).into_owned()
}

/// Returns a text up to this position, and with at most so many characters.
pub(crate) fn start(text: &str, end: Option<usize>, most_chars: usize) -> Cow<'_, str> {
    let kept = &text[..end.unwrap_or(text.len())];
    let kept = kept.char_indices().nth(most_chars).map_or(kept, |(end, _)| &kept[..end]);
    if kept.len() == text.len() { text.into() } else { format!("{kept}…").into() }
}

/// Text that is hidden when it is printed or serialized.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

/// A valid URL of Redis. It is shown without what precedes its last `@`, and without the query, which may have a
/// password, too.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct RedisUrl(String);

impl RedisUrl {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RedisUrl {
    type Error = ConfigError;

    fn try_from(url: String) -> Result<Self, ConfigError> {
        // This validates the URL, and does not connect.
        RedisStore::open(url.as_str()).map(|_| Self(url))
    }
}

impl Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let rest = rest.rsplit('@').next().unwrap_or_default();
        let address = rest.split(['?', '#']).next().unwrap_or_default();
        write!(f, "{scheme}://{address}")
    }
}

impl Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl Serialize for RedisUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_in_what_is_shown() {
        let secret = Secret::from("s3cret".to_owned());
        assert_eq!(serde_json::to_string(&secret).unwrap(), r#""(hidden)""#);
        assert_eq!(format!("{secret:?}"), "(hidden)");
        for (url, shown) in [
            ("redis://ada:s3cret@host:6379/1", "redis://host:6379/1"),
            ("redis://:s3cret%40@host", "redis://host"),
            ("rediss://s3cret@[::1]:7/0#insecure", "rediss://[::1]:7/0"),
            ("unix:///run/redis.sock?db=1&pass=s3cret%40x", "unix:///run/redis.sock"),
        ] {
            let url = RedisUrl::try_from(url.to_owned()).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
            assert_eq!(serde_json::to_value(&url).unwrap(), shown);
        }
    }

    /// Such a URL means another server, whose name is a part of the password.
    #[test]
    fn a_url_whose_password_is_not_encoded_is_an_error_that_does_not_show_it() {
        for url in [
            "redis://user:123?s3cret@host",
            "redis://user:123#s3cret@host",
            "redis://user:123/s3cret@host",
            "redis://:a@s3cret@host",
            "redis://s3cret:123/0?x=@host",
            "unix:///run/redis.sock?pass=s3cret@x",
        ] {
            let error = RedisUrl::try_from(url.to_owned()).unwrap_err().to_string();
            assert!(error.contains("percent-encode") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn messages_have_only_the_start_of_what_they_quote() {
        let long = "x".repeat(MOST_CHARS);
        for (text, shown) in [
            ("10/s burst 20", "10/s burst 20"),
            ("token:s3cret", "token…"),
            ("token=s3cret", "token…"),
            ("-----BEGIN PRIVATE KEY-----\ns3cret", "-----BEGIN PRIVATE KEY-----…"),
            (&long, &long),
            (&format!("{long}s3cret"), &format!("{long}…")),
            (&"é".repeat(MOST_CHARS + 1), &format!("{}…", "é".repeat(MOST_CHARS))),
        ] {
            assert_eq!(excerpt(text), shown);
        }
        assert_eq!(excerpt_of_field("token s3cret"), "token…");
        assert_eq!(excerpt_of_field("a:b s3cret"), "a…");
        for (path, shown) in [
            ("/etc/my app/settings.yaml", "/etc/my app/settings.yaml"),
            ("admin: { token: s3cret }", "admin…"),
            ("{ admin: { token: s3cret } }", "…"),
            ("admin:\n  token: s3cret", "admin…"),
            ("token:s3cret", "token…"),
            ("-----BEGIN PRIVATE KEY----- s3cret", "…"),
        ] {
            assert_eq!(excerpt_of_path(Path::new(path)), shown);
        }
    }
}
