//! `/metrics`, for Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::live::Live;

#[derive(Clone)]
pub(crate) struct Metrics {
    live: Arc<Live>,
    prometheus: PrometheusHandle,
}

impl Metrics {
    pub(crate) fn new(live: Arc<Live>, prometheus: PrometheusHandle) -> Self {
        Self { live, prometheus }
    }

    pub(crate) fn router(&self, path: &str) -> Router {
        let metrics = self.clone();
        Router::new().route(path, get(async move || metrics.render()))
    }

    fn render(&self) -> String {
        self.live.in_flight.refresh();
        self.prometheus.render() + &self.live.details.render()
    }
}
