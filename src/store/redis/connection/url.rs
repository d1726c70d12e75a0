//! Errors of the URL of a server. None of them has the URL, because that may have a password.

use redis::RedisError;

use crate::ConfigError;

/// Returns an error if a user or password has a character that ends it: the server would be another one, with a
/// part of the password as its name, which logs and metrics show.
pub(crate) fn check_encoding(url: &str) -> Result<(), ConfigError> {
    let (before, _) = url.rsplit_once('@').unwrap_or_default();
    let (_, user) = before.split_once("://").unwrap_or(("", before));
    if user.contains(['@', '/', '?', '#']) {
        return Err(ConfigError::new(
            "invalid Redis URL: percent-encode these characters in the user and the password: `@` is %40, `/` is \
             %2F, `?` is %3F, and `#` is %23",
        ));
    }
    Ok(())
}

/// The error of a URL that `redis` does not accept.
pub(super) fn to_config_error(error: RedisError) -> ConfigError {
    let tls = if cfg!(any(feature = "tls-rustls", feature = "tls-native-tls")) {
        ""
    } else {
        "; rediss:// needs the feature `tls-rustls` or `tls-native-tls`"
    };
    ConfigError::new(format!(
        "invalid Redis URL: {error} (expected something like redis://user:secret@host:6379/0{tls})"
    ))
}
