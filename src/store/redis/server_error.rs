//! The meaning of an error of the server: for the caller (does it pass, or does someone have to change
//! something?), for the connection (a server that is not a primary is left, because a new connection may lead
//! to one), and for the slots of a cluster.
//!
//! The text of the error decides. The error kinds of `redis` are not enough: an error inside of a script is a
//! text, which differs between servers.

use std::borrow::Cow;

use redis::{RedisError, Value};

use crate::{Error, ErrorKind};

/// An error of the server, by what resolves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerError {
    /// The server is a replica, or loads its data. A new connection may lead to the primary.
    NotPrimary,
    /// The cluster is down, or the slot is migrating.
    ClusterUnstable,
    /// Another node serves the slot.
    Redirection,
    /// The server is short of something: time, memory, disk, replicas, connections.
    Overload,
    /// Someone has to change the configuration, the permissions or the data.
    Permanent,
}

impl ServerError {
    /// Classifies the text of an error, which begins with its code.
    pub(super) fn of(text: &str) -> Self {
        let text = unwrapped(text);
        match text.split(' ').next() {
            Some("READONLY" | "MASTERDOWN" | "LOADING") => Self::NotPrimary,
            Some("CLUSTERDOWN" | "TRYAGAIN") => Self::ClusterUnstable,
            Some("MOVED" | "ASK") => Self::Redirection,
            Some("BUSY" | "OOM" | "MISCONF" | "NOREPLICAS") => Self::Overload,
            // Inside of a script these have no code of their own.
            _ if text.ends_with("on a stale replica") => Self::NotPrimary,
            _ if text.contains("while the cluster is down") => Self::ClusterUnstable,
            _ if text.ends_with("access a slot not served") => Self::ClusterUnstable,
            _ if text.ends_with("max number of clients reached") => Self::Overload,
            _ => Self::Permanent,
        }
    }

    /// Classifies a failed call. `None` if the server did not reply.
    pub(super) fn of_call(error: &RedisError) -> Option<Self> {
        if error.kind() == redis::ErrorKind::AuthenticationFailed {
            return Some(Self::Permanent);
        }
        let errors = error.clone().into_server_errors()?;
        Some(errors.first().map_or(Self::Permanent, |(_, error)| Self::of_reply(error)))
    }

    fn of_reply(error: &redis::ServerError) -> Self {
        Self::of(&format!("{} {}", error.code(), error.details().unwrap_or_default()))
    }

    /// Returns true if the same call may succeed later without a change.
    pub(super) fn is_transient(self) -> bool {
        matches!(self, Self::NotPrimary | Self::ClusterUnstable | Self::Overload)
    }

    /// Returns true if another node of a cluster may serve the slot by now.
    pub(super) fn may_move_slot(self) -> bool {
        matches!(self, Self::NotPrimary | Self::ClusterUnstable | Self::Redirection)
    }
}

/// Converts the error of a failed call into what it means to the caller.
pub(super) fn to_error(error: RedisError) -> Error {
    match ServerError::of_call(&error) {
        Some(class) => Error::caused_by(ErrorKind::Server, "Redis replied with an error", error)
            .with_transience(class.is_transient()),
        None => Error::caused_by(ErrorKind::Unavailable, "Redis unreachable", error),
    }
}

/// The text of an error, if a script found one for a key. It is the same on every server: Redis 6.2
/// adds the line of the script, as in `@user_script: 25: -READONLY You can't write ...`.
#[inline]
pub(super) fn of_key(found: &[u8]) -> Option<Cow<'_, str>> {
    found.strip_prefix(b"!").map(error_text)
}

/// The text of an error, decoded and without what Redis 6.2 adds.
#[cold]
fn error_text(error: &[u8]) -> Cow<'_, str> {
    match String::from_utf8_lossy(error) {
        Cow::Borrowed(text) => unwrapped(text).into(),
        Cow::Owned(text) => unwrapped(&text).to_owned().into(),
    }
}

/// The error of a key with this text.
pub(super) fn to_key_error(text: Cow<'_, str>) -> Error {
    let is_transient = ServerError::of(&text).is_transient();
    Error::new(ErrorKind::Server, text.into_owned()).with_transience(is_transient)
}

/// Returns true if only the key is at fault.
pub(super) fn is_of_key(error: &Error) -> bool {
    error.kind() == ErrorKind::Server && error.to_string().starts_with("WRONGTYPE")
}

/// The error of a reply which says that this server cannot decide checks, so that the store has to
/// connect again. Such a server would answer a PING like any other.
pub(super) fn not_primary(reply: &Value) -> Option<Error> {
    let of_found = |found: &Value| match found {
        Value::BulkString(text) => of_key(text)
            .filter(|text| ServerError::of(text) == ServerError::NotPrimary)
            .map(to_key_error),
        _ => None,
    };
    match reply {
        Value::ServerError(error) => {
            let leaves = ServerError::of_reply(error) == ServerError::NotPrimary;
            leaves.then(|| to_error(error.clone().into()))
        }
        // The errors of single keys, as the script reports them.
        Value::Array(found) => found.iter().find_map(of_found),
        found => of_found(found),
    }
}

