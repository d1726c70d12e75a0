//! Counts the connections of a port from each client address, so that one cannot take all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetlimit::Key;
use fleetlimit::resolve::PeerIp;

/// The connections of a port by client, which is an address or, with IPv6, a /64 network.
#[derive(Clone, Debug)]
pub(crate) struct PerAddress {
    most: usize,
    open: Arc<Mutex<HashMap<Key, Open>>>,
}

#[derive(Debug, Default)]
struct Open {
    connections: usize,
    has_warned: bool,
}

/// The client has as many connections as it may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany {
    /// Once for each client, until it has no connection.
    pub(crate) is_first: bool,
}

/// The place of one connection, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    client: Key,
    all: PerAddress,
}

impl PerAddress {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, open: Arc::default() }
    }

    /// # Errors
    ///
    /// If the client has as many connections as it may.
    pub(crate) fn acquire(&self, address: IpAddr) -> Result<Place, TooMany> {
        let client = PeerIp::new().key(address);
        let mut all = self.open();
        let open = all.entry(client.clone()).or_default();
        if open.connections >= self.most {
            return Err(TooMany { is_first: !std::mem::replace(&mut open.has_warned, true) });
        }
        open.connections += 1;
        Ok(Place { client, all: self.clone() })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Key, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.all.open();
        if let Some(open) = all.get_mut(&self.client) {
            open.connections -= 1;
            if open.connections == 0 {
                all.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire(all: &PerAddress, address: &str) -> Result<Place, TooMany> {
        all.acquire(address.parse().unwrap())
    }

    #[test]
    fn a_client_cannot_get_more_by_another_notation_or_another_address_of_its_network() {
        for (first, second, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1"),
        ] {
            let all = PerAddress::new(1);
            let place = acquire(&all, first).unwrap();
            assert!(acquire(&all, second).is_err(), "{second}");
            assert!(acquire(&all, other).is_ok(), "{other}");
            drop(place);
            assert!(acquire(&all, second).is_ok(), "{second}");
        }
    }

    #[test]
    fn clients_that_are_gone_take_no_memory() {
        let all = PerAddress::new(2);
        let places = ["192.0.2.1", "192.0.2.1", "2001:db8::1"].map(|text| acquire(&all, text));
        drop(places);
        assert!(all.open().is_empty());
    }

    #[test]
    fn a_client_that_keeps_trying_does_not_fill_the_log() {
        let all = PerAddress::new(1);
        let _place = acquire(&all, "192.0.2.1").unwrap();
        let warns: Vec<_> = (0..3).map(|_| acquire(&all, "192.0.2.1").unwrap_err()).collect();
        assert_eq!(warns, [true, false, false].map(|is_first| TooMany { is_first }));
    }
}
