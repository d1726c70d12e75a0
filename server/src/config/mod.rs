//! What the files say, checked as a whole.

mod document;
mod errors;
mod files;
mod lenient;
mod places;
mod reader;
mod secrets;
mod source;

use std::collections::BTreeSet;
use std::sync::Arc;

use fleetlimit::resolve::ClientIp;
use fleetlimit::{AnyStore, PolicySet};

use crate::domain::Domains;
use crate::lists::Lists;
use crate::settings::Settings;
use crate::tls::Certificate;

pub(crate) use errors::Errors;
pub(crate) use files::Read;
pub(crate) use places::Places;
pub(crate) use source::{Origin, Source};

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
}

/// A valid configuration, and what a process needs to run with it.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) store: AnyStore,
    pub(crate) tls: Option<Arc<Certificate>>,
}
