use std::fmt::Display;
use std::net::IpAddr;

use http::HeaderMap;
use http::request::Parts;

use super::hops::Chain;
use super::peer::peer;
use super::prefix::Prefixes;
use super::trusted::Trusted;
use super::{KeyResolver, Resolution};
use crate::ConfigError;

/// Counts by the address of the client, behind reverse proxies and load balancers.
///
/// - A peer that is not one of the trusted proxies is the client, and no header is looked at.
/// - Otherwise the hops in the header are read from the right, the nearest proxy's first. Those of
///   trusted proxies are skipped: the rightmost other one is the client.
/// - A hop that tells no address (`unknown`, `_hidden`, not to be made out) ends the walk: the
///   client is the trusted proxy that reported it. Nothing further left is believed.
/// - If all hops are trusted the client is the leftmost one; without the header it is the peer.
///
/// Of a chain of more than 32 hops, and of a hop of more than 8 KiB, the rest is not read.
/// Keys and peer are those of [`PeerIp`](super::PeerIp).
///
/// # Security
/// - **One header.** `X-Forwarded-For` by default, `Forwarded` (RFC 7239) by
///   [`forwarded`](Self::forwarded), never both: a proxy writes one of them and passes the other
///   on as the client sent it. Choose the one that your proxies write.
/// - The proxies must **append** the address that they see, or overwrite the header.
/// - Trust only the addresses of proxies. Whoever connects from a trusted one can name any address:
///   a whole private network is too much if clients are in it too.
/// - Trust all proxies in the way: also the ranges of a CDN. One that is left out is taken for the
///   client, and everyone behind it shares its bucket.
///
/// # Examples
/// ```
/// use std::net::SocketAddr;
/// use tollgate::resolve::ClientIp;
/// use tollgate::{KeyResolver, Resolution};
///
/// let client_ip = ClientIp::new(["10.0.0.0/8", "2001:db8:ff::1"])?;
///
/// let request = http::Request::get("/").header("x-forwarded-for", "192.0.2.66, 203.0.113.7");
/// let (mut parts, ()) = request.body(())?.into_parts();
/// parts.extensions.insert("10.0.0.1:4711".parse::<SocketAddr>()?);
/// assert_eq!(client_ip.resolve(&parts), Resolution::Key("203.0.113.7".into()));
///
/// // The same header from elsewhere is not looked at.
/// parts.extensions.insert("198.51.100.9:4711".parse::<SocketAddr>()?);
/// assert_eq!(client_ip.resolve(&parts), Resolution::Key("198.51.100.9".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientIp {
    trusted: Trusted,
    chain: Chain,
    prefixes: Prefixes,
}

impl ClientIp {
    /// Trusts these proxies: networks such as `10.0.0.0/8`, and single addresses. With none, every
    /// peer is the client.
    ///
    /// # Errors
    /// One of them is neither a network nor an address, or is all of the internet (`0.0.0.0/0`), in
    /// which every client could name its own address.
    pub fn new<I>(trusted: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: Display,
    {
        let trusted = Trusted::parse(trusted)?;
        Ok(Self { trusted, chain: Chain::XForwardedFor, prefixes: Prefixes::default() })
    }

    /// Reads the header `Forwarded` instead of `X-Forwarded-For`.
    pub fn forwarded(self) -> Self {
        Self { chain: Chain::Forwarded, ..self }
    }

    /// See [`PeerIp::ipv6_prefix`](super::PeerIp::ipv6_prefix).
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.v6(bits), ..self }
    }

    /// See [`PeerIp::ipv4_prefix`](super::PeerIp::ipv4_prefix).
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.v4(bits), ..self }
    }

    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        let mut hops = self.chain.hops(headers);
        while self.trusted.contains(client) {
            match hops.next() {
                Some(Some(hop)) => client = hop,
                _ => break,
            }
        }
        client
    }
}

