//! The variables about Redis.

use std::fmt::Write;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::super::overrides::SettingsWriter;
use super::RatelimitEnv;
use crate::secret::excerpt;
use crate::settings::{Sentinel, StoreSettings};

const URL: &str = "REDIS_URL";

impl RatelimitEnv {
    pub(super) fn apply_redis(&self, store: &mut StoreSettings, set: &mut SettingsWriter<'_>) {
        match self.get("BACKEND_TYPE") {
            None | Some("redis" | "memory") => {}
            Some(other) => {
                let message = format!("`{}`: must be redis or memory", excerpt(other));
                set.error("BACKEND_TYPE", message);
            }
        }
        if self.get("BACKEND_TYPE") == Some("memory") {
            return;
        }
        let prefix = self.get("CACHE_KEY_PREFIX").map(|prefix| Some(prefix.to_owned()));
        set.value(&mut store.key_prefix, prefix, "store.key_prefix", "CACHE_KEY_PREFIX");
        let Some(addresses) = self.get(URL) else {
            // Each instance would have limits of its own, and nobody would notice.
            if !store.is_redis() {
                set.error(
                    URL,
                    "is missing: set BACKEND_TYPE=memory for limits of a single instance",
                );
            }
            return;
        };
        let is_encrypted = self.flag("REDIS_TLS", set) == Some(true);
        let auth = self.get("REDIS_AUTH");
        let url = |address: &str| self.url(address, auth, is_encrypted);
        let kind = self.get("REDIS_TYPE").unwrap_or("SINGLE").to_uppercase();
        (store.redis, store.cluster, store.sentinel) = Default::default();
        match kind.as_str() {
            "SINGLE" => store.redis = set.urls(&[url(addresses.trim())], "store.redis", URL).pop(),
            "CLUSTER" => {
                let urls: Vec<_> = addresses.split(',').map(str::trim).map(url).collect();
                store.cluster = set.urls(&urls, "store.cluster", URL);
            }
            "SENTINEL" => {
                store.sentinel = self.sentinel(addresses, is_encrypted, set);
            }
            _ => {
                let kind = excerpt(&kind).into_owned();
                set.error("REDIS_TYPE", format!("`{kind}`: must be SINGLE, CLUSTER or SENTINEL"));
                set.incomplete.insert("store".to_owned());
            }
        }
        if is_encrypted {
            let variables = ["REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"];
            let settings = ["store.tls.ca", "store.tls.client.certificate", "store.tls.client.key"];
            let tls = self.client_tls(variables, settings, None, set);
            store.tls = (tls.ca.is_some() || tls.client.is_some()).then_some(tls);
        }
    }

    /// The name of the primary and the addresses of sentinels, separated by commas.
    fn sentinel(
        &self,
        addresses: &str,
        is_encrypted: bool,
        set: &mut SettingsWriter<'_>,
    ) -> Option<Sentinel> {
        let (service, addresses) = addresses.split_once(',').unwrap_or((addresses, ""));
        let auth = self.get("REDIS_SENTINEL_AUTH");
        let addresses = addresses.split(',').filter(|address| !address.is_empty());
        let urls: Vec<_> = addresses.map(|address| self.url(address, auth, is_encrypted)).collect();
        if urls.is_empty() {
            set.error(URL, "must be the name of the primary and the addresses of sentinels, such as mymaster,a:26379");
            set.incomplete.insert("store".to_owned());
            return None;
        }
        let urls = set.urls(&urls, "store.sentinel", URL);
        // The host is not used.
        let primary = self.url("primary", self.get("REDIS_AUTH"), is_encrypted);
        let primary = set.urls(&[primary], "store.sentinel", "REDIS_AUTH").pop();
        Some(Sentinel { urls, service: service.to_owned(), primary, password_file: None })
    }

