//! Tests of the program, over real sockets.

mod common;

mod admin;
mod config;
mod descriptors;
mod gateways;
mod http;
mod nginx;
mod operations;
mod page;
mod shared;
mod simulate;
mod soak;
