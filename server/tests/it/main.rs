//! Tests of the program, over real sockets.

mod common;

mod admin;
mod config;
mod descriptors;
mod http;
mod operations;
mod shared;
