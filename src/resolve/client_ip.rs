//! The client behind proxies: which entry of a forwarding header is believed.

use std::fmt::Display;

use http::request::Parts;
use http::{HeaderMap, HeaderName};

use super::forwarding_header::{ForwardingHeader, MAX_ENTRIES};
use super::peer::{Peer, peer};
use super::prefix::Prefixes;
use super::proxy_log::ProxyLog;
use super::trusted_proxies::Trusted;
use super::{KeyResolver, Resolution};
use crate::ConfigError;

/// Uses the client's IP address as the key, behind reverse proxies, load balancers and CDNs.
///
/// - A peer that is not a trusted proxy is the client, and the header is ignored.
/// - Otherwise the entries of the header are read from the right, the nearest proxy's first.
///   Entries of trusted proxies are skipped, and the rightmost other entry is the client.
/// - An entry without a usable address (`unknown`, `_hidden`, garbage) stops the search. The client
///   is then the trusted proxy that reported it. Nothing further left is used.
/// - If all entries are trusted, the client is the leftmost one. Without the header it is the peer.
///
/// If the proxies have no fixed addresses, [`hops`](Self::hops) counts entries instead.
///
/// A trusted peer that does not report its client is logged, at most every ten minutes for each cause. The
/// causes are: no header at all (which is normal for health checks), another header than the selected one, or
/// no usable address.
///
/// At most 32 entries are read; if all of them are trusted, the client is the last one read. An
/// entry longer than 8 KiB counts as one without a usable address. The peer is found, and the key
/// is written, as by [`PeerIp`](super::PeerIp).
///
/// # Security
///
/// - **One header.** By default that is `X-Forwarded-For`. [`forwarded`](Self::forwarded) selects
///   `Forwarded` (RFC 7239), and [`header`](Self::header) a header with a single address. Never use
///   one that your proxies pass on unchanged, because then the client wrote it.
/// - The proxies must **append** the address that they see, or overwrite the header.
/// - Trust only addresses of proxies. Anyone who connects from a trusted address can claim any
///   address, so do not trust a private network that has clients in it. If the nearest proxy can have
///   any address of such a network, and others cannot connect, name the network in
///   [`peers`](Self::peers) instead.
/// - Trust every proxy on the way, including the ranges of a CDN. A proxy that is missing is taken
///   for the client, and everyone behind it shares a bucket.
///
/// # Examples
///
/// ```
/// use std::net::SocketAddr;
/// use fleetlimit::resolve::ClientIp;
/// use fleetlimit::{KeyResolver, Resolution};
///
/// // The proxies, and not the network in which they are: it has other machines.
/// let client_ip = ClientIp::new(["10.0.8.0/28", "2001:db8:ff::1"])?;
///
/// let request = http::Request::get("/").header("x-forwarded-for", "192.0.2.66, 203.0.113.7");
/// let (mut parts, ()) = request.body(())?.into_parts();
/// parts.extensions.insert("10.0.8.1:4711".parse::<SocketAddr>()?);
/// assert_eq!(client_ip.resolve(&parts), Resolution::Key("203.0.113.7".into()));
///
/// // From any other peer the header is ignored.
/// parts.extensions.insert("198.51.100.9:4711".parse::<SocketAddr>()?);
/// assert_eq!(client_ip.resolve(&parts), Resolution::Key("198.51.100.9".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientIp {
    /// The peers whose header is used. `None` if `proxies` decides that.
    peers: Option<Trusted>,
    proxies: Proxies,
    header: ForwardingHeader,
    prefixes: Prefixes,
    log: ProxyLog,
}

/// The entries of the header that proxies have added.
#[derive(Clone, Debug)]
enum Proxies {
    Trusted(Trusted),
    /// The number of entries, whoever the peer is.
    Hops(usize),
}

