//! `grpc.health.v1.Health`, which says the same as `/readyz`.

use std::convert::Infallible;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use tokio::time::sleep;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admin::Readiness;

/// The interval of updates. In most failure modes an update takes no call to the store.
const INTERVAL: Duration = Duration::from_secs(1);

/// The process as a whole, the service that gateways use, and the name that it has in envoyproxy/ratelimit.
const SERVICES: [&str; 3] = ["", SERVICE_NAME, "ratelimit"];

/// The status that health checks get.
pub(crate) struct Health {
    reporter: HealthReporter,
    status: ServingStatus,
}

impl Health {
    /// Creates the status of a process that does not serve until the first update.
    pub(super) async fn new(reporter: HealthReporter) -> Self {
        let mut this = Self { reporter, status: ServingStatus::Unknown };
        this.set(ServingStatus::NotServing).await;
        this
    }

    pub(crate) async fn update(&mut self, readiness: &Readiness) {
        readiness.update().await;
        let is_ready = readiness.is_ready();
        self.set(if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
    }

    pub(crate) async fn follow(&mut self, readiness: &Readiness) -> Infallible {
        loop {
            self.update(readiness).await;
            sleep(INTERVAL).await;
        }
    }

    pub(crate) async fn set_not_serving(&mut self) {
        self.set(ServingStatus::NotServing).await;
    }

    /// Ends the streams of `Watch`, which would otherwise last as long as their connections.
    pub(crate) async fn end_watches(&mut self) {
        for service in SERVICES {
            self.reporter.clear_service_status(service).await;
        }
    }

    /// Sets the status, if it has changed: each change is sent to watchers.
    async fn set(&mut self, status: ServingStatus) {
        if self.status == status {
            return;
        }
        // Until all services have the status: this can be cancelled before.
        self.status = ServingStatus::Unknown;
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
        self.status = status;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::task::{consume_budget, yield_now};
    use tonic::Request;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_server::Health as _;
    use tonic_health::server::HealthService;

    use super::*;

    #[tokio::test]
    async fn an_update_that_is_cancelled_halfway_leaves_no_service_serving_after_the_end() {
        // Tokio suspends a task that has used up its budget, so each round cancels at another point.
        for used in 0..256 {
            let reporter = HealthReporter::new();
            let mut health = Health::new(reporter.clone()).await;
            yield_now().await;
            for _ in 0..used {
                consume_budget().now_or_never();
            }
            let _ = health.set(ServingStatus::Serving).now_or_never();
            yield_now().await;
            health.set_not_serving().await;
            let service = HealthService::from_health_reporter(reporter);
            for name in SERVICES {
                let request = HealthCheckRequest { service: name.to_owned() };
                let response = service.check(Request::new(request)).await.unwrap();
                let status = response.get_ref().status;
                assert_eq!(status, ServingStatus::NotServing as i32, "{name:?} after {used}");
            }
        }
    }
}
