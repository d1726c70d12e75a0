//! The store of a URL, which may name the nodes of a cluster or sentinels.

use super::RedisStore;
use crate::ConfigError;
use crate::store::redis::connection::check_encoding;

/// The port of a sentinel whose URL has none.
#[cfg(feature = "sentinel")]
const SENTINEL_PORT: &str = ":26379";

/// The parts of a URL with several servers.
#[derive(Debug, PartialEq, Eq)]
struct Servers<'a> {
    /// The user and password with the `@` after them, or empty.
    user: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
    /// The query and the fragment.
    query: &'a str,
}

impl RedisStore {
    /// Opens the store of a URL.
    ///
    /// # Errors
    ///
    /// If the URL is invalid, or a feature is missing. The text does not contain the URL, which may have a
    /// password.
    pub(crate) fn from_url(url: &str) -> Result<Self, ConfigError> {
        check_encoding(url)?;
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let (protocol, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let opened = match (protocol, kind) {
            ("redis" | "rediss" | "valkey" | "valkeys", "cluster") => {
                Self::open_cluster(Servers::parse(rest)?.of_cluster(protocol))
            }
            ("redis" | "rediss" | "valkey" | "valkeys", "sentinel") => {
                open_sentinel(protocol, &Servers::parse(rest)?)
            }
            ("redis" | "rediss" | "valkey" | "valkeys" | "unix", "")
            | ("redis" | "valkey", "unix") => Self::open(url),
            _ => Err(ConfigError::new(
                "invalid URL of a store: it starts with `memory:`, `redis:`, `rediss:`, `redis+unix:`, \
                 `redis+cluster:`, `rediss+cluster:`, `redis+sentinel:` or `rediss+sentinel:`",
            )),
        };
        let has_tls = cfg!(any(feature = "tls-rustls", feature = "tls-native-tls"));
        opened.map_err(|error| match protocol {
            "rediss" | "valkeys" if !has_tls => ConfigError::new(format!(
                "{error} (`{scheme}:` needs the feature `tls-rustls` or `tls-native-tls` of fleetlimit)"
            )),
            _ => error,
        })
    }
}

#[cfg(feature = "sentinel")]
fn open_sentinel(protocol: &str, servers: &Servers<'_>) -> Result<RedisStore, ConfigError> {
    let (service, urls) = servers.of_service(protocol)?;
    RedisStore::open_sentinel(urls, service)
}

#[cfg(not(feature = "sentinel"))]
fn open_sentinel(protocol: &str, _: &Servers<'_>) -> Result<RedisStore, ConfigError> {
    Err(ConfigError::new(format!(
        "`{protocol}+sentinel:` needs the feature `sentinel` of fleetlimit"
    )))
}

impl<'a> Servers<'a> {
    /// Parses what follows the scheme and its colon.
    fn parse(rest: &'a str) -> Result<Self, ConfigError> {
        let rest = rest.strip_prefix("//").ok_or_else(|| {
            ConfigError::new("invalid URL of a store: `//` and a host follow the scheme")
        })?;
        let (authority, rest) = split_before(rest, &['/', '?', '#']);
        let (path, query) = split_before(rest, &['?', '#']);
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |index| index + 1));
        Ok(Self { user, hosts: hosts.split(',').collect(), path, query })
    }

    /// Returns the URLs of the nodes.
    fn of_cluster(&self, protocol: &str) -> Vec<String> {
        let Self { user, hosts, path, query } = self;
        let url = |host: &&str| format!("{protocol}://{user}{host}{path}{query}");
        hosts.iter().map(url).collect()
    }

    /// Returns the name of the service, and the URLs of its sentinels.
    #[cfg(feature = "sentinel")]
    fn of_service(&self, protocol: &str) -> Result<(&'a str, Vec<String>), ConfigError> {
        let Self { user, hosts, path, query } = self;
        let path = path.trim_start_matches('/');
        let (service, database) = path.split_once('/').unwrap_or((path, ""));
        if service.is_empty() {
            return Err(ConfigError::new(
                "invalid URL of a store: name the service that the sentinels monitor, as in \
                 `redis+sentinel://host/mymaster`",
            ));
        }
        let url = |host: &&str| {
            let has_port = !host.ends_with(']') && host.contains(':');
            let port = if has_port { "" } else { SENTINEL_PORT };
            format!("{protocol}://{user}{host}{port}/{database}{query}")
        };
        Ok((service, hosts.iter().map(url).collect()))
    }
}

