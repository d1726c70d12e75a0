//! The alerting rules in `docs/alerts.yaml`: they are valid, and name what exists. Those for outages, shares that start
//! too large, corrupt buckets and evictions fire when that happens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;

use fleetlimit::{FailureMode, Limiter, MemoryStore, Policy, Quota, RedisStore};
use metrics_exporter_prometheus::PrometheusHandle;
use promql_parser::label::Matchers;
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, parse_duration, walk_expr};
use serde::Deserialize;

use crate::common::{BOUND, Server, wait_until};
use crate::metrics::{recorder, value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Alert>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    #[serde(rename = "alert")]
    name: String,
    expr: String,
    #[serde(rename = "for")]
    pending: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn file(path: &str) -> String {
    fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The alerts, by the names of their groups.
fn groups() -> Vec<Group> {
    let rules: RuleFile = serde_saphyr::from_str(&file("docs/alerts.yaml")).unwrap();
    rules.groups
}

fn alerts() -> Vec<Alert> {
    groups().into_iter().flat_map(|group| group.rules).collect()
}

fn parse(alert: &Alert) -> Expr {
    parser::parse(&alert.expr).unwrap_or_else(|error| panic!("{}: {error}", alert.name))
}

type Labels = BTreeMap<String, String>;

/// A series of a scrape, with its value.
#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: Labels,
    value: f64,
}

/// Parses what an instance serves to Prometheus, which adds the label `instance`.
fn samples(instance: &str, text: &str) -> Vec<Sample> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let Expr::VectorSelector(selector) = parser::parse(series).unwrap() else {
            panic!("{line} is not a series")
        };
        let matchers = selector.matchers.matchers.into_iter();
        let mut labels: Labels = matchers.map(|label| (label.name, label.value)).collect();
        labels.insert("instance".to_owned(), instance.to_owned());
        Sample { name: selector.name.unwrap(), labels, value: value.parse().unwrap() }
    };
    lines.map(sample).collect()
}

fn scrape(prometheus: &PrometheusHandle) -> Vec<Sample> {
    samples("one", &prometheus.render())
}

fn matches(matchers: &Matchers, labels: &Labels) -> bool {
    let value = |name: &String| labels.get(name).map_or("", String::as_str);
    assert!(matchers.or_matchers.is_empty());
    matchers.matchers.iter().all(|matcher| matcher.is_match(value(&matcher.name)))
}

/// The value of an expression. A vector has one value for each set of labels.
#[derive(Clone, Debug)]
enum Evaluated {
    Scalar(f64),
    Vector(Vec<(Labels, f64)>),
}

use Evaluated::{Scalar, Vector};

