//! A client writes the start of a forwarding header, and the proxy appends the client's address: whatever the client
//! has written, that address is the key. From any other peer, the header is ignored.

#![no_main]

use std::net::SocketAddr;

use arbitrary::Arbitrary;
use fleetlimit::resolve::ClientIp;
use fleetlimit::{KeyResolver, Resolution};
use http::{HeaderName, HeaderValue, Request};
use libfuzzer_sys::fuzz_target;

const PROXY: &str = "10.0.8.1:4711";
const CLIENT: &str = "203.0.113.7";

#[derive(Arbitrary, Debug)]
struct Headers<'a> {
    is_rfc7239: bool,
    lines: Vec<&'a [u8]>,
    /// True if the proxy appends to the last line, and false if it adds a line.
    is_appended: bool,
}

fuzz_target!(|headers: Headers<'_>| {
    let client_ip = ClientIp::new(["10.0.8.0/28"]).expect("the range is valid");
    let (client_ip, name, entry) = match headers.is_rfc7239 {
        true => (client_ip.forwarded(), "forwarded", format!("for={CLIENT}")),
        false => (client_ip, "x-forwarded-for", CLIENT.to_owned()),
    };
    let mut lines: Vec<Vec<u8>> = headers.lines.iter().map(|line| line.to_vec()).collect();
    match lines.last_mut().filter(|_| headers.is_appended) {
        Some(last) => last.extend([b", ", entry.as_bytes()].concat()),
        None => lines.push(entry.into_bytes()),
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    for line in lines {
        // A server rejects a request with other bytes.
        let Ok(line) = HeaderValue::from_bytes(&line) else { return };
        parts.headers.append(HeaderName::from_static(name), line);
    }
    for (peer, key) in [(PROXY, CLIENT), ("198.51.100.9:4711", "198.51.100.9")] {
        parts.extensions.insert(peer.parse::<SocketAddr>().expect("the address is valid"));
        assert_eq!(client_ip.resolve(&parts), Resolution::from(key), "{:?}", parts.headers);
    }
});
