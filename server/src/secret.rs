//! Settings that must not be shown.

use std::fmt::{self, Debug, Display};

use fleetlimit::{ConfigError, RedisStore};
use serde::{Deserialize, Serialize, Serializer};

const HIDDEN: &str = "(hidden)";

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

/// A valid URL of Redis. It is shown without the user, the password, and the query, which may have a
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
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let address = rest.rsplit('@').next().unwrap_or_default();
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
            ("redis://:a@s3cret@host", "redis://host"),
            ("rediss://s3cret@[::1]:7/0#insecure", "rediss://[::1]:7/0"),
            ("unix:///run/redis.sock?db=1&pass=s3cret@x", "unix:///run/redis.sock"),
        ] {
            let url = RedisUrl::try_from(url.to_owned()).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
            assert_eq!(serde_json::to_value(&url).unwrap(), shown);
        }
    }
}
