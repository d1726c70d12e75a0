//! The control plane that sends the limits of domains, apart from what it sends: `endpoint` is how to connect to it, `retry`
//! when, and `state` what the admin API and metrics show of it.

mod endpoint;
mod retry;
mod state;

pub(crate) use endpoint::{check, endpoint, metadata};
pub(crate) use retry::Pauses;
pub(crate) use state::ControlPlane;