    /// The URL of a server with a password, or with a user and a password.
    fn url(&self, address: &str, auth: Option<&str>, is_encrypted: bool) -> String {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (user, password) =
            auth.map_or(("", ""), |auth| auth.split_once(':').unwrap_or(("", auth)));
        let is_socket = match self.get("REDIS_SOCKET_TYPE") {
            Some(kind) => kind.eq_ignore_ascii_case("unix"),
            None => address.starts_with('/'),
        };
        if is_socket {
            let mut url = format!("unix://{address}");
            if auth.is_some() {
                // Writing to a string does not fail.
                let _ = write!(url, "?pass={}", encode(password));
                if !user.is_empty() {
                    let _ = write!(url, "&user={}", encode(user));
                }
            }
            return url;
        }
        let default = if is_encrypted { "rediss" } else { "redis" };
        let (scheme, rest) = address.split_once("://").unwrap_or((default, address));
        match auth {
            // A password in the address takes precedence.
            Some(_) if !rest.contains('@') => {
                format!("{scheme}://{}:{}@{rest}", encode(user), encode(password))
            }
            _ => format!("{scheme}://{rest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;
    use crate::config::places::Places;
    use crate::errors::Errors;

    /// The store of these variables, or the errors.
    fn store(variables: &[(&str, &str)]) -> Result<StoreSettings, String> {
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let variables = RatelimitEnv(variables.iter().map(text).collect());
        let (mut places, mut errors) = (Places::new(Path::new("")), Errors::default());
        let (mut store, mut incomplete) = (StoreSettings::default(), HashSet::new());
        let (places, all) = (&mut places, &mut errors);
        let mut set = SettingsWriter { places, errors: all, incomplete: &mut incomplete };
        variables.apply_redis(&mut store, &mut set);
        if errors.is_empty() { Ok(store) } else { Err(errors.to_string()) }
    }

    #[test]
    fn a_single_server_has_the_url_that_its_variables_mean() {
        let (auth, tls) = (("REDIS_AUTH", "s3:cr@t"), ("REDIS_TLS", "true"));
        let socket = ("REDIS_SOCKET_TYPE", "unix");
        for (address, more, expected) in [
            ("redis:6379", &[][..], "redis://redis:6379"),
            ("[::1]:6379", &[tls], "rediss://[::1]:6379"),
            ("redis:6379", &[("REDIS_AUTH", "s3cr@t")], "redis://:s3cr%40t@redis:6379"),
            // The first colon ends the user.
            ("redis:6379", &[auth, tls], "rediss://s3:cr%40t@redis:6379"),
            ("redis://redis/1", &[auth], "redis://s3:cr%40t@redis/1"),
            ("redis://:other@redis", &[auth], "redis://:other@redis"),
            ("/run/redis.sock", &[], "unix:///run/redis.sock"),
            ("/run/redis.sock", &[socket, auth], "unix:///run/redis.sock?pass=cr%40t&user=s3"),
        ] {
            let store = store(&[&[("REDIS_URL", address)], more].concat()).unwrap();
            assert_eq!(store.redis.unwrap().expose(), expected);
            assert!(store.cluster.is_empty() && store.sentinel.is_none() && store.tls.is_none());
        }
    }

    #[test]
    fn a_cluster_and_sentinels_have_a_url_for_each_address() {
        let exposed = |urls: &[crate::secret::RedisUrl]| -> Vec<_> {
            urls.iter().map(|url| url.expose().to_owned()).collect()
        };
        let variables =
            [("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2"), ("REDIS_AUTH", "s3cret")];
        let cluster = store(&variables).unwrap().cluster;
        assert_eq!(exposed(&cluster), ["redis://:s3cret@a:1", "redis://:s3cret@b:2"]);
        let variables = [
            ("REDIS_TYPE", "SENTINEL"),
            ("REDIS_URL", "mymaster,a:1,b:2"),
            ("REDIS_AUTH", "s3cret"),
            ("REDIS_SENTINEL_AUTH", "other"),
            ("REDIS_TLS", "1"),
            ("REDIS_TLS_CACERT", "ca.pem"),
        ];
        let found = store(&variables).unwrap();
        let sentinel = found.sentinel.unwrap();
        assert_eq!(sentinel.service, "mymaster");
        assert_eq!(exposed(&sentinel.urls), ["rediss://:other@a:1", "rediss://:other@b:2"]);
        assert_eq!(sentinel.primary.unwrap().expose(), "rediss://:s3cret@primary");
        assert_eq!(found.tls.unwrap().ca.unwrap(), Path::new("ca.pem"));
    }

    #[test]
    fn a_store_that_nobody_could_mean_is_an_error_without_the_password() {
        for (variables, expected) in [
            (&[][..], "REDIS_URL: is missing"),
            (
                &[("REDIS_URL", "a:1"), ("REDIS_TYPE", "proxy")],
                "REDIS_TYPE: `PROXY`: must be SINGLE",
            ),
            (&[("REDIS_URL", "mymaster"), ("REDIS_TYPE", "SENTINEL")], "addresses of sentinels"),
            (&[("REDIS_URL", "a:b"), ("REDIS_AUTH", "s3cret")], "REDIS_URL: "),
        ] {
            let errors = store(variables).err().unwrap();
            assert!(errors.contains(expected) && !errors.contains("s3cret"), "{errors}");
        }
    }
}
