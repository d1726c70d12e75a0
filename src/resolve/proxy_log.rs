//! Proxies that do not report their clients, who then share a bucket.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;

use super::forwarding::ForwardingHeader;

/// Logs once for each cause that a trusted proxy did not report the address of a client.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxyLog(Arc<Logged>);

#[derive(Debug, Default)]
struct Logged {
    absent: AtomicBool,
    other: AtomicBool,
    unusable: AtomicBool,
}

const MESSAGE: &str =
    "a proxy does not report its client, so all of its clients share a rate limit key";

impl ProxyLog {
    pub(super) fn report(
        &self,
        proxy: impl Display,
        header: &ForwardingHeader,
        headers: &HeaderMap,
    ) {
        let (name, logged) = (header.name().as_str(), &self.0);
        if headers.contains_key(name) {
            if is_first(&logged.unusable) {
                let advice = "the header has no address where the proxy should have added one: check \
                              what the proxy sends";
                tracing::warn!(target: "fleetlimit", %proxy, header = name, advice, "{MESSAGE}");
            }
        } else if let Some(other) = header.others().find(|other| headers.contains_key(*other)) {
            if is_first(&logged.other) {
                let other = other.as_str();
                let advice = "the request has another header: choose that one if the proxy overwrites \
                              what its clients send, or have the proxy send this one";
                tracing::warn!(target: "fleetlimit", %proxy, header = name, other, advice, "{MESSAGE}");
            }
        } else if is_first(&logged.absent) {
            let advice = "the request has no such header: that is normal for health checks, but not \
                          for requests of clients";
            tracing::info!(target: "fleetlimit", %proxy, header = name, advice, "{MESSAGE}");
        }
    }
}

fn is_first(logged: &AtomicBool) -> bool {
    !logged.load(Ordering::Relaxed) && !logged.swap(true, Ordering::Relaxed)
}