impl ClientIp {
    /// Trusts these proxies: networks such as `10.0.8.0/28`, single addresses, and `unix:` for the
    /// peers of a Unix socket (see [`UnixSocket`](super::UnixSocket)). Without any, every peer is
    /// the client.
    ///
    /// # Errors
    ///
    /// If one of them is neither a network nor an address, or is the whole internet (`0.0.0.0/0`),
    /// which lets every client spoof its address.
    pub fn new<I>(trusted: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: Display,
    {
        Ok(Self::with_proxies(Proxies::Trusted(Trusted::parse(trusted)?)))
    }

    /// Uses the `n`th entry of the header from the right as the client, for proxies whose addresses are
    /// unknown or change. `n` is the number of entries that the proxies add: 1 to 32.
    ///
    /// - 1: a single proxy that appends the address of its peer.
    /// - 2: Google's Application Load Balancer, which appends the client and its own address; or two
    ///   proxies one behind the other, such as a CDN and a load balancer.
    ///
    /// If there are fewer entries, or one of the last `n` has no usable address, the client is the peer.
    /// With a header of a single address ([`header`](Self::header), [`x_real_ip`](Self::x_real_ip)), the
    /// client is that address.
    ///
    /// # Security
    ///
    /// Every peer is trusted, unless you name them with [`peers`](Self::peers). Make sure that only the
    /// proxies can connect, for example by a firewall: anyone else can claim any address. And every
    /// request has to pass the same number of proxies. If some pass fewer, their clients can claim any
    /// address too.
    ///
    /// # Errors
    ///
    /// If the number is not 1 to 32.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use fleetlimit::resolve::ClientIp;
    /// use fleetlimit::{KeyResolver, Resolution};
    ///
    /// let behind_google = ClientIp::hops(2)?;
    ///
    /// let forwarded = "192.0.2.66, 203.0.113.7, 198.51.100.1";
    /// let request = http::Request::get("/").header("x-forwarded-for", forwarded);
    /// let (mut parts, ()) = request.body(())?.into_parts();
    /// parts.extensions.insert("35.191.0.1:4711".parse::<SocketAddr>()?);
    /// assert_eq!(behind_google.resolve(&parts), Resolution::Key("203.0.113.7".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hops(n: usize) -> Result<Self, ConfigError> {
        match n {
            0 => Err(ConfigError::new(
                "the client cannot be 0 hops away: use `PeerIp` if there is no proxy".to_owned(),
            )),
            1..=MAX_ENTRIES => Ok(Self::with_proxies(Proxies::Hops(n))),
            _ => Err(ConfigError::new(format!(
                "{n} hops are too many: at most {MAX_ENTRIES} entries of a header are read"
            ))),
        }
    }

    fn with_proxies(proxies: Proxies) -> Self {
        let (header, prefixes) = (ForwardingHeader::XForwardedFor, Prefixes::default());
        Self { peers: None, proxies, header, prefixes, log: ProxyLog::default() }
    }

    /// Uses the header of these peers only, written as for [`new`](Self::new). Without this, they are the
    /// trusted proxies and, with [`hops`](Self::hops), all peers.
    ///
    /// A peer is not skipped in the header. So a network of peers may have clients in it: one that does
    /// not connect directly cannot claim another address.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use fleetlimit::resolve::ClientIp;
    /// use fleetlimit::{KeyResolver, Resolution};
    ///
    /// // A gateway anywhere in this network, behind a load balancer.
    /// let client_ip = ClientIp::new(["192.0.2.10"])?.peers(["10.0.8.0/24"])?;
    ///
    /// for (forwarded, client) in
    ///     [("203.0.113.7, 192.0.2.10", "203.0.113.7"), ("203.0.113.7, 10.0.8.66", "10.0.8.66")]
    /// {
    ///     let request = http::Request::get("/").header("x-forwarded-for", forwarded);
    ///     let (mut parts, ()) = request.body(())?.into_parts();
    ///     parts.extensions.insert("10.0.8.1:4711".parse::<SocketAddr>()?);
    ///     assert_eq!(client_ip.resolve(&parts), Resolution::Key(client.into()));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peers<I>(self, peers: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator,
        I::Item: Display,
    {
        Ok(Self { peers: Some(Trusted::parse(peers)?), ..self })
    }