/// Removes what Redis 6.2 adds in front of the code.
fn unwrapped(text: &str) -> &str {
    let mut text = text.trim_end();
    let whole_call = text.strip_prefix("ERR Error running script (call to ");
    if let Some((_, inner)) = whole_call.and_then(|rest| rest.split_once("): ")) {
        text = inner;
    }
    while let Some(rest) = text.strip_prefix("@user_script:") {
        let rest = rest.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit());
        let Some(rest) = rest.strip_prefix(": ") else { break };
        text = rest.strip_prefix('-').unwrap_or(rest);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::ServerError::*;
    use super::*;

    /// What the script finds for a key: on Redis 6.2, and from 7.0 on and on Valkey.
    const IN_A_SCRIPT: [(ServerError, &str, &str); 8] = [
        (
            NotPrimary,
            "@user_script: 25: -READONLY You can't write against a read only replica.\r\n",
            "READONLY You can't write against a read only replica.",
        ),
        (
            Overload,
            "@user_script: 25: -OOM command not allowed when used memory > 'maxmemory'.\r\n",
            "OOM command not allowed when used memory > 'maxmemory'.",
        ),
        (
            Overload,
            "@user_script: 25: -MISCONF Redis is configured to save RDB snapshots, but it is \
             currently not able to persist on disk.\r\n",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to \
             persist to disk.",
        ),
        (
            Overload,
            "@user_script: 25: -NOREPLICAS Not enough good replicas to write.\r\n",
            "NOREPLICAS Not enough good replicas to write.",
        ),
        (
            ClusterUnstable,
            "@user_script: 25: Lua script attempted to execute a write command while the cluster \
             is down and readonly",
            "ERR Script attempted to execute a write command while the cluster is down and readonly",
        ),
        (
            ClusterUnstable,
            "@user_script: 25: Lua script attempted to execute a command while the cluster is down",
            "ERR Script attempted to access a slot not served",
        ),
        (
            Permanent,
            "@user_script: 25: The user executing the script can't run this command or subcommand",
            "NOPERM ACL failure in script: User fleetlimit has no permissions to run the 'get' command",
        ),
        (
            Permanent,
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
    ];

    /// The error of a whole call, on any server.
    const OF_A_CALL: [(ServerError, &str); 18] = [
        (NotPrimary, "READONLY You can't write against a read only replica."),
        (NotPrimary, "LOADING Redis is loading the dataset in memory"),
        (NotPrimary, "LOADING Valkey is loading the dataset in memory"),
        (
            NotPrimary,
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ),
        (NotPrimary, "ERR Can not execute the command on a stale replica"),
        (ClusterUnstable, "CLUSTERDOWN The cluster is down"),
        (ClusterUnstable, "CLUSTERDOWN Hash slot not served"),
        (ClusterUnstable, "TRYAGAIN Multiple keys request during rehashing of slot"),
        (Redirection, "MOVED 866 127.0.0.1:7001"),
        (Redirection, "ASK 866 127.0.0.1:7001"),
        (
            Overload,
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ),
        (
            Overload,
            "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ),
        (
            Overload,
            "OOM command not allowed when used memory > 'maxmemory'. script: f_5a, on @user_script:25.",
        ),
        (Overload, "ERR max number of clients reached"),
        (Permanent, "NOPERM User fleetlimit has no permissions to run the 'evalsha' command"),
        (Permanent, "NOAUTH Authentication required."),
        (Permanent, "ERR unknown command 'EVALSHA', with args beginning with: "),
        (Permanent, ""),
    ];

    #[test]
    fn an_error_in_a_script_means_the_same_on_every_server() {
        for (class, old, new) in IN_A_SCRIPT {
            for text in [old, new] {
                assert_eq!(ServerError::of(text), class, "{text}");
                let of_key = of_key(format!("!{text}").as_bytes()).unwrap().into_owned();
                assert!(!of_key.starts_with('@'), "{text}");
                let raised =
                    format!("ERR Error running script (call to f_5a): @user_script:25: {text}");
                assert_eq!(ServerError::of(&raised), class, "{raised}");
            }
        }
        let (_, old, new) = IN_A_SCRIPT[0];
        assert_eq!(of_key(format!("!{old}").as_bytes()).unwrap(), new);
    }

    #[test]
    fn the_error_of_a_call_is_classified_by_its_code() {
        for (class, text) in OF_A_CALL {
            assert_eq!(ServerError::of(text), class, "{text}");
        }
    }

    #[test]
    fn errors_that_pass_are_transient_and_those_that_need_a_change_are_not() {
        for class in [NotPrimary, ClusterUnstable, Overload] {
            assert!(class.is_transient(), "{class:?}");
        }
        assert!(!Permanent.is_transient());
        // On a single server: the application has to open a cluster.
        assert!(!Redirection.is_transient());
    }

    #[test]
    fn an_error_that_says_nothing_about_the_cluster_does_not_request_its_slots() {
        for class in [NotPrimary, ClusterUnstable, Redirection] {
            assert!(class.may_move_slot(), "{class:?}");
        }
        assert!(!Overload.may_move_slot() && !Permanent.may_move_slot());
    }

    #[test]
    fn a_server_that_cannot_write_is_left_however_it_says_so() {
        let text = |text: &str| Value::BulkString(format!("!{text}").into());
        for (class, old, new) in IN_A_SCRIPT {
            for error in [old, new] {
                let leaves = class == NotPrimary;
                assert_eq!(not_primary(&text(error)).is_some(), leaves, "{error}");
                let pair = Value::Array(vec![Value::Int(0), text(error)]);
                assert_eq!(not_primary(&pair).is_some(), leaves, "{error}");
            }
        }
        assert!(not_primary(&Value::Int(0)).is_none() && not_primary(&text("\u{fffd}")).is_none());
    }

    #[test]
    fn a_text_of_any_bytes_causes_no_panic() {
        for text in
            ["@user_script:", "@user_script: 1", "@user_script: 1: -", "-", "\r\n", "\u{e4}"]
        {
            assert_eq!(ServerError::of(text), Permanent, "{text}");
        }
        assert_eq!(of_key(b"!@user_script: 1: WRONGTYPE \xff").unwrap(), "WRONGTYPE \u{fffd}");
    }
}
