//! What the process reports about itself, as Prometheus sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroUsize;
use std::process::Stdio;
use std::time::Duration;

use fleetlimit::{Costs, FailureMode, Limiter, MemoryStore, Policy, Quota, RedisStore, Source};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use promql_parser::parser::{self, Expr};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value;

use crate::common::{BOUND, Cluster, Server, wait_until};
use crate::examples::Example;
use crate::log::Log;

/// The labels of each series that a scrape has, by the names of the metrics.
type Series = BTreeMap<String, Vec<BTreeMap<String, String>>>;

async fn scrape(example: &Example) -> (Series, String) {
    let text = String::from_utf8(example.get("/metrics").await.into_body().into()).unwrap();
    let mut series = Series::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Expr::VectorSelector(selector) =
            parser::parse(line.rsplit_once(' ').unwrap().0).unwrap()
        else {
            panic!("{line} is not a series")
        };
        let matchers = selector.matchers.matchers.into_iter();
        let labels = matchers.map(|label| (label.name, label.value)).collect();
        series.entry(selector.name.unwrap()).or_default().push(labels);
    }
    (series, text)
}

/// The value of the series with these labels.
pub(crate) fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let is_series = |line: &&str| {
        let (series, _) = line.split_once('{').unwrap_or_else(|| line.split_once(' ').unwrap());
        let has = |(label, value): &(&str, &str)| line.contains(&format!("{label}=\"{value}\""));
        series == name && labels.iter().all(has)
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let values = lines
        .filter(is_series)
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
    values.reduce(|sum, value| sum + value)
}

/// The metrics that a query selects, and the labels that it names.
#[derive(Default)]
struct Names {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
}

impl ExprVisitor for Names {
    type Error = ();

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, ()> {
        match expr {
            Expr::VectorSelector(selector) => {
                self.metrics.extend(selector.name.clone());
                self.labels
                    .extend(selector.matchers.matchers.iter().map(|label| label.name.clone()));
            }
            Expr::MatrixSelector(matrix) => {
                self.metrics.extend(matrix.vs.name.clone());
                self.labels
                    .extend(matrix.vs.matchers.matchers.iter().map(|label| label.name.clone()));
            }
            Expr::Aggregate(aggregate) => {
                if let Some(parser::LabelModifier::Include(labels)) = &aggregate.modifier {
                    self.labels.extend(labels.labels.iter().cloned());
                }
            }
            _ => {}
        }
        Ok(true)
    }
}

/// All queries of the dashboard, as Grafana would send them, and the labels in their legends.
fn queries() -> Vec<(String, Vec<String>)> {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let query = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$__rate_interval", "5m").replace("$policy", ".*");
        let legend = target["legendFormat"].as_str().unwrap().split("{{").skip(1);
        let labels = legend.map(|rest| rest.split_once("}}").unwrap().0.to_owned());
        (query, labels.collect())
    };
    targets.map(query).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_query_of_the_dashboard_finds_what_the_example_serves() {
    let server = Server::start().await;
    let example =
        Example::serve_with("metrics", &[("REDIS_URL", &server.url())], Stdio::null()).await;
    for _ in 0..10 {
        example.get("/").await;
    }
    // Checks have to fail for their errors to be counted.
    server.pause();
    wait_until("the breaker opens", BOUND, async || {
        example.get("/").await;
        value(&scrape(&example).await.1, "fleetlimit_redis_breaker_open", &[]) == Some(1.0)
    })
    .await;
    server.resume();
    wait_until("the breaker closes", BOUND, async || {
        value(&scrape(&example).await.1, "fleetlimit_redis_breaker_open", &[]) == Some(0.0)
    })
    .await;

    let (series, text) = scrape(&example).await;
    let queries = queries();
    assert!(queries.len() > 10);
    for (query, legend) in queries {
        let mut names = Names::default();
        walk_expr(
            &mut names,
            &parser::parse(&query).unwrap_or_else(|error| panic!("{query}: {error}")),
        )
        .unwrap();
        assert!(!names.metrics.is_empty(), "{query}");
        for metric in &names.metrics {
            let found =
                series.get(metric).unwrap_or_else(|| panic!("{query}: no {metric} in\n{text}"));
            for label in names.labels.iter().chain(&legend) {
                assert!(
                    found.iter().any(|series| series.contains_key(label)),
                    "{query}: {metric} has no {label}"
                );
            }
        }
        // What the legend names has to be left by the aggregation.
        assert!(legend.iter().all(|label| names.labels.contains(label)), "{query}");
    }
    assert!(!text.contains("127.0.0.1\""), "a key is a label:\n{text}");

    let is_documented = |name: &&String| !name.ends_with("_bucket") && !name.ends_with("_sum");
    let served = series.iter().filter(|(name, _)| is_documented(name)).map(|(name, series)| {
        let labels = series.iter().flat_map(|labels| labels.keys().cloned());
        (name.clone(), labels.collect::<BTreeSet<_>>())
    });
    assert_eq!(served.collect::<BTreeMap<_, _>>(), documented());
}