    /// Reads `Forwarded` instead of `X-Forwarded-For`.
    pub fn forwarded(self) -> Self {
        Self { header: ForwardingHeader::Forwarded, ..self }
    }

    /// Reads `X-Real-IP`, a single address that nginx sets with
    /// `proxy_set_header X-Real-IP $remote_addr`.
    pub fn x_real_ip(self) -> Self {
        self.header(HeaderName::from_static("x-real-ip"))
    }

    /// Reads a header with a single address that a proxy or a CDN sets, such as `CF-Connecting-IP`
    /// (Cloudflare) or `CloudFront-Viewer-Address`. It may have a port, and an IPv6 address needs no
    /// brackets. Make sure that the CDN overwrites what the client sends. By default Fastly
    /// does not for `Fastly-Client-IP`; for `True-Client-IP` (Akamai), check your configuration.
    ///
    /// A header that is missing, repeated or not an address is ignored: the client is then the
    /// trusted peer. Trust the CDN's published ranges only, because anyone else can send the
    /// header.
    ///
    /// ```
    /// use http::HeaderName;
    /// use fleetlimit::resolve::ClientIp;
    ///
    /// const CF_CONNECTING_IP: HeaderName = HeaderName::from_static("cf-connecting-ip");
    /// // Read the CDN's current list from your configuration.
    /// let client_ip = ClientIp::new(["198.51.100.0/24"])?.header(CF_CONNECTING_IP);
    /// # Ok::<(), fleetlimit::ConfigError>(())
    /// ```
    pub fn header(self, name: HeaderName) -> Self {
        let header = match name.as_str() {
            "x-forwarded-for" => ForwardingHeader::XForwardedFor,
            "forwarded" => ForwardingHeader::Forwarded,
            _ => ForwardingHeader::Single(name),
        };
        Self { header, ..self }
    }

    /// Sets the prefix that IPv6 clients share: see [`PeerIp::ipv6_prefix`](super::PeerIp::ipv6_prefix).
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.v6(bits), ..self }
    }

    /// Sets the prefix that IPv4 clients share: see [`PeerIp::ipv4_prefix`](super::PeerIp::ipv4_prefix).
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.v4(bits), ..self }
    }

    fn client(&self, peer: Peer, headers: &HeaderMap) -> Peer {
        let reports_clients = match (&self.peers, &self.proxies) {
            (Some(peers), _) | (None, Proxies::Trusted(peers)) => peers.contains(peer),
            (None, Proxies::Hops(_)) => true,
        };
        if !reports_clients {
            return peer;
        }
        let mut client = None;
        let reported = self.header.addresses(headers).map_while(|address| address);
        for (address, n) in reported.zip(1..) {
            match &self.proxies {
                Proxies::Trusted(trusted) => {
                    client = Some(address);
                    if !trusted.contains(Peer::Ip(address)) {
                        break;
                    }
                }
                // A header with a single address has that of the client alone.
                Proxies::Hops(hops) => {
                    if n == *hops || self.header.is_single() {
                        client = Some(address);
                        break;
                    }
                }
            }
        }
        client.map(Peer::Ip).unwrap_or_else(|| {
            self.log.report(peer, &self.header, headers);
            peer
        })
    }
}

