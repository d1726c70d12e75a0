use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::forwarded::last_element;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

// What a client may make the walk cost: real chains have a few hops.
const MAX_HOPS: usize = 32;
const MAX_HOP_BYTES: usize = 8 * 1024;

/// The header in which proxies report whom they speak for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chain {
    XForwardedFor,
    Forwarded,
}

impl Chain {
    /// The reported addresses, the nearest hop first; `None` for a hop that tells no address.
    ///
    /// Read from the right, only as far as it is asked for. What is left of a hop cannot change what
    /// it says, and no hop is in two lines.
    pub(super) fn hops(self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let (name, last): (_, Last) = match self {
            Self::XForwardedFor => (&X_FORWARDED_FOR, last_item),
            Self::Forwarded => (&FORWARDED, last_element),
        };
        let lines = headers.get_all(name).iter().rev();
        lines.flat_map(move |line| Hops { line: Some(line.as_bytes()), last }).take(MAX_HOPS)
    }
}

// The last hop: where the comma before it is, unless it is the first, and what it says.
type Last = for<'a> fn(&'a [u8]) -> Option<(Option<usize>, &'a [u8])>;

struct Hops<'a> {
    line: Option<&'a [u8]>,
    last: Last,
}

impl Iterator for Hops<'_> {
    type Item = Option<IpAddr>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.line.take()?;
        let start = line.len().saturating_sub(MAX_HOP_BYTES);
        let hop = (self.last)(&line[start..]);
        Some(match hop {
            Some((Some(comma), node)) => {
                self.line = Some(&line[..start + comma]);
                address(node)
            }
            Some((None, node)) if start == 0 => address(node),
            _ => None,
        })
    }
}

fn last_item(line: &[u8]) -> Option<(Option<usize>, &[u8])> {
    match line.iter().rposition(|&byte| byte == b',') {
        Some(comma) => Some((Some(comma), &line[comma + 1..])),
        None => Some((None, line)),
    }
}

// An address, with or without a port: a number, or in `Forwarded` also a name that hides one.
fn address(node: &[u8]) -> Option<IpAddr> {
    let node = std::str::from_utf8(node).ok()?.trim_matches([' ', '\t']);
    if let Ok(address) = node.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let (address, port) = match node.strip_prefix('[') {
        Some(node) => {
            let (address, port) = node.split_once(']')?;
            (IpAddr::V6(address.parse().ok()?), port)
        }
        None => {
            let (address, port) = node.split_at(node.find(':')?);
            (IpAddr::V4(address.parse().ok()?), port)
        }
    };
    is_port(port).then(|| address.to_canonical())
}

fn is_port(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.strip_prefix(':') {
        Some(port) => !port.is_empty() && port.bytes().all(plain),
        None => text.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn hops(chain: Chain, line: &str) -> Vec<Option<String>> {
        let name = match chain {
            Chain::XForwardedFor => X_FORWARDED_FOR.clone(),
            Chain::Forwarded => FORWARDED,
        };
        let line = HeaderValue::from_bytes(line.as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(name, line)]);
        chain.hops(&headers).map(|hop| hop.map(|address| address.to_string())).collect()
    }

    fn first(chain: Chain, line: &str) -> Option<String> {
        hops(chain, line).swap_remove(0)
    }

    #[test]
    fn addresses_are_read_as_proxies_write_them() {
        for (node, address) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:4711", "203.0.113.7"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:DB8::1]:4711", "2001:db8::1"),
            ("[::ffff:203.0.113.7]:4711", "203.0.113.7"),
        ] {
            assert_eq!(first(Chain::XForwardedFor, node).as_deref(), Some(address));
            assert_eq!(first(Chain::Forwarded, &format!("for={node}")).as_deref(), Some(address));
            let quoted = format!("proto=https; FOR=\"{node}\" ;by=_x;");
            assert_eq!(first(Chain::Forwarded, &quoted).as_deref(), Some(address));
        }
        assert!(first(Chain::Forwarded, "for=\"203.0.113.7:_port\"").is_some());
    }

    #[test]
    fn what_is_no_address_is_not_taken_for_one() {
        let nodes = "|unknown|_hidden|localhost|203.0.113|203.0.113.7:|203.0.113.7 1|0x7f.1|010.0.0.1|\
                     [2001:db8::1|2001:db8::1]|[2001:db8::1]4711|[203.0.113.7]|203.0.113.7:47\u{e9}|\
                     ::1%eth0|[]|:|[";
        for node in nodes.split('|') {
            assert_eq!(first(Chain::XForwardedFor, node), None, "{node}");
            assert_eq!(first(Chain::Forwarded, &format!("for=\"{node}\"")), None, "{node}");
        }
    }

    #[test]
    fn hostile_headers_are_read_to_a_bound() {
        let many = "for=10.2.2.2,".repeat(80_000);
        assert_eq!(hops(Chain::Forwarded, &many[..many.len() - 1]).len(), MAX_HOPS);
        for long in ["\"", "\\", "\\\"", " ", ";", "a", "a=b;", "a=\"\";"] {
            let long = long.repeat(1 << 18);
            for line in [format!("for=192.0.2.66;{long}"), long + "192.0.2.66"] {
                assert_eq!(hops(Chain::Forwarded, &line), [None]);
                assert_eq!(hops(Chain::XForwardedFor, &line), [None]);
            }
        }
    }
}
