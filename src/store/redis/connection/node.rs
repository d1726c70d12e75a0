//! The address of a server that another server names.
//!
//! An unknown host is never resolved. In redirections and slots, an empty host means the node that replied.
//! `?` means that the node does not know the host. Then the address comes from the reply of another node or,
//! for the node that replied, from the address at which it was asked.

use std::fmt;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};

/// The longest name that DNS permits.
const MAX_HOST: usize = 253;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl Node {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Returns the address that another server has named. `None` if it is unknown: without a host or with `?`,
    /// which must not be resolved by DNS, or with a text that is no host, which would appear in logs and
    /// metrics.
    pub(crate) fn named(host: &str, port: u16) -> Option<Self> {
        let is_visible = |c: char| !c.is_control() && !c.is_whitespace();
        let is_host = (1..=MAX_HOST).contains(&host.len()) && host != "?";
        (is_host && host.chars().all(is_visible)).then(|| Self::new(host, port))
    }

    /// The address of a server, unless it is a Unix socket.
    pub(super) fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Self::new(host, *port))
            }
            _ => None,
        }
    }

    /// Parses the address in a redirection. Without a host it is that of the node that `answered`.
    pub(crate) fn parse(address: &str, answered: Option<&Self>) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        match host.trim_start_matches('[').trim_end_matches(']') {
            "" => answered.map(|answered| Self { host: answered.host.clone(), port }),
            host => Self::named(host, port),
        }
    }

    /// Returns the settings of a connection to this address, with the same user, password, database, TLS
    /// and options.
    pub(super) fn like(&self, other: &ConnectionInfo) -> ConnectionInfo {
        let (host, port) = (self.host.to_string(), self.port);
        let address = match other.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        other.clone().set_addr(address)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_host_is_that_of_the_node_that_answered() {
        let answered = Node::new("10.0.0.1", 7000);
        assert_eq!(Node::parse(":7001", Some(&answered)), Some(Node::new("10.0.0.1", 7001)));
        assert_eq!(Node::parse(":7001", None), None);
    }

    #[test]
    fn a_question_mark_is_no_host() {
        assert_eq!(Node::parse("?:7001", Some(&Node::new("10.0.0.1", 7000))), None);
    }

    #[test]
    fn addresses_of_version_6_keep_their_colons() {
        let node = Some(Node::new("fe80::1", 7001));
        assert_eq!(Node::parse("fe80::1:7001", None), node);
        assert_eq!(Node::parse("[fe80::1]:7001", None), node);
    }

    /// It would be the label of metrics, and in each line of the log.
    #[test]
    fn a_text_that_is_no_host_is_not_used_as_one() {
        for host in ["", "?", "a b", "a\nWARN b", "\u{1b}[2J", &"x".repeat(254)] {
            assert_eq!(Node::named(host, 7000), None, "{host:?}");
        }
        for host in
            ["10.0.0.1", "fe80::1", "redis-0.internal", "b\u{fc}cher.example", &"x".repeat(253)]
        {
            assert_eq!(Node::named(host, 7000), Some(Node::new(host, 7000)), "{host:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(address: String) {
            let _ = Node::parse(&address, None);
        }
    }
}