/// The metrics in the guide, as Prometheus calls them, with their labels.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide.rs")).unwrap();
    let rows = guide.lines().filter_map(|line| line.strip_prefix("//! | "));
    let rows = rows.filter(|row| row.starts_with("`fleetlimit."));
    let row = |row: &str| {
        let cells: Vec<_> =
            row.split(" | ").map(|cell| cell.trim_matches(['`', ' ', '|'])).collect();
        let [name, kind, unit, labels, ..] = cells[..] else { panic!("{row}") };
        let name = name.replace('.', "_");
        let suffix = match (kind, unit) {
            ("counter", _) => "_total",
            ("histogram", "s") => "_seconds_count",
            ("histogram", _) => "_count",
            _ => "",
        };
        let labels = labels.split("`, `").filter(|label| label.contains('.'));
        (format!("{name}{suffix}"), labels.map(|label| label.replace('.', "_")).collect())
    };
    rows.map(row).collect()
}

/// What a limiter on this thread has measured.
pub(crate) fn recorder() -> (PrometheusHandle, impl Drop) {
    let recorder = PrometheusBuilder::new().with_recommended_naming(true).build_recorder();
    let handle = recorder.handle();
    // The guard borrows it.
    let recorder: &'static _ = Box::leak(Box::new(recorder));
    (handle, metrics::set_default_local_recorder(recorder))
}

/// Asserts that so many decisions are counted.
fn rendered(prometheus: &PrometheusHandle, sum: f64) -> String {
    let text = prometheus.render();
    assert_eq!(value(&text, "fleetlimit_decisions_total", &[]), Some(sum));
    text
}

fn decisions(text: &str, outcome: &str, source: &str) -> Option<f64> {
    let labels = [
        ("fleetlimit_policy", "api"),
        ("fleetlimit_outcome", outcome),
        ("fleetlimit_source", source),
    ];
    value(text, "fleetlimit_decisions_total", &labels)
}

#[tokio::test]
async fn decisions_are_counted_also_before_a_recorder_is_installed() {
    let policy = Policy::new("api").quota("rate", Quota::per_hour(2));
    let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
    let check = async |cost| limiter.check_cost("key", cost).await.unwrap().is_allowed();
    assert!(check(0).await);
    let (prometheus, _guard) = recorder();
    assert!(check(1).await && check(1).await && !check(1).await && !check(3).await);
    let text = rendered(&prometheus, 5.0);
    assert_eq!(decisions(&text, "allowed", "store"), Some(3.0));
    assert_eq!(decisions(&text, "denied", "store"), Some(1.0));
    assert_eq!(decisions(&text, "denied", "quota"), Some(1.0));
    assert_eq!(decisions(&text, "would_be_denied", "store"), Some(0.0));
    assert_eq!(value(&text, "fleetlimit_evictions_total", &[]), Some(0.0));
}

#[tokio::test]
async fn a_limit_in_shadow_mode_counts_what_it_would_deny() {
    let (prometheus, _guard) = recorder();
    let policy = Policy::new("api").quota("rate", Quota::per_hour(1));
    let builder = Limiter::builder(MemoryStore::new(), policy).enforce_for_percent(0.0);
    let limiter = builder.build().unwrap();
    for _ in 0..3 {
        assert!(limiter.check("key").await.unwrap().is_allowed());
    }
    let text = rendered(&prometheus, 3.0);
    assert_eq!(decisions(&text, "allowed", "store"), Some(1.0));
    assert_eq!(decisions(&text, "would_be_denied", "store"), Some(2.0));
    assert_eq!(decisions(&text, "denied", "store"), Some(0.0));
}

#[tokio::test]
async fn a_check_without_a_decision_is_counted_with_its_error() {
    let (prometheus, _guard) = recorder();
    let policy = Policy::new("api").quota("rate", Quota::per_hour(1));
    // Nothing listens there.
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let builder = Limiter::builder(store, policy).failure_mode(FailureMode::Closed);
    let limiter = builder.build().unwrap();
    assert!(limiter.check("key").await.is_err());
    let text = rendered(&prometheus, 1.0);
    assert_eq!(decisions(&text, "failed", "failure_mode"), Some(1.0));
    let labels = [("fleetlimit_policy", "api"), ("error_type", "unavailable")];
    assert_eq!(value(&text, "fleetlimit_check_failures_total", &labels), Some(1.0));
    let labels = [("fleetlimit_server", "127.0.0.1:1")];
    assert_eq!(value(&text, "fleetlimit_redis_connections", &labels), Some(0.0));
    assert!(value(&text, "fleetlimit_redis_connection_failures_total", &labels) >= Some(1.0));
}

