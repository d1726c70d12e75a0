//! Free ports for servers.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The bus port of a cluster node is its client port plus this offset.
pub(crate) const BUS_PORT_OFFSET: u16 = 10_000;

// All ports, including the bus ports, are below the range that systems use for outgoing
// connections. So no outgoing connection takes the port of a server that is down.
const FIRST_PORT: u32 = 10_100;
const PORT_COUNT: u32 = 12_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a free port whose bus port is free too. Another process can still take it first, so
/// that its user has to retry with another port.
pub(crate) fn free_port() -> u16 {
    let first = process::id().wrapping_mul(97);
    (0..PORT_COUNT)
        .map(|_| first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORT_COUNT + FIRST_PORT)
        .map(|port| port as u16)
        .find(|&port| is_free(port) && is_free(port + BUS_PORT_OFFSET))
        .expect("the loopback interface has a free port")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