/// Evaluates the part of PromQL that the rules use, for a range that begins with one scrape and ends with the other.
fn evaluate(expr: &Expr, from: &[Sample], to: &[Sample]) -> Evaluated {
    let select = |selector: &VectorSelector, scrape: &[Sample]| -> Vec<(Labels, f64)> {
        let is_selected = |sample: &&Sample| {
            Some(&sample.name) == selector.name.as_ref()
                && matches(&selector.matchers, &sample.labels)
        };
        scrape
            .iter()
            .filter(is_selected)
            .map(|sample| (sample.labels.clone(), sample.value))
            .collect()
    };
    match expr {
        Expr::NumberLiteral(number) => Scalar(number.val),
        Expr::Paren(paren) => evaluate(&paren.expr, from, to),
        Expr::VectorSelector(selector) => Vector(select(selector, to)),
        Expr::Call(call) if call.func.name == "scalar" => {
            match evaluate(&call.args.args[0], from, to) {
                Vector(values) if values.len() == 1 => Scalar(values[0].1),
                _ => Scalar(f64::NAN),
            }
        }
        Expr::Call(call) => {
            assert!(["rate", "increase"].contains(&call.func.name), "{}", call.func.name);
            let Expr::MatrixSelector(matrix) = &*call.args.args[0] else { panic!("{call}") };
            let before: BTreeMap<Labels, f64> = select(&matrix.vs, from).into_iter().collect();
            let after: Vec<(Labels, f64)> = select(&matrix.vs, to);
            // A series without an earlier sample has no rate. The length of the range cancels out.
            let rate = |(labels, after): (Labels, f64)| {
                before.get(&labels).map(|before| after - before).map(|rate| (labels, rate))
            };
            Vector(after.into_iter().filter_map(rate).collect())
        }
        Expr::Aggregate(aggregate) => {
            let Vector(values) = evaluate(&aggregate.expr, from, to) else { panic!("{expr}") };
            let by: BTreeSet<&String> = match &aggregate.modifier {
                Some(LabelModifier::Include(labels)) => labels.labels.iter().collect(),
                Some(LabelModifier::Exclude(_)) => panic!("{expr}"),
                None => BTreeSet::new(),
            };
            let combine: fn(f64, f64) -> f64 = match &*aggregate.op.to_string() {
                "sum" => |a, b| a + b,
                "max" => f64::max,
                "min" => f64::min,
                operation => panic!("{operation}"),
            };
            let mut groups: BTreeMap<Labels, f64> = BTreeMap::new();
            for (mut labels, value) in values {
                labels.retain(|name, _| by.contains(name));
                groups.entry(labels).and_modify(|sum| *sum = combine(*sum, value)).or_insert(value);
            }
            Vector(groups.into_iter().collect())
        }
        Expr::Binary(binary) => {
            let [left, right] = [&binary.lhs, &binary.rhs].map(|side| evaluate(side, from, to));
            let operator = binary.op.to_string();
            let apply = |left: f64, right: f64| match &*operator {
                "*" => Some(left * right),
                ">" => (left > right).then_some(left),
                "<" => (left < right).then_some(left),
                _ => panic!("{operator}"),
            };
            match (left, right) {
                (Vector(mut left), Vector(right)) if operator == "or" => {
                    let of_left: BTreeSet<Labels> =
                        left.iter().map(|(labels, _)| labels.clone()).collect();
                    left.extend(right.into_iter().filter(|(labels, _)| !of_left.contains(labels)));
                    Vector(left)
                }
                (Vector(left), Vector(right)) => {
                    let right: BTreeMap<Labels, f64> = right.into_iter().collect();
                    let join = |(labels, left): (Labels, f64)| {
                        let value = apply(left, *right.get(&labels)?)?;
                        Some((labels, value))
                    };
                    Vector(left.into_iter().filter_map(join).collect())
                }
                (Vector(left), Scalar(right)) => {
                    let join = |(labels, left): (Labels, f64)| Some((labels, apply(left, right)?));
                    Vector(left.into_iter().filter_map(join).collect())
                }
                (Scalar(left), Vector(right)) => {
                    let join = |(labels, right): (Labels, f64)| Some((labels, apply(left, right)?));
                    Vector(right.into_iter().filter_map(join).collect())
                }
                (Scalar(left), Scalar(right)) => Scalar(apply(left, right).unwrap()),
            }
        }
        _ => panic!("{expr} is not evaluated"),
    }
}

/// The alerts that fire, if what happens between the scrapes goes on for longer than they wait.
fn firing(from: &[Sample], to: &[Sample]) -> BTreeSet<String> {
    let fires = |alert: &Alert| match evaluate(&parse(alert), from, to) {
        Vector(values) => !values.is_empty(),
        Scalar(_) => panic!("{} always fires", alert.name),
    };
    alerts().into_iter().filter(fires).map(|alert| alert.name).collect()
}

#[track_caller]
fn assert_firing(from: &[Sample], to: &[Sample], names: &[&str]) {
    let names: BTreeSet<String> = names.iter().map(|name| format!("Fleetlimit{name}")).collect();
    assert_eq!(firing(from, to), names, "{to:#?}");
}

fn policy(quota: Quota) -> Policy {
    Policy::new("api").quota("rate", quota)
}

#[tokio::test]
async fn an_outage_fires_the_alert_of_its_failure_mode_and_no_other() {
    for (mode, alert) in [
        (FailureMode::Local, "DecidesLocally"),
        (FailureMode::Open, "NotEnforced"),
        (FailureMode::Closed, "ChecksFail"),
    ] {
        let server = Server::start().await;
        let (prometheus, _guard) = recorder();
        let store = RedisStore::open(server.url()).unwrap();
        // Long enough for a busy machine, so that no check is late.
        let limiter = Limiter::builder(store, policy(Quota::per_hour(1_000)))
            .failure_mode(mode)
            .timeout(Duration::from_secs(1))
            .build()
            .unwrap();
        assert!(limiter.check("key").await.unwrap().is_allowed());
        if mode != FailureMode::Closed {
            wait_until("the instance is the fleet", BOUND, async || {
                value(&prometheus.render(), "fleetlimit_fleet_share", &[]) == Some(1.0)
            })
            .await;
        }
        let healthy = scrape(&prometheus);
        for _ in 0..10 {
            assert!(limiter.check("key").await.unwrap().is_allowed());
        }
        let outage = scrape(&prometheus);
        assert_firing(&healthy, &outage, &[]);
        server.stop();
        wait_until("the breaker opens", BOUND, async || {
            let _ = limiter.check("key").await;
            value(&prometheus.render(), "fleetlimit_redis_breaker_open", &[]) == Some(1.0)
        })
        .await;
        assert_firing(&outage, &scrape(&prometheus), &[alert, "BreakerOpen"]);
        let failing = scrape(&prometheus);
        server.restart().await;
        wait_until("the breaker closes", BOUND, async || {
            value(&prometheus.render(), "fleetlimit_redis_breaker_open", &[]) == Some(0.0)
        })
        .await;
        let recovered = scrape(&prometheus);
        assert!(firing(&failing, &recovered).is_empty(), "{mode:?}");
    }
}