#[tokio::test]
async fn what_is_not_charged_after_an_outage_is_counted_and_logged_once() {
    let (prometheus, _guard) = recorder();
    let (log, _log_guard) = Log::capture();
    let policy = Policy::new("api").quota("rate", Quota::per_hour(9));
    // Nothing listens there.
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let limiter = Limiter::new(store.local_keys(NonZeroUsize::MIN), policy).unwrap();
    for key in ["first", "first", "second", "third", "third"] {
        assert!(limiter.check(key).await.unwrap().is_allowed());
    }
    let text = prometheus.render();
    let labels = [("fleetlimit_policy", "api")];
    assert_eq!(value(&text, "fleetlimit_redis_uncharged_total", &labels), Some(3.0));
    let lines = log.events().into_iter().filter(|event| event.contains("will not be charged"));
    assert_eq!(lines.count(), 1, "{:#?}", log.events());
}

#[tokio::test]
async fn repairs_and_unknown_scripts_are_counted() {
    let server = Server::start().await;
    let (prometheus, _guard) = recorder();
    let policy = Policy::new("api").quota("rate", Quota::per_hour(9));
    let limiter = Limiter::builder(RedisStore::open(server.url()).unwrap(), policy);
    let limiter = limiter.cache_denials(Duration::ZERO).build().unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
    let keys: Vec<String> = server.query(&["KEYS", "*{key}*"]).await;
    let [key] = &keys[..] else { panic!("{keys:?}") };
    server.query::<()>(&["SCRIPT", "FLUSH"]).await;
    // The second is far in the future, and what remains after both never expires.
    for (repairs, set) in [
        (1.0, &["SET", key, "garbage"][..]),
        (2.0, &["SET", key, "9007199254740993008", "PX", "100000"]),
        (3.0, &["PERSIST", key]),
    ] {
        server.command(set).await;
        assert!(limiter.check("key").await.unwrap().is_denied());
        let labels = [("fleetlimit_policy", "api")];
        let text = prometheus.render();
        assert_eq!(
            value(&text, "fleetlimit_redis_repairs_total", &labels),
            Some(repairs),
            "{set:?}"
        );
    }
    assert!(limiter.check("other").await.unwrap().is_allowed());
    let text = prometheus.render();
    assert_eq!(value(&text, "fleetlimit_redis_noscript_total", &[]), Some(1.0));
    assert_eq!(value(&text, "fleetlimit_redis_connections", &[]), Some(1.0));
    let sizes = value(&text, "fleetlimit_redis_batch_size_count", &[]);
    assert!(sizes >= Some(3.0), "{text}");
    assert_eq!(sizes, value(&text, "fleetlimit_redis_queue_length_count", &[]), "{text}");
}

#[tokio::test]
async fn an_outage_is_seen_in_decisions_breakers_and_the_share_of_the_instance() {
    let server = Server::start().await;
    let (prometheus, _guard) = recorder();
    let policy = Policy::new("api").quota("rate", Quota::per_hour(2));
    let store = RedisStore::open(server.url()).unwrap();
    // So that no check of a busy machine is late.
    let limiter = Limiter::builder(store, policy).timeout(Duration::from_secs(1)).build().unwrap();
    let check = async |key: &'static str| limiter.check(key).await.unwrap();
    for source in [Source::Store, Source::Store, Source::Store, Source::Cached] {
        assert_eq!(check("key").await.source(), source);
    }
    let text = rendered(&prometheus, 4.0);
    assert_eq!(decisions(&text, "allowed", "store"), Some(2.0));
    assert_eq!(decisions(&text, "denied", "store"), Some(1.0));
    assert_eq!(decisions(&text, "denied", "cached"), Some(1.0));
    assert_eq!(value(&text, "fleetlimit_redis_breaker_openings_total", &[]), Some(0.0));
    wait_until("the instance is the fleet", BOUND, async || {
        let text = prometheus.render();
        let of_fleet = |name| value(&text, name, &[("fleetlimit_key_prefix", "fleetlimit")]);
        of_fleet("fleetlimit_fleet_instances") == Some(1.0)
            && of_fleet("fleetlimit_fleet_share") == Some(1.0)
    })
    .await;
    server.pause();
    let mut local = 0u32;
    wait_until("the breaker opens", BOUND, async || {
        local += 1;
        let decision = limiter.check(local).await.unwrap();
        assert!(decision.is_allowed() && decision.source() == Source::Local);
        value(&prometheus.render(), "fleetlimit_redis_breaker_open", &[]) == Some(1.0)
    })
    .await;
    let text = rendered(&prometheus, f64::from(4 + local));
    assert_eq!(decisions(&text, "allowed", "local"), Some(local.into()));
    let labels = [("fleetlimit_policy", "api")];
    assert!(value(&text, "fleetlimit_check_failures_total", &labels) >= Some(1.0), "{text}");
    server.resume();
    wait_until("the breaker closes", BOUND, async || {
        value(&prometheus.render(), "fleetlimit_redis_breaker_open", &[]) == Some(0.0)
    })
    .await;
    let openings = value(&prometheus.render(), "fleetlimit_redis_breaker_openings_total", &[]);
    assert_eq!(openings, Some(1.0));
}

