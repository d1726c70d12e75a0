//! Proxies that do not report their clients, who then share a bucket.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use super::forwarding_header::ForwardingHeader;
use crate::log_throttle::LogThrottle;

/// The least time between two lines about a cause. Health checks go on forever.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

/// Logs at intervals, for each cause, that trusted proxies did not report the address of a client.
#[derive(Clone, Debug)]
pub(super) struct ProxyLog(Arc<Causes>);

#[derive(Debug)]
struct Causes {
    absent: LogThrottle,
    other: LogThrottle,
    unusable: LogThrottle,
}

const MESSAGE: &str = "a proxy does not report its clients, so all of them share a rate limit key";

impl Default for ProxyLog {
    fn default() -> Self {
        let [absent, other, unusable] = [const { LogThrottle::new(LOG_INTERVAL) }; 3];
        Self(Arc::new(Causes { absent, other, unusable }))
    }
}

impl ProxyLog {
    pub(super) fn report(
        &self,
        proxy: impl Display,
        header: &ForwardingHeader,
        headers: &HeaderMap,
    ) {
        let Causes { absent, other, unusable } = &*self.0;
        let (name, now) = (header.name().as_str(), Instant::now().into_std());
        if headers.contains_key(name) {
            if let Some(count) = unusable.occurred(now) {
                let advice = "the header has no address where the proxy should have added one: check \
                              what the proxy sends";
                tracing::warn!(
                    target: "fleetlimit", event = "client_address_missing", %proxy, header = name, count,
                    advice, "{MESSAGE}"
                );
            }
        } else if let Some(found) = header.others().find(|other| headers.contains_key(*other)) {
            if let Some(count) = other.occurred(now) {
                let other = found.as_str();
                let advice = "the request has another header: choose that one if the proxy overwrites \
                              what its clients send, or have the proxy send this one";
                tracing::warn!(
                    target: "fleetlimit", event = "client_address_missing", %proxy, header = name, other,
                    count, advice, "{MESSAGE}"
                );
            }
        } else if let Some(count) = absent.occurred(now) {
            let advice = "the requests have no such header: that is normal for health checks, but not \
                          for requests of clients";
            tracing::info!(
                target: "fleetlimit", event = "client_address_missing", %proxy, header = name, count,
                advice, "{MESSAGE}"
            );
        }
    }
}
