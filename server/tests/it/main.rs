//! Tests of the program, over real sockets.
//!
//! `common` has the processes. Of the configuration: `config`, `environment`, `drop_in`, `deploy`, `docs`, `simulate`. Of
//! checks: `http`, `holds`, `descriptors`, `nginx` and `gateways` (with real ones), `shared`. Of operations: `admin`,
//! `page` (in a `browser`), `operations`, `otlp`, `stores`, `reflection`, `tls`, `xds`. Of hostile clients and servers:
//! `connections`, `http2`, `large_messages`, `memory`, `hostile_redis`, `soak`. `dependency_rules` are those of the
//! modules.

mod common;
#[allow(unused_imports, reason = "the library's tests use more of it")]
#[path = "../../../tests/it/common/mod.rs"]
mod redis_servers;

mod admin;
mod browser;
mod config;
mod connections;
mod dependency_rules;
mod deploy;
mod descriptors;
mod docs;
mod drop_in;
mod environment;
mod gateways;
mod holds;
mod hostile_redis;
mod http;
mod http2;
mod large_messages;
mod memory;
mod nginx;
mod operations;
mod otlp;
mod page;
mod reflection;
mod shared;
mod simulate;
mod soak;
mod stores;
mod tls;
mod xds;