#[tokio::test]
async fn each_permit_of_a_lease_is_counted_as_used_or_given_back() {
    let server = Server::start().await;
    let (prometheus, _guard) = recorder();
    let policy = Policy::new("api").quota("rate", Quota::per_second(1_000));
    let store = RedisStore::open(server.url()).unwrap();
    let builder = Limiter::builder(store.clone(), policy).timeout(BOUND);
    let limiter = builder.lease(Duration::from_millis(200)).build().unwrap();
    let mut leased = 0u32;
    while leased < 20 {
        leased += u32::from(limiter.check("key").await.unwrap().source() == Source::Lease);
    }
    store.shutdown().await;
    let permits = |event| {
        let labels = [("fleetlimit_policy", "api"), ("fleetlimit_lease_event", event)];
        value(&prometheus.render(), "fleetlimit_lease_permits_total", &labels).unwrap()
    };
    wait_until("all leases have ended", BOUND, async || {
        permits("leased") == permits("used") + permits("returned")
    })
    .await;
    assert_eq!((permits("used"), permits("lost")), (leased.into(), 0.0));
    assert!(permits("returned") > 0.0);
    assert_eq!(decisions(&prometheus.render(), "allowed", "lease"), Some(leased.into()));
}

#[tokio::test]
async fn permits_that_are_held_are_counted_until_they_are_given_back() {
    let (prometheus, _guard) = recorder();
    let policy = Policy::new("api").quota("held", Quota::concurrent(9));
    let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
    let held = || {
        let labels = [("fleetlimit_policy", "api")];
        value(&prometheus.render(), "fleetlimit_permits_held", &labels).unwrap()
    };
    let costs = |permits| Costs::new(1).with("held", permits);
    let one = limiter.hold("a", 1).await.unwrap();
    let two = limiter.hold("b", costs(2)).await.unwrap();
    two.extend(costs(3)).await.unwrap().ensure_allowed().unwrap();
    assert_eq!(held(), 6.0);
    drop(one);
    assert_eq!(held(), 5.0);
    two.release();
    drop(two);
    assert_eq!(held(), 0.0);
}

#[tokio::test]
async fn evicted_buckets_are_counted() {
    let (prometheus, _guard) = recorder();
    let store = MemoryStore::with_max_keys(100.try_into().unwrap());
    let limiter = Limiter::new(store, Quota::per_hour(2)).unwrap();
    for key in 0..10_000u32 {
        assert!(limiter.check(key).await.unwrap().is_allowed());
    }
    let text = rendered(&prometheus, 10_000.0);
    let evicted = value(&text, "fleetlimit_evictions_total", &[]).unwrap();
    // The capacity is rounded up.
    assert!((9_000.0..10_000.0).contains(&evicted), "{evicted}");
}

#[tokio::test]
async fn redirections_are_counted() {
    let cluster = Cluster::start().await;
    let (prometheus, _guard) = recorder();
    let store = RedisStore::open_cluster(cluster.urls()).unwrap();
    let limiter = Limiter::builder(store, Quota::per_hour(2)).timeout(BOUND).build().unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
    let count = || value(&prometheus.render(), "fleetlimit_redis_redirections_total", &[]);
    let before = count().unwrap();
    let slot = cluster.slot_of("{key}").await;
    let from = cluster.slot_owner(slot).await;
    cluster.migrate_slot(slot, from, (from + 1) % 3).await;
    assert!(limiter.check("key").await.unwrap().is_allowed());
    assert_eq!(count(), Some(before + 1.0));
}