#[tokio::test]
async fn instances_that_start_in_an_outage_and_assume_no_others_fire_an_alert() {
    let mut scrapes = Vec::new();
    for instance in ["one", "other"] {
        let (prometheus, _guard) = recorder();
        // Nothing listens there.
        let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
        let limiter = Limiter::new(store, policy(Quota::per_hour(1_000))).unwrap();
        let _ = limiter.check("key").await;
        wait_until("it has tried to register", BOUND, async || {
            value(&prometheus.render(), "fleetlimit_fleet_share", &[]).is_some()
        })
        .await;
        scrapes.extend(samples(instance, &prometheus.render()));
    }
    assert!(firing(&scrapes, &scrapes).contains("FleetlimitSharesWrong"), "{scrapes:#?}");
}

#[tokio::test]
async fn corrupt_buckets_evictions_and_permits_that_stay_uncharged_fire_alerts() {
    let server = Server::start().await;
    let (prometheus, _guard) = recorder();
    let store = RedisStore::open(server.url()).unwrap().local_keys(NonZeroUsize::MIN);
    let limiter = Limiter::builder(store, policy(Quota::per_hour(1_000)));
    let limiter = limiter.timeout(Duration::from_secs(1)).build().unwrap();
    assert!(limiter.check("key").await.unwrap().is_allowed());
    let healthy = scrape(&prometheus);
    let keys: Vec<String> = server.query(&["KEYS", "*{key}*"]).await;
    server.command(&["SET", &keys[0], "garbage"]).await;
    assert!(limiter.check("key").await.unwrap().is_denied());
    assert!(firing(&healthy, &scrape(&prometheus)).contains("FleetlimitRepairs"));

    server.stop();
    for key in ["first", "second"] {
        assert!(limiter.check(key).await.unwrap().is_allowed());
    }
    assert!(firing(&healthy, &scrape(&prometheus)).contains("FleetlimitUncharged"));

    let memory = MemoryStore::with_max_keys(NonZeroUsize::MIN);
    let limiter = Limiter::new(memory, policy(Quota::per_hour(1_000))).unwrap();
    let flood = async |range: Range<u32>| {
        for key in range {
            assert!(limiter.check(key).await.unwrap().is_allowed());
        }
    };
    // The capacity is rounded up.
    flood(0..10_000).await;
    let full = scrape(&prometheus);
    flood(10_000..10_100).await;
    assert!(firing(&full, &scrape(&prometheus)).contains("FleetlimitEvictions"));
}

/// The selectors of an expression, each with the labels that its aggregation keeps.
#[derive(Default)]
struct Named {
    selectors: Vec<(VectorSelector, BTreeSet<String>)>,
    kept: BTreeSet<String>,
}

impl ExprVisitor for Named {
    type Error = ();

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, ()> {
        match expr {
            Expr::VectorSelector(selector) => {
                self.selectors.push((selector.clone(), self.kept.clone()));
            }
            Expr::MatrixSelector(matrix) => {
                self.selectors.push((matrix.vs.clone(), self.kept.clone()));
            }
            Expr::Aggregate(aggregate) => {
                let by = aggregate.modifier.iter().flat_map(|by| &by.labels().labels);
                self.kept = by.cloned().collect();
            }
            _ => {}
        }
        Ok(true)
    }
}

fn named(expr: &Expr) -> Vec<(VectorSelector, BTreeSet<String>)> {
    let mut named = Named::default();
    walk_expr(&mut named, expr).unwrap();
    assert!(!named.selectors.is_empty(), "{expr}");
    named.selectors
}

/// The metrics of the server with their labels, as its source names them.
fn server_metrics() -> BTreeMap<String, BTreeSet<String>> {
    let source = file("server/src/telemetry.rs");
    let metric = |line: &str| {
        let (name, text) = line.strip_prefix("pub(crate) const ")?.split_once(": &str = \"")?;
        let name_in_prometheus = text.split('"').next()?.replace('.', "_");
        let counted = format!("metrics::counter!({name}");
        let label = |rest: &str| Some(rest.strip_prefix(", \"")?.split('"').next()?.to_owned());
        let labels: BTreeSet<String> = source.split(&counted).skip(1).filter_map(label).collect();
        let suffix = if source.contains(&counted) { "_total" } else { "" };
        Some((format!("{name_in_prometheus}{suffix}"), labels))
    };
    source.lines().filter_map(metric).collect()
}