impl KeyResolver for ClientIp {
    fn resolve(&self, parts: &Parts) -> Resolution {
        match peer(parts) {
            Ok(peer) => Resolution::Key(self.prefixes.peer_key(self.client(peer, &parts.headers))),
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
    fn a_forged_header_from_an_untrusted_peer_is_ignored() {
        for (name, line) in [("x-forwarded-for", FORGED), ("forwarded", "for=192.0.2.66")] {
            let lines = [(name, line.as_bytes())];
            assert_eq!(resolve(client_ip(), CLIENT, &lines), key(CLIENT));
            assert_eq!(resolve(client_ip().forwarded(), CLIENT, &lines), key(CLIENT));
            let nobody = ClientIp::new(Vec::<String>::new()).unwrap();
            assert_eq!(resolve(nobody, CLIENT, &lines), key(CLIENT));
        }
    }

    #[test]
    fn a_client_in_the_network_of_the_peers_cannot_claim_another_address() {
        let resolve = |resolver: ClientIp, peer: &str, line: &str| {
            let resolver = resolver.peers(["10.0.0.0/8"]).unwrap();
            self::resolve(resolver, peer, &[("x-forwarded-for", line.as_bytes())])
        };
        let behind = |proxies: &[&str]| ClientIp::new(proxies).unwrap();
        assert_eq!(resolve(behind(&[]), "10.0.0.1", "192.0.2.66, 10.1.2.3"), key("10.1.2.3"));
        let line = "192.0.2.66, 10.1.2.3, 198.51.100.9";
        assert_eq!(resolve(behind(&["198.51.100.9"]), "10.0.0.1", line), key("10.1.2.3"));
        assert_eq!(resolve(behind(&[]), "10.0.0.1", line), key("198.51.100.9"));
        // A proxy that is no peer cannot connect, whether entries are skipped or counted.
        assert_eq!(resolve(behind(&["198.51.100.9"]), "198.51.100.9", FORGED), key("198.51.100.9"));
        let hops = || ClientIp::hops(1).unwrap();
        assert_eq!(resolve(hops(), CLIENT, FORGED), key(CLIENT));
        assert_eq!(resolve(hops(), "10.0.0.1", "192.0.2.66, 10.1.2.3"), key("10.1.2.3"));
    }

    #[test]
    fn the_header_that_was_not_selected_is_ignored() {
        let lines: [(_, &[u8]); 2] =
            [("x-forwarded-for", b"203.0.113.7"), ("forwarded", b"for=192.0.2.66")];
        assert_eq!(resolve(client_ip(), "10.0.0.1", &lines), key(CLIENT));
        let lines: [(_, &[u8]); 2] =
            [("x-forwarded-for", b"192.0.2.66"), ("forwarded", b"for=203.0.113.7")];
        assert_eq!(resolve(client_ip().forwarded(), "10.0.0.1", &lines), key(CLIENT));
        assert_eq!(resolve(client_ip().forwarded(), "10.0.0.1", &lines[..1]), key("10.0.0.1"));
    }

    #[test]
    fn the_rightmost_untrusted_entry_is_the_client() {
        assert_eq!(from_proxy(&["192.0.2.66, 203.0.113.7"]), key(CLIENT));
        assert_eq!(from_proxy(&["192.0.2.66, 203.0.113.7, 10.9.9.9,2001:db8:ff::1"]), key(CLIENT));
        assert_eq!(from_proxy(&["192.0.2.66", "203.0.113.7", "10.9.9.9"]), key(CLIENT));
        assert_eq!(from_proxy(&["10.3.3.3, 10.2.2.2"]), key("10.3.3.3"));
        assert_eq!(from_proxy(&[]), key("10.0.0.1"));
    }

    #[test]
    fn nothing_left_of_an_entry_without_an_address_is_used() {
        for entry in
            ["unknown", "_hidden", "", "203.0.113", "203.0.113.7x", "[::1", "unix:", "\u{e9}"]
        {
            let line = format!("192.0.2.66, {entry}, 10.2.2.2");
            assert_eq!(from_proxy(&[&line]), key("10.2.2.2"), "{entry}");
            assert_eq!(from_proxy(&[FORGED, entry]), key("10.0.0.1"), "{entry}");
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
    fn a_header_of_a_megabyte_costs_a_few_entries() {
        for (header, expected) in [
            ("10.2.2.2,".repeat(120_000) + CLIENT, CLIENT),
            ("x".repeat(1 << 20) + ",203.0.113.7", CLIENT),
            ("203.0.113.7,".repeat(90_000) + &"10.2.2.2,".repeat(31) + "10.3.3.3", "10.2.2.2"),
            ("203.0.113.7".to_owned() + &" ".repeat(1 << 20) + ",10.2.2.2", "10.2.2.2"),
        ] {
            assert_eq!(from_proxy(&[&header]), key(expected));
        }
    }

    #[test]
    fn a_single_address_header_is_used_only_from_a_trusted_peer_and_only_once() {
        let real_ip = || client_ip().x_real_ip();
        let forged: [(_, &[u8]); 1] = [("x-real-ip", b"192.0.2.66")];
        assert_eq!(resolve(real_ip(), CLIENT, &forged), key(CLIENT));
        let set: [(_, &[u8]); 2] =
            [("x-real-ip", b"203.0.113.7"), ("x-forwarded-for", b"192.0.2.66")];
        assert_eq!(resolve(real_ip(), "10.0.0.1", &set), key(CLIENT));
        assert_eq!(
            resolve(client_ip().header(HeaderName::from_static("x-real-ip")), "10.0.0.1", &set),
            key(CLIENT)
        );
        for values in [
            &[&b"203.0.113.7"[..], b"192.0.2.66"][..],
            &[b"192.0.2.66, 203.0.113.7"],
            &[b"unknown"],
            &[],
        ] {
            let lines: Vec<_> = values.iter().map(|value| ("x-real-ip", *value)).collect();
            assert_eq!(resolve(real_ip(), "10.0.0.1", &lines), key("10.0.0.1"), "{values:?}");
        }
    }

    #[test]
    fn an_ipv6_client_of_cloudfront_has_a_key_of_its_own() {
        let header = HeaderName::from_static("cloudfront-viewer-address");
        for (value, expected) in [
            ("2001:db8:1:2:3:4:5:6:46532", "2001:db8:1:2::/64"),
            ("2001:db8:1:3:3:4:5:6:443", "2001:db8:1:3::/64"),
            ("203.0.113.7:46532", CLIENT),
        ] {
            let lines: [(_, &[u8]); 1] = [("cloudfront-viewer-address", value.as_bytes())];
            assert_eq!(
                resolve(client_ip().header(header.clone()), "10.0.0.1", &lines),
                key(expected)
            );
        }
    }

    #[test]
    fn a_client_behind_nat64_is_its_ipv4_address_wherever_it_is_reported() {
        let lines: [(_, &[u8]); 1] = [("x-forwarded-for", b"64:ff9b::203.0.113.7")];
        assert_eq!(resolve(client_ip(), "10.0.0.1", &lines), key(CLIENT));
        assert_eq!(resolve(client_ip(), "64:ff9b::203.0.113.7", &[]), key(CLIENT));
        // A proxy that is known by its IPv4 address, and the other way round.
        let by_either = ClientIp::new(["192.0.2.1", "64:ff9b::192.0.2.2"]).unwrap();
        for proxy in ["64:ff9b::192.0.2.1", "192.0.2.2"] {
            assert_eq!(resolve(by_either.clone(), proxy, &lines), key(CLIENT));
        }
    }

    /// Google's load balancer appends the client and itself.
    #[test]
    fn a_load_balancer_that_appends_itself_is_not_taken_for_the_client() {
        let behind = |n, line: &str| {
            let lines: [(_, &[u8]); 1] = [("x-forwarded-for", line.as_bytes())];
            resolve(ClientIp::hops(n).unwrap(), "198.51.100.9", &lines)
        };
        assert_eq!(behind(2, "203.0.113.7, 198.51.100.1"), key(CLIENT));
        assert_eq!(behind(2, "192.0.2.66, 203.0.113.7, 198.51.100.1"), key(CLIENT));
        assert_eq!(behind(2, "192.0.2.66, unknown,203.0.113.7,198.51.100.1"), key(CLIENT));
        assert_eq!(behind(1, "192.0.2.66, 203.0.113.7"), key(CLIENT));
    }

    #[test]
    fn fewer_hops_than_expected_are_the_peer_and_not_what_the_client_claims() {
        for line in ["", "192.0.2.66", "192.0.2.66, unknown", "unknown, 198.51.100.1"] {
            let lines: [(_, &[u8]); 1] = [("x-forwarded-for", line.as_bytes())];
            let two = ClientIp::hops(2).unwrap();
            assert_eq!(resolve(two, "198.51.100.9", &lines), key("198.51.100.9"), "{line}");
        }
        // The first element is malformed, so nobody knows how many there are.
        let lines: [(_, &[u8]); 2] = [("forwarded", b"for=192.0.2.66"), ("forwarded", b"for==;x")];
        for n in [1, 2] {
            let resolver = ClientIp::hops(n).unwrap().forwarded();
            assert_eq!(resolve(resolver, "198.51.100.9", &lines), key("198.51.100.9"));
        }
    }

    #[test]
    fn a_number_of_hops_that_cannot_be_counted_is_an_error() {
        for (n, advice) in [(0, "PeerIp"), (33, "at most 32")] {
            let error = ClientIp::hops(n).unwrap_err().to_string();
            assert!(error.contains(advice), "{error}");
        }
        let forwarded = vec![CLIENT; 32].join(",") + ",192.0.2.66";
        let lines: [(_, &[u8]); 1] = [("x-forwarded-for", forwarded.as_bytes())];
        assert_eq!(resolve(ClientIp::hops(32).unwrap(), "198.51.100.9", &lines), key(CLIENT));
    }

    #[test]
    fn a_unix_socket_has_a_key_and_is_trusted_only_if_configured() {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.extensions.insert(super::super::UnixSocket);
        parts.headers.insert("x-forwarded-for", HeaderValue::from_static("203.0.113.7"));
        assert_eq!(client_ip().resolve(&parts), key("unix"));
        let behind_nginx = ClientIp::new(["unix:", "10.0.0.0/8"]).unwrap();
        assert_eq!(behind_nginx.resolve(&parts), key(CLIENT));
        parts.headers.clear();
        assert_eq!(behind_nginx.resolve(&parts), key("unix"));
    }

    // Bytes that a header may have, more often those with a meaning in these headers.
    fn junk() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => prop::sample::select(b"\",;=\\[]:. \tfor0129".to_vec()),
            1 => prop::sample::select(b"10.2.2.2".to_vec()),
            1 => (0x20u8..).prop_filter("DEL", |&byte| byte != 0x7f),
        ];
        let text =
            prop::sample::select(vec!["10.2.2.2,", "for=\"10.2.2.2\",", "for=\"", ", for=\"\\\""]);
        let part = prop_oneof![
            byte.prop_map(|byte| vec![byte]),
            text.prop_map(|text| text.as_bytes().to_vec()),
        ];
        prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn no_header_panics_or_is_used_from_an_untrusted_peer(one in junk(), other in junk()) {
            for name in ["x-forwarded-for", "forwarded"] {
                let lines = [(name, &one[..]), (name, &other[..])];
                for resolver in [client_ip(), client_ip().forwarded()] {
                    prop_assert_eq!(resolve(resolver.clone(), CLIENT, &lines), key(CLIENT));
                    resolve(resolver, "10.0.0.1", &lines);
                }
            }
        }

        #[test]
        fn entries_that_the_client_sends_change_nothing(
            left in junk(), own_line in any::<bool>(), (name, entries) in prop::sample::select(vec![
                ("x-forwarded-for", "203.0.113.7"),
                ("x-forwarded-for", "203.0.113.7:80, 10.2.2.2"),
                ("forwarded", "for=203.0.113.7"),
                ("forwarded", r#"proto=https;For="203.0.113.7:80""#),
                ("forwarded", r#"for=203.0.113.7;host="a\"\\, for=192.0.2.66";by=_x, for="10.2.2.2";"#),
            ]),
        ) {
            let joined = [&left[..], b", ", entries.as_bytes()].concat();
            let lines: &[(_, &[u8])] =
                if own_line { &[(name, &left), (name, entries.as_bytes())] } else { &[(name, &joined)] };
            let resolver = if name == "forwarded" { client_ip().forwarded() } else { client_ip() };
            prop_assert_eq!(resolve(resolver, "10.0.0.1", lines), key(CLIENT));
        }
    }
}
