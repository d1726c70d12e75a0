//! Connections to one server: how they are made, shared by many tasks, watched, and replaced.
//!
//! `shared_connection` keeps a connection for each runtime, and replaces it when `lifecycle` (with `backoff`)
//! says so. `established` has the type `Connection`. `health` decides whether it works, and how long it may be
//! silent, which `silence` measures. `connector` makes one: from a pool, from an `endpoint` (with `tls`,
//! `credentials` and `url`), or from what a `sentinel` reports (`primary_report` decides which one counts).
//! `multiplexed` is the connection of the client library. `server` and `sentinel_service` are what an
//! application says about its servers, `settings` about all connections, and `node` is an address.

mod backoff;
mod connector;
mod credentials;
mod endpoint;
mod established;
mod health;
mod lifecycle;
mod multiplexed;
mod node;
#[cfg(feature = "sentinel")]
mod primary_report;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(feature = "sentinel")]
mod sentinel_service;
mod server;
mod settings;
mod shared_connection;
mod silence;
mod tls;
mod url;

pub(super) use self::connector::Connector;
pub use self::credentials::RedisCredentials;
pub(super) use self::endpoint::Endpoint;
pub(super) use self::established::Connection;
pub(super) use self::health::WAKE_INTERVAL;
pub(super) use self::node::Node;
#[cfg(feature = "sentinel")]
pub use self::sentinel_service::SentinelService;
pub use self::server::RedisServer;
pub(super) use self::settings::ConnectionSettings;
pub(super) use self::shared_connection::{ConnectionSet, RuntimeConnections};
pub(super) use self::silence::Silence;
pub(super) use self::tls::warn_if_insecure;
pub(super) use self::url::check_encoding;
#[cfg(test)]
pub(super) use self::{
    health::Health,
    lifecycle::{Established, Lifecycle, Step},
};