#[tokio::test]
async fn each_alert_names_only_metrics_labels_and_values_that_exist() {
    let server = Server::start().await;
    let (prometheus, _guard) = recorder();
    let store = RedisStore::open(server.url()).unwrap();
    let limiter = Limiter::new(store, policy(Quota::per_hour(9))).unwrap();
    let _ = limiter.check("key").await;
    let memory =
        Limiter::new(MemoryStore::with_max_keys(NonZeroUsize::MIN), Quota::per_hour(9)).unwrap();
    for key in 0..10_000u32 {
        let _ = memory.check(key).await;
    }
    wait_until("the instance has registered", BOUND, async || {
        value(&prometheus.render(), "fleetlimit_fleet_share", &[]).is_some()
    })
    .await;
    let (library, of_server) = (scrape(&prometheus), server_metrics());
    assert!(of_server.len() > 5, "{of_server:?}");
    let check = |text: &str| {
        let expr = parser::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let selectors = named(&expr);
        for (selector, kept) in &selectors {
            let metric = selector.name.as_ref().unwrap();
            let matchers = &selector.matchers.matchers;
            let names = matchers.iter().map(|matcher| &matcher.name).chain(kept);
            let mut names = names.filter(|name| *name != "le");
            if let Some(labels) = of_server.get(metric) {
                assert!(names.all(|name| labels.contains(name)), "{text}: {labels:?}");
                for matcher in matchers {
                    assert!(is_value_of_server(&matcher.value), "{text}: {}", matcher.value);
                }
                continue;
            }
            let metric = metric.replace("_bucket", "");
            let is_found = |sample: &&Sample| {
                sample.name == metric && matches(&selector.matchers, &sample.labels)
            };
            let found = library.iter().find(is_found);
            let found = found.unwrap_or_else(|| panic!("{text}: no {selector} in {library:#?}"));
            assert!(names.all(|name| found.labels.contains_key(name)), "{text}: {found:?}");
        }
        selectors[0].1.clone()
    };
    for alert in alerts() {
        let kept = check(&alert.expr);
        // A template can only name what the aggregation keeps.
        for text in alert.annotations.values() {
            for rest in text.split("$labels.").skip(1) {
                let label = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                assert!(kept.contains(label), "{}: {text}", alert.name);
            }
        }
    }
    let runbook = file("docs/runbook.md");
    let queries: Vec<&str> = runbook.split('`').filter(|code| code.contains(" by (")).collect();
    assert!(queries.len() > 2, "{queries:?}");
    queries.into_iter().for_each(|query| drop(check(query)));
}

/// Returns true if the source of the server has this value of a label.
fn is_value_of_server(value: &str) -> bool {
    let mut codes = (0..17).map(|code| format!("{:?}", tonic::Code::from(code)).to_uppercase());
    let literal = format!("\"{value}\"");
    codes.any(|code| code == value) || file("server/src/grpc/plan.rs").contains(&literal)
}

#[test]
fn each_alert_has_its_section_in_the_runbook_and_each_section_its_alert() {
    let runbook = file("docs/runbook.md");
    let sections: Vec<(&str, &str)> =
        runbook.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap()).collect();
    let alerts = alerts();
    let names: Vec<&str> = alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(sections.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    for (alert, (name, text)) in alerts.iter().zip(&sections) {
        for part in ["Symptom", "Metric", "Log", "Action"] {
            assert_eq!(text.matches(&format!("\n- **{part}**: ")).count(), 1, "{name}: {part}");
        }
        assert!(name.starts_with("Fleetlimit"), "{name}");
        let anchor = format!("docs/runbook.md#{}", name.to_lowercase());
        assert_eq!(alert.annotations["runbook"], anchor);
        assert!(alert.annotations["summary"].len() < 120, "{name}");
        let keys: Vec<&str> = alert.annotations.keys().map(|key| &**key).collect();
        assert_eq!(keys, ["runbook", "summary"], "{name}");
        assert!(["info", "warning", "critical"].contains(&&*alert.labels["severity"]), "{name}");
        if let Some(pending) = &alert.pending {
            parse_duration(pending).unwrap();
        }
    }
    let groups: Vec<String> = groups().into_iter().map(|group| group.name).collect();
    assert_eq!(groups, ["fleetlimit", "fleetlimit-server"]);
}

#[test]
fn each_event_that_the_runbook_names_is_in_the_messages() {
    let (runbook, messages) = (file("docs/runbook.md"), file("docs/messages.md"));
    let logs = runbook.split("\n- **Log**: ").skip(1);
    let logs = logs.map(|rest| rest.split("\n- **Action**: ").next().unwrap());
    let is_event = |code: &&str| {
        code.contains('_') && code.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let events: BTreeSet<&str> =
        logs.flat_map(|log| log.split('`').skip(1).step_by(2).filter(is_event)).collect();
    assert!(events.len() > 10, "{events:?}");
    for event in events {
        assert!(messages.contains(&format!("\n#### `{event}`\n")), "no {event} in messages.md");
    }
}
