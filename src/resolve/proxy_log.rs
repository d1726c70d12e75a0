//! Proxies that do not report their clients, who then share a bucket.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use super::forwarding::ForwardingHeader;

/// The least time between two lines about a cause. Health checks go on forever.
const INTERVAL: Duration = Duration::from_secs(600);

/// Logs at intervals, for each cause, that trusted proxies did not report the address of a client.
#[derive(Clone, Debug)]
pub(super) struct ProxyLog(Arc<Causes>);

#[derive(Debug)]
struct Causes {
    start: Instant,
    absent: Unreported,
    other: Unreported,
    unusable: Unreported,
}

/// The requests without the address of a client, of one cause.
#[derive(Debug, Default)]
struct Unreported {
    /// Since the last line.
    count: AtomicU64,
    /// The time of the next line, in microseconds since the start.
    next_line: AtomicU64,
}

const MESSAGE: &str = "a proxy does not report its clients, so all of them share a rate limit key";

impl Default for ProxyLog {
    fn default() -> Self {
        let [absent, other, unusable] = Default::default();
        Self(Arc::new(Causes { start: Instant::now(), absent, other, unusable }))
    }
}

impl ProxyLog {
    pub(super) fn report(
        &self,
        proxy: impl Display,
        header: &ForwardingHeader,
        headers: &HeaderMap,
    ) {
        let Causes { start, absent, other, unusable } = &*self.0;
        let (name, since_start) = (header.name().as_str(), start.elapsed());
        if headers.contains_key(name) {
            if let Some(count) = unusable.add(since_start) {
                let advice = "the header has no address where the proxy should have added one: check \
                              what the proxy sends";
                tracing::warn!(target: "fleetlimit", %proxy, header = name, count, advice, "{MESSAGE}");
            }
        } else if let Some(found) = header.others().find(|other| headers.contains_key(*other)) {
            if let Some(count) = other.add(since_start) {
                let other = found.as_str();
                let advice = "the request has another header: choose that one if the proxy overwrites \
                              what its clients send, or have the proxy send this one";
                tracing::warn!(target: "fleetlimit", %proxy, header = name, other, count, advice, "{MESSAGE}");
            }
        } else if let Some(count) = absent.add(since_start) {
            let advice = "the requests have no such header: that is normal for health checks, but not \
                          for requests of clients";
            tracing::info!(target: "fleetlimit", %proxy, header = name, count, advice, "{MESSAGE}");
        }
    }
}

impl Unreported {
    /// Adds a request. Returns how many there were since the last line, if it is time for another.
    fn add(&self, since_start: Duration) -> Option<u64> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let (now, interval) = (since_start.as_micros() as u64, INTERVAL.as_micros() as u64);
        let is_due = |next_line| (next_line <= now).then_some(now + interval);
        let due = self.next_line.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_due);
        due.is_ok().then(|| self.count.swap(0, Ordering::Relaxed))
    }
}
