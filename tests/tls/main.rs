//! `rediss://` with a private certificate authority, on servers that speak only TLS. A crate of its
//! own, because it has to run once with each TLS library: where the features of both are enabled,
//! `redis` uses rustls.

#![cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]

mod certificates;
#[allow(unused_imports)]
#[path = "../it/common/mod.rs"]
mod common;
#[path = "../it/log.rs"]
mod log;

mod timing;
mod trust;