impl KeyResolver for ClientIp {
    fn resolve(&self, parts: &Parts) -> Resolution {
        match peer(parts) {
            Ok(peer) => Resolution::Key(self.prefixes.key(self.client(peer, &parts.headers))),
            Err(missing) => missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;
    use std::net::SocketAddr;

    const CLIENT: &str = "203.0.113.7";
    const FORGED: &str = "192.0.2.66";

    fn client_ip() -> ClientIp {
        ClientIp::new(["10.0.0.0/8", "2001:db8:ff::1"]).unwrap()
    }

    fn resolve(resolver: ClientIp, peer: &str, lines: &[(&'static str, &[u8])]) -> Resolution {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.extensions.insert(SocketAddr::new(peer.parse().unwrap(), 4711));
        for (name, line) in lines {
            parts.headers.append(*name, HeaderValue::from_bytes(line).unwrap());
        }
        resolver.resolve(&parts)
    }

    fn from_proxy(lines: &[&str]) -> Resolution {
        let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_bytes())).collect();
        resolve(client_ip(), "10.0.0.1", &lines)
    }

    fn key(text: &str) -> Resolution {
        Resolution::Key(text.into())
    }

    #[test]
    fn a_forged_header_from_an_untrusted_peer_is_not_looked_at() {
        for (name, line) in [("x-forwarded-for", FORGED), ("forwarded", "for=192.0.2.66")] {
            let lines = [(name, line.as_bytes())];
            assert_eq!(resolve(client_ip(), CLIENT, &lines), key(CLIENT));
            assert_eq!(resolve(client_ip().forwarded(), CLIENT, &lines), key(CLIENT));
            let nobody = ClientIp::new(Vec::<String>::new()).unwrap();
            assert_eq!(resolve(nobody, CLIENT, &lines), key(CLIENT));
        }
    }

    #[test]
    fn the_header_that_was_not_chosen_is_not_looked_at() {
        let lines: [(_, &[u8]); 2] =
            [("x-forwarded-for", b"203.0.113.7"), ("forwarded", b"for=192.0.2.66")];
        assert_eq!(resolve(client_ip(), "10.0.0.1", &lines), key(CLIENT));
        let lines: [(_, &[u8]); 2] =
            [("x-forwarded-for", b"192.0.2.66"), ("forwarded", b"for=203.0.113.7")];
        assert_eq!(resolve(client_ip().forwarded(), "10.0.0.1", &lines), key(CLIENT));
        assert_eq!(resolve(client_ip().forwarded(), "10.0.0.1", &lines[..1]), key("10.0.0.1"));
    }

    #[test]
    fn the_rightmost_untrusted_hop_is_the_client() {
        assert_eq!(from_proxy(&["192.0.2.66, 203.0.113.7"]), key(CLIENT));
        assert_eq!(from_proxy(&["192.0.2.66, 203.0.113.7, 10.9.9.9,2001:db8:ff::1"]), key(CLIENT));
        assert_eq!(from_proxy(&["192.0.2.66", "203.0.113.7", "10.9.9.9"]), key(CLIENT));
        assert_eq!(from_proxy(&["10.3.3.3, 10.2.2.2"]), key("10.3.3.3"));
        assert_eq!(from_proxy(&[]), key("10.0.0.1"));
    }

    #[test]
    fn nothing_left_of_a_hop_without_an_address_is_believed() {
        for hop in
            ["unknown", "_hidden", "", "203.0.113", "203.0.113.7x", "[::1", "unix:", "\u{e9}"]
        {
            let line = format!("192.0.2.66, {hop}, 10.2.2.2");
            assert_eq!(from_proxy(&[&line]), key("10.2.2.2"), "{hop}");
            assert_eq!(from_proxy(&[FORGED, hop]), key("10.0.0.1"), "{hop}");
        }
    }

    #[test]
    fn a_mapped_address_or_network_is_an_ipv4_one() {
        let mapped = ClientIp::new(["::ffff:10.0.0.0/104"]).unwrap();
        let lines: [(_, &[u8]); 1] = [("x-forwarded-for", b"::ffff:203.0.113.7, ::ffff:10.2.2.2")];
        for peer in ["10.0.0.1", "::ffff:10.0.0.1"] {
            assert_eq!(resolve(mapped.clone(), peer, &lines), key(CLIENT));
        }
    }

    #[test]
    fn a_v6_client_cannot_rotate_behind_a_proxy_either() {
        assert_eq!(from_proxy(&["2001:db8:1:2::1"]), key("2001:db8:1:2::/64"));
        assert_eq!(from_proxy(&["[2001:db8:1:2:ffff::2]:80"]), key("2001:db8:1:2::/64"));
    }

    #[test]
    fn a_header_of_a_megabyte_costs_a_few_hops() {
        for (header, expected) in [
            ("10.2.2.2,".repeat(120_000) + CLIENT, CLIENT),
            ("x".repeat(1 << 20) + ",203.0.113.7", CLIENT),
            ("203.0.113.7,".repeat(90_000) + &"10.2.2.2,".repeat(31) + "10.3.3.3", "10.2.2.2"),
            ("203.0.113.7".to_owned() + &" ".repeat(1 << 20) + ",10.2.2.2", "10.2.2.2"),
        ] {
            assert_eq!(from_proxy(&[&header]), key(expected));
        }
    }

    // Bytes that a header may have, with those that mean something in these headers more often.
    fn junk() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => prop::sample::select(b"\",;=\\[]:. \tfor0129".to_vec()),
            1 => prop::sample::select(b"10.2.2.2".to_vec()),
            1 => (0x20u8..).prop_filter("DEL", |&byte| byte != 0x7f),
        ];
        let text =
            prop::sample::select(vec!["10.2.2.2,", "for=\"10.2.2.2\",", "for=\"", ", for=\"\\\""]);
        let piece = prop_oneof![
            byte.prop_map(|byte| vec![byte]),
            text.prop_map(|text| text.as_bytes().to_vec()),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn no_header_panics_or_is_believed_from_an_untrusted_peer(one in junk(), other in junk()) {
            for name in ["x-forwarded-for", "forwarded"] {
                let lines = [(name, &one[..]), (name, &other[..])];
                for resolver in [client_ip(), client_ip().forwarded()] {
                    prop_assert_eq!(resolve(resolver.clone(), CLIENT, &lines), key(CLIENT));
                    resolve(resolver, "10.0.0.1", &lines);
                }
            }
        }

        #[test]
        fn what_the_client_sends_to_the_left_changes_nothing(
            left in junk(), own_line in any::<bool>(), (name, hops) in prop::sample::select(vec![
                ("x-forwarded-for", "203.0.113.7"),
                ("x-forwarded-for", "203.0.113.7:80, 10.2.2.2"),
                ("forwarded", "for=203.0.113.7"),
                ("forwarded", r#"proto=https;For="203.0.113.7:80""#),
                ("forwarded", r#"for=203.0.113.7;host="a\"\\, for=192.0.2.66";by=_x, for="10.2.2.2";"#),
            ]),
        ) {
            let joined = [&left[..], b", ", hops.as_bytes()].concat();
            let lines: &[(_, &[u8])] =
                if own_line { &[(name, &left), (name, hops.as_bytes())] } else { &[(name, &joined)] };
            let resolver = if name == "forwarded" { client_ip().forwarded() } else { client_ip() };
            prop_assert_eq!(resolve(resolver, "10.0.0.1", lines), key(CLIENT));
        }
    }
}
