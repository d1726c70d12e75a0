//! The limit of open files, which all connections have to fit into.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::settings::ResourceLimits;

/// Files that are not connections of clients: the listeners, the store, and those of a reload.
const RESERVE: u64 = 128;

/// Raises the soft limit if the connections of `ports` do not fit into it, and warns if they do not fit
/// into the hard limit either. This is no error: the process works until clients open that many.
pub(crate) fn allow(limits: &ResourceLimits, ports: u64) {
    let connections = limits.connections.get() as u64;
    let needed = connections.saturating_mul(ports).saturating_add(RESERVE);
    let allowed = raise_to(needed);
    if allowed < needed {
        let most = allowed.saturating_sub(RESERVE) / ports;
        tracing::warn!(
            event = "open_files_too_few",
            allowed,
            needed,
            "too few open files for `resource_limits.connections` on {ports} ports, so a flood of connections to \
             one could block the others: raise the limit of open files (`ulimit -Hn`, `LimitNOFILE`, `nofile`) to \
             {needed}, or set `resource_limits.connections` to at most {most}"
        );
    }
}

/// The limit afterwards.
fn raise_to(needed: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    if soft >= needed {
        return soft;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(
                event = "open_files_not_raised", %error,
                "the limit of open files cannot be raised"
            );
            soft
        }
    }
}