/// The text before the first of these characters, and the rest.
fn split_before<'a>(text: &'a str, characters: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(characters).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RedisServer;

    #[test]
    fn the_nodes_of_a_cluster_have_the_same_user_and_settings() {
        let servers =
            Servers::parse("//user:p%40s@a:1,[::1]:2,c/0?protocol=resp3#insecure").unwrap();
        let expected = ["a:1", "[::1]:2", "c"]
            .map(|host| format!("rediss://user:p%40s@{host}/0?protocol=resp3#insecure"));
        assert_eq!(servers.of_cluster("rediss"), expected);
        assert_eq!(Servers::parse("//a").unwrap().of_cluster("redis"), ["redis://a"]);
    }

    #[cfg(feature = "sentinel")]
    #[test]
    fn the_path_for_sentinels_has_the_service_and_the_database() {
        let servers = Servers::parse("//:secret@a,b:1,[::1],[::1]:2/mymaster/3?protocol=resp3");
        let hosts = ["a:26379", "b:1", "[::1]:26379", "[::1]:2"];
        let expected = hosts.map(|host| format!("redis://:secret@{host}/3?protocol=resp3"));
        let expected = ("mymaster", expected.to_vec());
        assert_eq!(servers.unwrap().of_service("redis").unwrap(), expected);
        let servers = Servers::parse("//a/mymaster").unwrap();
        assert_eq!(servers.of_service("redis").unwrap().1, ["redis://a:26379/"]);
    }

    #[test]
    fn an_invalid_url_is_an_error_that_does_not_reveal_the_password() {
        for url in [
            "",
            "hunter2",
            "http://:hunter2@host",
            "redis+other://:hunter2@host",
            "rediss+unix:///hunter2",
            "redis+cluster:hunter2",
            "redis+cluster://:hunter2@",
            "redis+cluster://:hunter2@a,,b",
            "redis://:hunter2@host:port",
            "redis://:hunter2@host/hunter2",
            "redis+sentinel://:hunter2@host",
            "redis+sentinel://:hunter2@host/",
            "redis+sentinel://:hunter2@/mymaster",
            "redis://user:123?hunter2@host",
            "redis://user:123#hunter2@host",
            "redis://hunter2:123/0@host",
            "redis://:a@hunter2@host",
            "unix:///socket?pass=hunter2@x",
            "redis+cluster://:1/hunter2@a,b",
            "redis+sentinel://:1/hunter2@a/mymaster",
        ] {
            let error = RedisStore::from_url(url).unwrap_err().to_string();
            assert!(!error.is_empty() && !error.contains("hunter2"), "{url}: {error}");
        }
        // An application may also name the servers itself.
        let url = "redis://hunter2:123?x@host";
        let error = RedisStore::open(url).unwrap_err().to_string();
        assert!(error.contains("percent-encode") && !error.contains("hunter2"), "{error}");
        let shown = format!("{:?}", RedisServer::from(url));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(RedisStore::open("redis://user:%40%2F%3F%23@host/0?protocol=resp2").is_ok());
    }

    /// `make test` runs it with the feature `redis` alone.
    #[test]
    fn a_url_that_needs_sentinel_or_tls_names_the_missing_feature() {
        let error = |url| RedisStore::from_url(url).err().map(|error| error.to_string());
        let has_tls = cfg!(any(feature = "tls-rustls", feature = "tls-native-tls"));
        for (url, feature, is_there) in [
            ("redis+sentinel://host/mymaster", "`sentinel`", cfg!(feature = "sentinel")),
            ("rediss://host", "`tls-rustls`", has_tls),
            ("rediss+cluster://a,b", "`tls-rustls`", has_tls),
        ] {
            match error(url) {
                None => assert!(is_there, "{url}"),
                Some(error) => assert!(!is_there && error.contains(feature), "{url}: {error}"),
            }
        }
    }
}
