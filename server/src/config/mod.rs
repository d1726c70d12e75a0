//! The configuration: the content of all files, checked as a whole.
//!
//! `load` makes one from its `source`, with the `overrides` of the command line and the environment, and
//! the environment of envoyproxy/ratelimit (`ratelimit_env`). `reader`
//! reads the files, and collects what is wrong with them. `lenient` deserializes a `document` repeatedly,
//! each time without the entries that failed. `secrets` finds the values of secrets in a document, so that no
//! message shows them. `validation` has the rules that do not depend on files. `files` notices changes, and
//! `places` says where settings come from.

mod document;
mod files;
mod lenient;
mod load;
mod overrides;
mod places;
mod ratelimit_env;
mod reader;
mod secrets;
mod source;
#[cfg(test)]
mod tests;
mod validation;

use std::collections::BTreeSet;
use std::sync::Arc;

use fleetlimit::resolve::ClientIp;
use fleetlimit::{AnyStore, PolicySet};

use crate::domain::Domains;
use crate::lists::Lists;
use crate::settings::Settings;
use crate::tls::ServerTls;

pub(crate) use files::{Contents, Read};
pub(crate) use overrides::Overrides;
pub(crate) use ratelimit_env::RatelimitEnv;
pub(crate) use source::{Origin, Source, WithoutEffect};
// The errors of a configuration are its result, too.
pub(crate) use crate::errors::Errors;

/// A valid configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// Policies from the settings and the domain files.
    pub(crate) policies: PolicySet,
    /// The names of policies that do not deny.
    pub(crate) shadow: BTreeSet<String>,
    pub(crate) domains: Domains,
    pub(crate) lists: Lists,
    pub(crate) client_ip: ClientIp,
    /// True if the control plane has not sent a configuration yet.
    pub(crate) awaits_control_plane: bool,
}

/// A valid configuration, and what a process needs to run with it.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) store: AnyStore,
    pub(crate) tls: Option<Arc<ServerTls>>,
}
