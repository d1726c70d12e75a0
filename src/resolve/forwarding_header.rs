//! The headers in which proxies report their clients, and how their entries are read, from the right to the
//! left.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::rfc7239::rightmost_element;
use crate::canonical::canonical;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
static CLOUDFRONT_VIEWER_ADDRESS: HeaderName = HeaderName::from_static("cloudfront-viewer-address");

// What a client can make the search cost. Real chains have a few entries.
pub(super) const MAX_ENTRIES: usize = 32;
const MAX_ENTRY_BYTES: usize = 8 * 1024;

/// The header in which proxies report the address of their client.
#[derive(Clone, Debug)]
pub(super) enum ForwardingHeader {
    XForwardedFor,
    Forwarded,
    /// A header with a single address.
    Single(HeaderName),
}

impl ForwardingHeader {
    /// Returns the reported addresses, the nearest proxy's first. `None` for an entry without an address.
    ///
    /// Lazy, from the right. What is left of an entry cannot change its meaning, and no entry spans
    /// two header lines.
    pub(super) fn addresses(&self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let rightmost: Rightmost = match self {
            Self::XForwardedFor => rightmost_item,
            Self::Forwarded => rightmost_element,
            Self::Single(name) if *name == CLOUDFRONT_VIEWER_ADDRESS => before_port,
            Self::Single(_) => whole_line,
        };
        let lines = headers.get_all(self.name());
        // If a single address comes twice, one of them may be the client's.
        let is_ambiguous = matches!(self, Self::Single(_)) && lines.iter().nth(1).is_some();
        let lines = lines.iter().rev().filter(move |_| !is_ambiguous);
        let entries =
            lines.flat_map(move |line| HeaderEntries { line: Some(line.as_bytes()), rightmost });
        entries.take(MAX_ENTRIES)
    }

    pub(super) fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
            Self::Single(name) => name,
        }
    }

    /// Returns true if the header has only the address of the client.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, Self::Single(_))
    }

    /// Returns the usual headers, except for this one.
    pub(super) fn others(&self) -> impl Iterator<Item = &HeaderName> {
        let usual = [&X_FORWARDED_FOR, &X_REAL_IP, &FORWARDED];
        usual.into_iter().filter(|name| *name != self.name())
    }
}

// The rightmost entry: the position of the comma before it unless it is the first, and its value.
type Rightmost = for<'a> fn(&'a [u8]) -> Option<(Option<usize>, &'a [u8])>;

/// The entries of a header line, from the right to the left.
struct HeaderEntries<'a> {
    line: Option<&'a [u8]>,
    rightmost: Rightmost,
}

impl Iterator for HeaderEntries<'_> {
    type Item = Option<IpAddr>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.line.take()?;
        let start = line.len().saturating_sub(MAX_ENTRY_BYTES);
        let entry = (self.rightmost)(&line[start..]);
        Some(match entry {
            Some((Some(comma), node)) => {
                self.line = Some(&line[..start + comma]);
                address(node)
            }
            Some((None, node)) if start == 0 => address(node),
            _ => None,
        })
    }
}

fn whole_line(line: &[u8]) -> Option<(Option<usize>, &[u8])> {
    Some((None, line))
}

/// Returns the address in `CloudFront-Viewer-Address`. CloudFront always adds the port, also to an IPv6 address,
/// without brackets. The port could be taken for the last group of a shorter address.
fn before_port(line: &[u8]) -> Option<(Option<usize>, &[u8])> {
    let colon = line.iter().rposition(|&byte| byte == b':')?;
    Some((None, &line[..colon]))
}

fn rightmost_item(line: &[u8]) -> Option<(Option<usize>, &[u8])> {
    match line.iter().rposition(|&byte| byte == b',') {
        Some(comma) => Some((Some(comma), &line[comma + 1..])),
        None => Some((None, line)),
    }
}

