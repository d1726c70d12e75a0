//! The state of the control plane, as the admin API shows it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::settings::Xds;
use crate::telemetry;

/// The control plane of the settings.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    server: String,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    is_connected: bool,
    version: Option<String>,
    rejected: Option<Rejected>,
}

/// A configuration that is not in use, because something is wrong with it.
#[derive(Clone, Debug, Serialize)]
struct Rejected {
    version: String,
    errors: String,
}

/// The state at some time, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Status<'a> {
    server: &'a str,
    connected: bool,
    /// The version in use, which the control plane has chosen.
    version: Option<String>,
    rejected: Option<Rejected>,
}

impl ControlPlane {
    pub(crate) fn new(settings: &Xds) -> Self {
        telemetry::init_control_plane();
        Self { server: settings.server.clone(), state: Mutex::default() }
    }

    pub(crate) fn status(&self) -> Status<'_> {
        let State { is_connected, version, rejected } = self.state().clone();
        Status { server: &self.server, connected: is_connected, version, rejected }
    }

    /// The control plane has sent something. Returns true if it is the first time over this connection.
    pub(crate) fn connected(&self) -> bool {
        telemetry::control_plane_connected(true);
        !std::mem::replace(&mut self.state().is_connected, true)
    }

    pub(crate) fn lost(&self) {
        telemetry::control_plane_connected(false);
        self.state().is_connected = false;
    }

    pub(crate) fn applied(&self, version: &str) {
        telemetry::received(true);
        let mut state = self.state();
        (state.version, state.rejected) = (Some(version.to_owned()), None);
    }

    pub(crate) fn rejected(&self, version: &str, errors: &str) {
        telemetry::received(false);
        let (version, errors) = (version.to_owned(), errors.to_owned());
        self.state().rejected = Some(Rejected { version, errors });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