// An address, with or without a port. In `Forwarded` the port may be an obfuscated name.
fn address(node: &[u8]) -> Option<IpAddr> {
    let node = std::str::from_utf8(node).ok()?.trim_matches([' ', '\t']);
    if let Ok(address) = node.parse::<IpAddr>() {
        return Some(canonical(address));
    }
    let (address, is_valid) = match node.strip_prefix('[') {
        Some(node) => {
            let (address, port) = node.split_once(']')?;
            (IpAddr::V6(address.parse().ok()?), is_port(port))
        }
        None => {
            let (address, port) = node.split_at(node.rfind(':')?);
            let address: IpAddr = address.parse().ok()?;
            // An IPv6 address without brackets, with a port. What could be the last group of an address is
            // one, so this is behind eight groups, or has five digits.
            let is_number = || port[1..].parse::<u16>().is_ok();
            (address, is_port(port) && (address.is_ipv4() || is_number()))
        }
    };
    is_valid.then(|| canonical(address))
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

    fn addresses(header: ForwardingHeader, line: &str) -> Vec<Option<String>> {
        let name = match &header {
            ForwardingHeader::XForwardedFor => X_FORWARDED_FOR.clone(),
            _ => FORWARDED,
        };
        let line = HeaderValue::from_bytes(line.as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(name, line)]);
        header.addresses(&headers).map(|entry| entry.map(|address| address.to_string())).collect()
    }

    fn first(header: ForwardingHeader, line: &str) -> Option<String> {
        addresses(header, line).swap_remove(0)
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
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("2001:db8:1:2:3:4:5:6:46532", "2001:db8:1:2:3:4:5:6"),
            ("2001:0db8:0001:0002:0003:0004:0005:0006:80", "2001:db8:1:2:3:4:5:6"),
            ("2001:db8::1:46532", "2001:db8::1"),
        ] {
            assert_eq!(first(ForwardingHeader::XForwardedFor, node).as_deref(), Some(address));
            assert_eq!(
                first(ForwardingHeader::Forwarded, &format!("for={node}")).as_deref(),
                Some(address)
            );
            let quoted = format!("proto=https; FOR=\"{node}\" ;by=_x;");
            assert_eq!(first(ForwardingHeader::Forwarded, &quoted).as_deref(), Some(address));
        }
        assert!(first(ForwardingHeader::Forwarded, "for=\"203.0.113.7:_port\"").is_some());
    }

    /// Otherwise a client had as many keys as ports.
    #[test]
    fn the_port_of_a_cloudfront_address_is_no_part_of_it() {
        let name = HeaderName::from_static("cloudfront-viewer-address");
        let header = ForwardingHeader::Single(name.clone());
        for (line, address) in [
            ("2a01:7e00::f03c:91ff:fe12:3456:8080", "2a01:7e00::f03c:91ff:fe12:3456"),
            ("2001:db8:1:2:3:4:5:6:46532", "2001:db8:1:2:3:4:5:6"),
            ("2001:db8::1:80", "2001:db8::1"),
            ("203.0.113.7:46532", "203.0.113.7"),
        ] {
            let value = HeaderValue::from_static(line);
            let headers = HeaderMap::from_iter([(name.clone(), value)]);
            let found: Vec<_> = header.addresses(&headers).collect();
            assert_eq!(found, [Some(address.parse().unwrap())], "{line}");
        }
    }

    #[test]
    fn garbage_is_not_an_address() {
        let nodes = "|unknown|_hidden|localhost|203.0.113|203.0.113.7:|203.0.113.7 1|0x7f.1|010.0.0.1|\
                     [2001:db8::1|2001:db8::1]|[2001:db8::1]4711|[203.0.113.7]|203.0.113.7:47\u{e9}|\
                     ::1%eth0|[]|:|[|2001:db8:1:2:3:4:5:6:|2001:db8:1:2:3:4:5:6:65536|\
                     2001:db8:1:2:3:4:5:6:_x|2001:db8:1:2:3:4:5:6:7:80|::1:123456";
        for node in nodes.split('|') {
            assert_eq!(first(ForwardingHeader::XForwardedFor, node), None, "{node}");
            assert_eq!(
                first(ForwardingHeader::Forwarded, &format!("for=\"{node}\"")),
                None,
                "{node}"
            );
        }
    }

    #[test]
    fn reading_a_hostile_header_is_bounded() {
        let many = "for=10.2.2.2,".repeat(80_000);
        assert_eq!(
            addresses(ForwardingHeader::Forwarded, &many[..many.len() - 1]).len(),
            MAX_ENTRIES
        );
        for long in ["\"", "\\", "\\\"", " ", ";", "a", "a=b;", "a=\"\";"] {
            let long = long.repeat(1 << 18);
            for line in [format!("for=192.0.2.66;{long}"), long + "192.0.2.66"] {
                assert_eq!(addresses(ForwardingHeader::Forwarded, &line), [None]);
                assert_eq!(addresses(ForwardingHeader::XForwardedFor, &line), [None]);
            }
        }
    }
}
