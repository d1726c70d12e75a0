//! Limits by descriptors over gRPC. The cases are those of envoyproxy/ratelimit's own tests and
//! examples.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{self, Struct, UInt64Value};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tonic::Code as GrpcCode;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::common::{Server, descriptor, request};

fn code(response: &RateLimitResponse) -> Code {
    response.overall_code()
}

/// The permits and the unit that apply to the only descriptor.
fn limit(response: &RateLimitResponse) -> Option<(u32, Unit)> {
    let [status] = response.statuses.as_slice() else { panic!("{response:?}") };
    status.current_limit.as_ref().map(|limit| (limit.requests_per_unit, limit.unit()))
}

const BASIC: &str = "
domain: test-domain
descriptors:
  - key: key1
    value: value1
    descriptors:
      - { key: subkey1, rate_limit: { unit: second, requests_per_unit: 5 } }
      - { key: subkey1, value: subvalue1, rate_limit: { unit: SECOND, requests_per_unit: 10 } }
  - { key: key2, rate_limit: { unit: minute, requests_per_unit: 20 } }
  - { key: key2, value: value2, rate_limit: { unit: minute, requests_per_unit: 30 } }
  - { key: key2, value: value3 }
  - { key: key3, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: key4, rate_limit: { unit: year, requests_per_unit: 1, name: key4_rate_limit } }
  - key: key5
    value: value5
    rate_limit: { unit: year, requests_per_unit: 15 }
    descriptors:
      - { key: subkey5, value: subvalue5, rate_limit: { unit: week, requests_per_unit: 25 } }
  - { key: key6, rate_limit: { unlimited: true } }
  - { key: key7, value: 7, rate_limit: { unit: month, requests_per_unit: 70 } }
  - { key: key8, value: true, rate_limit: { unit: year, requests_per_unit: 80 } }
";

#[tokio::test]
async fn the_limit_of_a_descriptor_is_that_of_its_whole_path() {
    let server = Server::with_domain(BASIC, "");
    let mut client = server.client().await;
    for (entries, expected) in [
        (&[("key1", "something")][..], None),
        (&[("key1", "value1")], None),
        (&[("key2", "value2"), ("subkey", "subvalue")], None),
        (&[("key5", "value5"), ("subkey5", "subvalue")], None),
        (&[("key1", "value1"), ("subkey1", "something")], Some((5, Unit::Second))),
        (&[("key1", "value1"), ("subkey1", "subvalue1")], Some((10, Unit::Second))),
        (&[("key2", "something")], Some((20, Unit::Minute))),
        (&[("key2", "value2")], Some((30, Unit::Minute))),
        (&[("key2", "value3")], None),
        (&[("key3", "foo")], Some((1, Unit::Hour))),
        (&[("key4", "foo")], Some((1, Unit::Year))),
        (&[("key5", "value5")], Some((15, Unit::Year))),
        (&[("key5", "value5"), ("subkey5", "subvalue5")], Some((25, Unit::Week))),
        (&[("key6", "foo")], None),
        (&[("key7", "7")], Some((70, Unit::Month))),
        (&[("key8", "true")], Some((80, Unit::Year))),
        (&[], None),
    ] {
        let response = client.ask("test-domain", entries).await;
        assert_eq!((code(&response), limit(&response)), (Code::Ok, expected), "{entries:?}");
    }
    let named = client.ask("test-domain", &[("key4", "bar")]).await;
    assert_eq!(named.statuses[0].current_limit.as_ref().unwrap().name, "key4_rate_limit");
    let unlimited = client.ask("test-domain", &[("key6", "foo")]).await;
    assert_eq!(unlimited.statuses[0].limit_remaining, u32::MAX);
    let unknown = client.ask("other-domain", &[("key2", "value2")]).await;
    assert_eq!((code(&unknown), limit(&unknown)), (Code::Ok, None));
}

#[tokio::test]
async fn permits_are_counted_by_value_and_no_more_are_admitted_than_the_limit() {
    let server = Server::with_domain(BASIC, "");
    let client = server.client().await;
    let checks = (0..100).map(|_| {
        let mut client = client.clone();
        async move { client.ask("test-domain", &[("key2", "value2")]).await }
    });
    let responses = join_all(checks).await;
    let allowed = responses.iter().filter(|response| code(response) == Code::Ok).count();
    let denied = responses.iter().find(|response| code(response) == Code::OverLimit).unwrap();
    assert_eq!(denied.statuses[0].limit_remaining, 0);
    let reset = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((1..=60).contains(&reset), "{reset}");
    // A minute may end in between.
    assert!((30..=60).contains(&allowed), "{allowed}");

    let mut client = client;
    let other = client.ask("test-domain", &[("key2", "another")]).await;
    assert_eq!((code(&other), other.statuses[0].limit_remaining), (Code::Ok, 19));
}

#[tokio::test]
async fn wildcards_match_values_and_can_share_a_limit() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - { key: wild, value: foo*, rate_limit: { unit: year, requests_per_unit: 20 } }
  - { key: plain, value: foo, rate_limit: { unit: year, requests_per_unit: 20 } }
  - { key: middle, value: bar*b, rate_limit: { unit: year, requests_per_unit: 20 } }
  - { key: many, value: foo*bar*baz, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: file, value: test1, rate_limit: { unit: year, requests_per_unit: 50 } }
  - key: file
    value: test*
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 100 }
  - key: tenant
    value: t*prod
    share_threshold: true
    descriptors:
      - { key: resource, rate_limit: { unit: year, requests_per_unit: 60 } }
",
        "",
    );
    let mut client = server.client().await;
    for (key, value, expected) in [
        ("wild", "foo1", Some(20)),
        ("wild", "bar", None),
        ("plain", "foo1", None),
        ("middle", "barb", Some(20)),
        ("middle", "bara", None),
        ("middle", "xbarb", None),
        ("many", "foo123bar456baz", Some(10)),
        ("many", "foobarbaz", Some(10)),
        ("many", "foo123baz", None),
        ("file", "test1", Some(50)),
        ("file", "test2", Some(100)),
    ] {
        let response = client.ask("d", &[(key, value)]).await;
        let permits = limit(&response).map(|(permits, _)| permits);
        assert_eq!(permits, expected, "{key}={value}");
    }
    let mut remaining =
        async |entries: &[(&str, &str)]| client.ask("d", entries).await.statuses[0].limit_remaining;
    assert_eq!(remaining(&[("wild", "foo1")]).await, 18, "each value has its own limit");
    assert_eq!(remaining(&[("wild", "foo2")]).await, 19);
    assert_eq!(remaining(&[("file", "test2")]).await, 98);
    assert_eq!(remaining(&[("file", "test345")]).await, 97, "the values share one");
    assert_eq!(remaining(&[("tenant", "t1prod"), ("resource", "a")]).await, 59);
    assert_eq!(remaining(&[("tenant", "t2prod"), ("resource", "a")]).await, 58);
    assert_eq!(remaining(&[("tenant", "t2prod"), ("resource", "b")]).await, 59);
}

#[tokio::test]
async fn a_request_can_cost_several_hits_or_none_or_give_them_back() {
    let server = Server::with_domain(
        "domain: d\nnegative_hits: true\n\
         descriptors: [{ key: k, rate_limit: { unit: year, requests_per_unit: 20 } }]",
        "",
    );
    let mut client = server.client().await;
    let mut hits = async |all: u32, own: Option<u64>, gives_back: bool| {
        let mut request = request("d", &[&[("k", "hits")]]);
        request.hits_addend = all;
        request.descriptors[0].hits_addend = own.map(|value| UInt64Value { value });
        request.descriptors[0].is_negative_hits = gives_back;
        let response = client.send(request).await.unwrap();
        (code(&response), response.statuses[0].limit_remaining)
    };
    assert_eq!(hits(5, None, false).await, (Code::Ok, 15));
    assert_eq!(hits(5, Some(2), false).await, (Code::Ok, 13), "a descriptor's own number counts");
    assert_eq!(hits(0, None, false).await, (Code::Ok, 12), "0 for all stands for 1");
    assert_eq!(hits(5, Some(0), false).await, (Code::Ok, 12), "0 only asks");
    assert_eq!(hits(13, None, false).await, (Code::OverLimit, 0), "all or none");
    assert_eq!(hits(0, Some(0), false).await, (Code::Ok, 12));
    assert_eq!(hits(1, Some(4), true).await, (Code::Ok, 16));
}

#[tokio::test]
async fn a_limit_in_the_request_applies_instead_of_the_configured_one() {
    let server = Server::with_domain(BASIC, "");
    let mut client = server.client().await;
    let mut ask = async |domain: &str, permits: u32, unit: i32| {
        let mut request = request(domain, &[&[("key2", "value2")]]);
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: permits, unit });
        client.send(request).await
    };
    let year = Unit::Year as i32;
    let response = ask("test-domain", 2, year).await.unwrap();
    assert_eq!(limit(&response), Some((2, Unit::Year)));
    assert_eq!(response.statuses[0].limit_remaining, 1);
    // What was used stays when the limit changes.
    assert_eq!(ask("test-domain", 3, year).await.unwrap().statuses[0].limit_remaining, 1);
    assert_eq!(code(&ask("test-domain", 1, year).await.unwrap()), Code::OverLimit);
    // Another unit is another limit.
    let hour = Unit::Hour as i32;
    assert_eq!(ask("test-domain", 9, hour).await.unwrap().statuses[0].limit_remaining, 8);
    assert_eq!(code(&ask("test-domain", 0, year).await.unwrap()), Code::OverLimit);
    assert_eq!(limit(&ask("other", 2, year).await.unwrap()), None, "the domain is unknown");
    for unit in [0, 99] {
        let status = ask("test-domain", 2, unit).await.unwrap_err();
        assert_eq!(status.code(), GrpcCode::InvalidArgument);
    }
}

#[tokio::test]
async fn descriptors_of_a_request_are_decided_on_their_own() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - { key: one, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: ten, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: a, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: b, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
",
        "",
    );
    let mut client = server.client().await;
    let mut ask = async |keys: &[&str]| {
        let entries: Vec<_> = keys.iter().map(|key| vec![(*key, "x")]).collect();
        let entries: Vec<&[_]> = entries.iter().map(Vec::as_slice).collect();
        let response = client.send(request("d", &entries)).await.unwrap();
        let codes: Vec<_> = response.statuses.iter().map(|status| status.code()).collect();
        (code(&response), codes, response)
    };
    use Code::{Ok, OverLimit};
    assert_eq!(ask(&["one", "ten", "unknown"]).await.1, [Ok, Ok, Ok]);
    let (all, codes, response) = ask(&["one", "ten", "unknown"]).await;
    assert_eq!((all, codes), (OverLimit, vec![OverLimit, Ok, Ok]));
    assert_eq!(response.statuses[1].limit_remaining, 8, "the allowed one is counted, too");
    assert_eq!(response.statuses.len(), 3);
    assert!(response.statuses[2].current_limit.is_none());
    assert_eq!(ask(&["none"]).await.0, OverLimit);

    assert_eq!(ask(&["shadow"]).await.0, Ok);
    let (all, _, response) = ask(&["shadow"]).await;
    assert_eq!((all, response.statuses[0].limit_remaining), (Ok, 0));

    // Quotas deny only together.
    assert_eq!(ask(&["a", "b"]).await.0, Ok);
    assert_eq!(ask(&["a", "b"]).await.1, [OverLimit, Ok]);
    assert_eq!(ask(&["a", "b"]).await.0, OverLimit);
}

/// Others may be over their limits for much longer.
#[tokio::test]
async fn the_wait_is_that_until_the_whole_request_can_be_allowed() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - { key: hour, policy: hour }
  - { key: day, policy: day }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: quota_hour, quota_mode: true, policy: hour }
  - { key: quota_day, quota_mode: true, policy: day }
  - { key: quota_many, quota_mode: true, policy: many }
  - { key: quota_none, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
",
        "policies: { hour: { q: 1/h }, day: { q: 1/day }, many: { q: 1000/day } }",
    );
    let mut client = server.client().await;
    let (hour, day) = (Some(3_600), Some(86_400));
    for (keys, expected) in [
        (&["hour"][..], hour),
        (&["hour", "day"], day),
        (&["hour", "none"], None),
        // Of the quotas, one is enough.
        (&["quota_hour", "quota_day"], hour),
        (&["quota_hour", "quota_none"], hour),
        (&["quota_none"], None),
        (&["hour", "quota_day", "quota_many"], hour),
        (&["hour", "quota_day"], day),
    ] {
        // Each case has its own keys.
        let value = keys.join(" ");
        let entries: Vec<_> = keys.iter().map(|key| vec![(*key, &*value)]).collect();
        let entries: Vec<&[_]> = entries.iter().map(Vec::as_slice).collect();
        client.send(request("d", &entries)).await.unwrap();
        let denied = client.send(request("d", &entries)).await.unwrap();
        assert_eq!(code(&denied), Code::OverLimit, "{keys:?}");
        let mut headers = denied.response_headers_to_add.iter();
        let wait = headers.find(|header| header.key == "retry-after");
        let wait = wait.map(|header| header.value.parse::<u64>().unwrap());
        // A test does not take a minute.
        let is_expected = match (wait, expected) {
            (Some(wait), Some(expected)) => (expected - 60..=expected).contains(&wait),
            (wait, expected) => wait == expected,
        };
        assert!(is_expected, "{keys:?}: {wait:?}");
    }
}

#[tokio::test]
async fn each_kind_of_quota_can_be_used_by_the_name_of_its_policy() {
    let settings = "
policies:
  bucket: { q: 2/day }
  interval: { q: 2/day interval }
  queue: { q: 2/day burst 2 queue 1h }
  fixed: { q: 2/day fixed }
  calendar: { q: 2/month calendar Europe/Berlin }
  approximate: { q: 2/day sliding approximate }
  sliding: { q: 2/day sliding 12 }
  several: { a: 2/day, b: 9/s }
";
    let kinds =
        ["bucket", "interval", "queue", "fixed", "calendar", "approximate", "sliding", "several"];
    let descriptors: String =
        kinds.iter().map(|kind| format!("  - {{ key: {kind}, policy: {kind} }}\n")).collect();
    let server = Server::with_domain(&format!("domain: d\ndescriptors:\n{descriptors}"), settings);
    let mut client = server.client().await;
    for kind in kinds {
        let mut codes = Vec::new();
        for _ in 0..3 {
            codes.push(code(&client.ask("d", &[(kind, "ada")]).await));
        }
        // A queue, too, because gateways do not wait.
        assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit], "{kind}");
    }
    // As a number of requests per unit, if it is one.
    let mut limit = async |kind| {
        let response = client.ask("d", &[(kind, "eve")]).await;
        let limit = response.statuses[0].current_limit.clone();
        limit.map(|limit| (limit.requests_per_unit, limit.unit()))
    };
    use Unit::{Day, Month};
    assert_eq!(limit("bucket").await, Some((2, Day)));
    assert_eq!(limit("calendar").await, Some((2, Month)));
    assert_eq!(limit("several").await, None);
}

#[tokio::test]
async fn a_limit_can_replace_others_of_the_same_request() {
    let server = Server::with_domain(
        "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: ada
        rate_limit: { unit: year, requests_per_unit: 5, name: specific_limit }
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: ada
        rate_limit: { unit: year, requests_per_unit: 10, replaces: [{ name: specific_limit }] }
      - key: user
        value: vip
        rate_limit: { unit: year, requests_per_unit: 10, replaces: [{ name: specific_limit }] }
",
        "allow: [vip]",
    );
    let mut client = server.client().await;
    let first: &[(&str, &str)] = &[("key_1", "value_1"), ("user", "ada")];
    let second: &[(&str, &str)] = &[("key_2", "value_2"), ("user", "ada")];
    let both = client.send(request("example7", &[first, second])).await.unwrap();
    assert!(both.statuses[0].current_limit.is_none());
    assert_eq!(both.statuses[1].limit_remaining, 9);
    let vip: &[(&str, &str)] = &[("key_2", "value_2"), ("user", "vip")];
    let both = client.send(request("example7", &[first, vip])).await.unwrap();
    assert!(both.statuses[0].current_limit.is_none(), "also if its client is on the allow list");
    let alone = client.ask("example7", first).await;
    assert_eq!(alone.statuses[0].limit_remaining, 4, "it was not counted before");
}

#[tokio::test]
async fn replaced_limits_neither_count_nor_deny_whatever_replaces_them() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - key: account
    rate_limit:
      unit: year
      requests_per_unit: 8
      replaces: [{ name: per_user }, { name: per_page }, { name: unknown }]
  - key: partner
    rate_limit: { unlimited: true, replaces: [{ name: banned }] }
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2, name: per_user } }
  - { key: page, rate_limit: { unit: year, requests_per_unit: 2, name: per_page } }
  - { key: user, value: mallory, rate_limit: { unit: year, requests_per_unit: 0, name: banned } }
",
        "",
    );
    let mut client = server.client().await;
    let mut ask = async |keys: &[(&str, &str)]| {
        let entries: Vec<_> = keys.iter().map(std::slice::from_ref).collect();
        let response = client.send(request("d", &entries)).await.unwrap();
        let of = |status: &DescriptorStatus| {
            status.current_limit.as_ref().map(|_| status.limit_remaining)
        };
        (code(&response), response.statuses.iter().map(of).collect::<Vec<_>>())
    };
    let (account, user, page) = (("account", "1"), ("user", "ada"), ("page", "/"));
    // The order of the descriptors does not matter.
    assert_eq!(ask(&[user, account, page]).await, (Code::Ok, vec![None, Some(7), None]));
    assert_eq!(ask(&[account, user]).await, (Code::Ok, vec![Some(6), None]));
    assert_eq!(ask(&[user, page]).await, (Code::Ok, vec![Some(1), Some(1)]));
    let (partner, banned) = (("partner", "1"), ("user", "mallory"));
    assert_eq!(ask(&[banned]).await.0, Code::OverLimit);
    assert_eq!(ask(&[account, banned]).await.0, Code::OverLimit, "another name");
    assert_eq!(ask(&[partner, banned]).await.0, Code::Ok);
}

#[tokio::test]
async fn metadata_is_that_of_the_limits_that_allow_the_request() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - key: pool
    value: small
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
    metadata: { pool: { small: true }, weight: 1, tags: [a, null] }
  - key: pool
    value: large
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 9 }
    metadata: { pool: { large: true }, weight: 2.5 }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: free, rate_limit: { unlimited: true }, quota_mode: true, metadata: { free: true } }
",
        "",
    );
    let mut client = server.client().await;
    let mut ask = async |entries: &[(&str, &str)]| {
        let entries: Vec<_> = entries.iter().map(std::slice::from_ref).collect();
        let mut request = request("d", &entries);
        request.hits_addend = 1;
        let response = client.send(request).await.unwrap();
        response.dynamic_metadata.map(|metadata| object(&metadata))
    };
    let (small, large) = (("pool", "small"), ("pool", "large"));
    let of = |entries: &[&str], metadata: Value| {
        let entries: Vec<_> = entries.iter().map(|entry| json!({ "entries": [entry] })).collect();
        json!({ "domain": "d", "descriptors": entries, "hitsAddend": 1.0, "metadata": metadata })
    };
    // The first one has precedence.
    let both =
        json!({ "pool": { "small": true, "large": true }, "weight": 1.0, "tags": ["a", null] });
    assert_eq!(ask(&[small, large]).await, Some(of(&["pool=small", "pool=large"], both)));
    let only_large = json!({ "pool": { "large": true }, "weight": 2.5 });
    assert_eq!(ask(&[small, large]).await, Some(of(&["pool=small", "pool=large"], only_large)));
    assert_eq!(ask(&[small]).await, None, "its limit is exceeded");
    assert_eq!(ask(&[("plain", "x")]).await, None);
    let free = of(&["free=x"], json!({ "free": true }));
    assert_eq!(ask(&[("free", "x")]).await, Some(free), "an unlimited one allows all requests");
    let response = client.send(request("d", &[&[small], &[("free", "x")]])).await.unwrap();
    assert_eq!(code(&response), Code::OverLimit, "only limits count for the quota mode");
}

fn object(object: &Struct) -> Value {
    object.fields.iter().map(|(name, value)| (name.clone(), json_of(value))).collect()
}

fn json_of(value: &protobuf::Value) -> Value {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => Value::Null,
        Kind::BoolValue(value) => json!(value),
        Kind::NumberValue(value) => json!(value),
        Kind::StringValue(value) => json!(value),
        Kind::ListValue(list) => list.values.iter().map(json_of).collect(),
        Kind::StructValue(value) => object(value),
    }
}

#[tokio::test]
async fn a_descriptor_can_have_any_policy_of_the_settings() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - { key: user, policy: search }
",
        "policies: { search: { minute: 3/h burst 3, day: 100/day } }",
    );
    let mut client = server.client().await;
    let response = client.ask("d", &[("user", "ada")]).await;
    assert_eq!(response.statuses[0].limit_remaining, 2);
    let headers: Vec<_> = response.response_headers_to_add.iter().collect();
    assert_eq!(headers[0].key, "ratelimit");
    assert!(headers[0].value.starts_with(r#""minute";r=2;t="#), "{headers:?}");
    for _ in 0..2 {
        assert_eq!(code(&client.ask("d", &[("user", "ada")]).await), Code::Ok);
    }
    let denied = client.ask("d", &[("user", "ada")]).await;
    assert_eq!(code(&denied), Code::OverLimit);
    let retry = denied.response_headers_to_add.iter().find(|header| header.key == "retry-after");
    let seconds: u32 = retry.unwrap().value.parse().unwrap();
    assert!((1_100..=1_200).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn hits_that_are_reported_afterwards_count_and_nothing_is_admitted_once_none_is_left() {
    let domain = |count_denied: bool| {
        format!(
            "domain: d\ndescriptors:\n  - {{ key: tokens, count_denied: {count_denied}, \
             rate_limit: {{ unit: year, requests_per_unit: 1000 }} }}"
        )
    };
    for (count_denied, expected) in [(true, 4), (false, 20)] {
        let server = Server::with_domain(&domain(count_denied), "");
        let mut client = server.client().await;
        let mut hits = async |value: u64| {
            let mut request = request("d", &[&[("tokens", "ada")]]);
            request.descriptors[0].hits_addend = Some(UInt64Value { value });
            code(&client.send(request).await.unwrap())
        };
        let mut admitted = 0;
        for _ in 0..20 {
            if hits(0).await == Code::Ok {
                admitted += 1;
                hits(300).await;
            }
        }
        assert_eq!(admitted, expected);
    }
}

/// Gateways of language models check 0 tokens against a limit of the request, and report those of the response.
#[tokio::test]
async fn reports_of_what_was_used_count_against_a_limit_of_the_request_also_beyond_it() {
    let server = Server::with_domain("domain: d\ndescriptors: []", "");
    let mut client = server.client().await;
    let mut hits = async |key: &str, value: u64| {
        let mut request = request("d", &[&[("tokens", key)]]);
        request.descriptors[0].hits_addend = Some(UInt64Value { value });
        // A year, because an hour may end during a test.
        let limit = RateLimitOverride { requests_per_unit: 100_000, unit: Unit::Year as i32 };
        request.descriptors[0].limit = Some(limit);
        let response = client.send(request).await.unwrap();
        (code(&response), response.statuses[0].limit_remaining)
    };
    assert_eq!(hits("two", 0).await, (Code::Ok, 100_000));
    assert_eq!(hits("two", 60_000).await, (Code::Ok, 40_000));
    assert_eq!(hits("two", 60_000).await, (Code::OverLimit, 0));
    assert_eq!(hits("two", 0).await, (Code::OverLimit, 0));
    assert_eq!(hits("one", 150_000).await, (Code::OverLimit, 0));
    assert_eq!(hits("one", 0).await, (Code::OverLimit, 0));
    assert_eq!(hits("one", 1).await, (Code::OverLimit, 0));
    assert_eq!(hits("other", 1).await, (Code::Ok, 99_999));
}

#[tokio::test]
async fn a_domain_says_whether_denied_hits_are_counted_unless_a_descriptor_does() {
    let domain = |count_denied: bool| {
        format!(
            "domain: d\ncount_denied: {count_denied}\ndescriptors:\n\
             - {{ key: default, rate_limit: {{ unit: year, requests_per_unit: 9 }} }}\n\
             - {{ key: own, count_denied: {}, rate_limit: {{ unit: year, requests_per_unit: 9 }} }}",
            !count_denied,
        )
    };
    for count_denied in [true, false] {
        let server = Server::with_domain(&domain(count_denied), "");
        let mut client = server.client().await;
        let mut is_full_after_denied_hits = async |key: &str, limit: Option<u32>| {
            let mut codes = Vec::new();
            for hits in [10, 1] {
                let mut request = request("d", &[&[(key, "ada")]]);
                request.hits_addend = hits;
                request.descriptors[0].limit = limit.map(|requests_per_unit| RateLimitOverride {
                    requests_per_unit,
                    unit: Unit::Year as i32,
                });
                codes.push(code(&client.send(request).await.unwrap()));
            }
            assert_eq!(codes[0], Code::OverLimit);
            codes[1] == Code::OverLimit
        };
        assert_eq!(is_full_after_denied_hits("default", None).await, count_denied);
        assert_eq!(is_full_after_denied_hits("own", None).await, !count_denied);
        assert_eq!(is_full_after_denied_hits("any", Some(9)).await, count_denied);
    }
}

#[tokio::test]
async fn hits_that_are_not_counted_are_seen_by_operators() {
    let server = Server::with_domain(
        "domain: d\ndescriptors:\n\
         - { key: user, rate_limit: { unit: year, requests_per_unit: 9 } }\n\
         - { key: none, count_denied: false, rate_limit: { unit: year, requests_per_unit: 9 } }",
        "deny: [203.0.113.66]",
    );
    let mut client = server.client().await;
    let mut send = async |key: &str, hits: u32, gives_back: bool| {
        let mut request = request("d", &[&[(key, "ada")]]);
        request.hits_addend = hits;
        request.descriptors[0].is_negative_hits = gives_back;
        code(&client.send(request).await.unwrap())
    };
    assert_eq!(send("none", 10, false).await, Code::OverLimit);
    let mut listed = request("d", &[&[("remote_address", "203.0.113.66")]]);
    listed.hits_addend = 3;
    assert_eq!(code(&server.client().await.send(listed).await.unwrap()), Code::OverLimit);
    for _ in 0..2 {
        assert_eq!(send("user", 20, false).await, Code::OverLimit);
    }
    for _ in 0..9 {
        assert_eq!(send("user", 1, false).await, Code::Ok);
    }
    assert_eq!(send("user", 1, false).await, Code::OverLimit);
    assert_eq!(send("user", 7, true).await, Code::OverLimit, "nothing is given back");
    assert_eq!(send("user", 1, false).await, Code::OverLimit);
    let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
    let uncounted = |reason| {
        let labels = format!("fleetlimit_server_uncounted_total{{reason=\"{reason}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&labels));
        line.map(|value| value.parse::<u64>().unwrap())
    };
    assert_eq!([uncounted("denied"), uncounted("negative")], [Some(53), Some(7)], "{metrics}");
    server.signal("HUP");
    let log = server.lines_until("configuration reloaded");
    // Each once, and not if the configuration says it.
    let logged = |text| log.iter().filter(|line| line.contains(text)).count();
    assert_eq!([logged("`count_denied`"), logged("`negative_hits`")], [1, 1], "{log:?}");
}

/// Otherwise whoever waits for `uncounted` would take an outage for a time in which everything was counted.
#[tokio::test]
async fn hits_that_pass_because_the_store_has_failed_are_uncounted() {
    for failure_mode in ["open", "closed"] {
        let server = Server::with_domain(
            "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 9 } }]",
            // Nothing listens there.
            &format!(
                "store: {{ redis: 'redis://127.0.0.1:1' }}\nchecks: {{ failure_mode: {failure_mode} }}"
            ),
        );
        let mut client = server.client().await;
        for hits in [1, 5] {
            let mut request = request("d", &[&[("user", "ada")]]);
            request.hits_addend = hits;
            let allowed = client.send(request).await.map(|response| code(&response) == Code::Ok);
            assert_eq!(allowed.unwrap_or_default(), failure_mode == "open");
        }
        let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
        let expected = "fleetlimit_server_uncounted_total{reason=\"failed\"} 5\n";
        assert!(metrics.contains(expected), "{failure_mode}: {metrics}");
    }
}

#[tokio::test]
async fn hostile_numbers_of_hits_do_not_make_a_metric_start_again() {
    let server = Server::with_domain(
        "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 9 } }]",
        "",
    );
    let mut client = server.client().await;
    let mut uncounted = Vec::new();
    for value in [7, u64::MAX] {
        let mut request = request("d", &[&[("user", "ada")]]);
        request.descriptors[0].hits_addend = Some(UInt64Value { value });
        request.descriptors[0].is_negative_hits = true;
        client.send(request).await.unwrap();
        let metrics = reqwest::get(server.admin("/metrics")).await.unwrap().text().await.unwrap();
        let labels = "fleetlimit_server_uncounted_total{reason=\"negative\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(labels)).unwrap();
        uncounted.push(value.parse::<u64>().unwrap());
    }
    assert!(uncounted[0] == 7 && uncounted[1] > 7, "{uncounted:?}");
}

/// Each of these warnings is logged once, but a domain can have as many bytes as a request.
#[tokio::test]
async fn the_domain_of_a_request_does_not_fill_the_log() {
    let server = Server::with_domain("domain: d\ndescriptors: []", "");
    let mut client = server.client().await;
    let domain = "\u{1b}".repeat(100_000);
    let mut negative = request(&domain, &[&[("user", "ada")]]);
    negative.descriptors[0].is_negative_hits = true;
    client.send(negative).await.unwrap();
    let entries: &[_] = &[("user", "ada")];
    client.send(request(&domain, &[entries; 65])).await.unwrap_err();
    server.signal("HUP");
    let log = server.lines_until("configuration reloaded");
    assert_eq!(log.iter().filter(|line| line.contains(" WARN ")).count(), 3, "{log:?}");
    assert!(log.iter().all(|line| line.len() < 2_000), "{:?}", log.iter().map(String::len));
}

#[tokio::test]
async fn clients_that_share_a_policy_cannot_use_up_the_permits_of_others() {
    let server = Server::with_domain(
        "domain: d\ndescriptors: [{ key: remote_address, policy: p }, { key: api_key, policy: p }]",
        "policies: { p: { day: 1/day } }",
    );
    let mut client = server.client().await;
    assert_eq!(code(&client.ask("d", &[("api_key", "192.0.2.1")]).await), Code::Ok);
    assert_eq!(code(&client.ask("d", &[("remote_address", "192.0.2.1")]).await), Code::Ok);
    assert_eq!(code(&client.ask("d", &[("api_key", "192.0.2.1")]).await), Code::OverLimit);
}

#[tokio::test]
async fn lists_apply_to_every_entry_and_to_the_whole_request() {
    let server = Server::with_domain(
        "
domain: d
descriptors:
  - key: path
    descriptors:
      - { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: remote_address, rate_limit: { unlimited: true } }
  - { key: api_key, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: a, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 9 } }
",
        "allow: [10.0.0.0/8, friend]\ndeny: [203.0.113.0/24]",
    );
    let mut client = server.client().await;
    let mut ask = async |entries: &[&[(&str, &str)]]| {
        code(&client.send(request("d", entries)).await.unwrap())
    };
    let nested = |address| [("path", "/v1"), ("remote_address", address)];
    assert_eq!(ask(&[&nested("203.0.113.66")]).await, Code::OverLimit);
    assert_eq!(ask(&[&[("remote_address", "203.0.113.66")]]).await, Code::OverLimit);
    assert_eq!(ask(&[&[("a", "x")], &[("remote_address", "203.0.113.66")]]).await, Code::OverLimit);
    for _ in 0..3 {
        assert_eq!(ask(&[&nested("10.1.2.3")]).await, Code::Ok);
        assert_eq!(ask(&[&[("api_key", "friend")]]).await, Code::Ok);
    }
    let overruled = server.overruled().await;
    assert_eq!(overruled, [("allow".to_owned(), 6), ("deny".to_owned(), 3)]);
    // A key that looks like an address that is allowed.
    assert_eq!(ask(&[&[("api_key", "10.1.2.3")]]).await, Code::Ok);
    assert_eq!(ask(&[&[("api_key", "10.1.2.3")]]).await, Code::OverLimit);
}

#[tokio::test]
async fn clients_that_an_operator_denies_use_up_nothing_that_they_share_with_others() {
    let server = Server::with_domain(
        "
domain: d
negative_hits: true
descriptors:
  - { key: all, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: remote_address, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
",
        "deny: [203.0.113.66]",
    );
    let body = json!({ "policy": "d.remote_address", "key": "192.0.2.7", "seconds": 3_600 });
    let block = reqwest::Client::new().post(server.admin("/api/block")).json(&body);
    assert!(block.send().await.unwrap().status().is_success());
    let mut client = server.client().await;
    let mut ask = async |address| {
        let entries: [&[_]; 2] = [&[("all", "x")], &[("remote_address", address)]];
        client.send(request("d", &entries)).await.unwrap()
    };
    for address in ["203.0.113.66", "192.0.2.7"] {
        let denied = ask(address).await;
        let codes = [0, 1].map(|index: usize| denied.statuses[index].code());
        assert_eq!((code(&denied), codes), (Code::OverLimit, [Code::Unknown, Code::OverLimit]));
    }
    assert_eq!(ask("192.0.2.8").await.statuses[0].limit_remaining, 9);
    // What was taken before is given back.
    let entries: [&[_]; 2] = [&[("all", "x")], &[("remote_address", "192.0.2.7")]];
    let mut returned = request("d", &entries);
    returned.descriptors[0].is_negative_hits = true;
    assert_eq!(code(&client.send(returned).await.unwrap()), Code::OverLimit);
    // What a limit denies is counted by the others, as Envoy's documentation says.
    let (all, none): (&[_], &[_]) = (&[("all", "x")], &[("none", "x")]);
    let denied = client.send(request("d", &[all, none])).await.unwrap();
    assert_eq!((code(&denied), denied.statuses[0].limit_remaining), (Code::OverLimit, 9));
    // Several hits against a limit of the request, which are a report if nobody is denied by an operator.
    let limit = Some(RateLimitOverride { requests_per_unit: 10, unit: Unit::Year as i32 });
    let mut shared = request("d", &[&[("shared", "x")], &[("remote_address", "203.0.113.66")]]);
    shared.hits_addend = 5;
    shared.descriptors[0].limit = limit;
    assert_eq!(code(&client.send(shared.clone()).await.unwrap()), Code::OverLimit);
    shared.descriptors.pop();
    assert_eq!(client.send(shared).await.unwrap().statuses[0].limit_remaining, 5);
    // A limit of the request that makes no sense.
    let mut invalid = request("d", &[all, &[("remote_address", "203.0.113.66")]]);
    invalid.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 99 });
    assert_eq!(code(&client.send(invalid).await.unwrap()), Code::OverLimit);
    let overruled = server.overruled().await;
    let expected = [("block", 2), ("deny", 3), ("zero", 1)].map(|(by, n)| (by.to_owned(), n));
    assert_eq!(overruled, expected);
}

/// Envoy lets a request pass that gets an error.
#[tokio::test]
async fn a_request_that_makes_no_sense_does_not_pass_the_deny_list_and_blocks() {
    let settings = "deny: [foe, caf\u{e9}]\nresource_limits: { descriptors: 64, entries: 16 }";
    let server = Server::with_domain(
        "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 10 } }]",
        settings,
    );
    let body = json!({ "policy": "d.user", "key": "blocked", "seconds": 3_600 });
    let block = reqwest::Client::new().post(server.admin("/api/block")).json(&body);
    assert!(block.send().await.unwrap().status().is_success());
    let mut client = server.client().await;
    for (denied, is_listed) in [("foe", true), ("caf\u{e9}", true), ("blocked", false)] {
        let (friend, foe): (&[_], &[_]) = (&[("user", "friend")], &[("user", denied)]);
        let mut no_unit = request("d", &[friend, foe]);
        no_unit.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 99 });
        let mut requests = vec![no_unit];
        if is_listed {
            requests.push(request("", &[friend, foe]));
            requests.push(request("d", &[&vec![friend; 64][..], &[foe]].concat()));
            requests.push(request("d", &[&[foe], &vec![friend; 64][..]].concat()));
            requests.push(request("d", &[&[("a", "b"); 17], foe]));
            requests.push(request("d", &[friend, &[&[("a", "b"); 16], foe].concat()]));
        }
        for request in requests {
            let response = client.send(request.clone()).await.unwrap();
            assert_eq!(code(&response), Code::OverLimit, "{denied} {request:?}");
            // The same without the one that is denied.
            let mut others = request;
            for entry in others.descriptors.iter_mut().flat_map(|d| &mut d.entries) {
                if entry.value == denied {
                    entry.value = "friend".to_owned();
                }
            }
            let status = client.send(others).await.unwrap_err();
            assert_eq!(status.code(), GrpcCode::InvalidArgument);
        }
    }
}

#[tokio::test]
async fn requests_that_make_no_sense_or_too_much_work_are_rejected() {
    let server = Server::with_domain(
        BASIC,
        "resource_limits: { descriptors: 3, entries: 2, request_bytes: 4096 }",
    );
    let mut client = server.client().await;
    let one: &[(&str, &str)] = &[("key2", "x")];
    let three = &[one, one, one].concat()[..];
    for invalid in [
        request("", &[one]),
        request("d", &[]),
        request("d", &[one; 4]),
        request("d", &[one, three]),
    ] {
        let status = client.send(invalid).await.unwrap_err();
        assert_eq!(status.code(), GrpcCode::InvalidArgument);
    }
    let long = "x".repeat(5_000);
    let status = client.send(request("d", &[&[("key2", &long)]])).await.unwrap_err();
    assert_ne!(status.code(), GrpcCode::Ok);
    let mut many = request("test-domain", &[one; 3]);
    many.descriptors[1] = descriptor(&[("key2", &"y".repeat(1_000))]);
    assert_eq!(code(&client.send(many).await.unwrap()), Code::Ok);
}

/// With values of any bytes, as Envoy sends those of headers.
#[derive(Clone, PartialEq, prost::Message)]
struct RawRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RawDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<RawEntry>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<UInt64Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

async fn send_raw(channel: &Channel, value: &[u8], hits: u64) -> RateLimitResponse {
    let entry = RawEntry { key: "key2".to_owned(), value: value.to_vec() };
    let hits_addend = Some(UInt64Value { value: hits });
    let descriptors = vec![RawDescriptor { entries: vec![entry], hits_addend }];
    let request = RawRequest { domain: "test-domain".to_owned(), descriptors };
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let codec = ProstCodec::<RawRequest, RateLimitResponse>::default();
    let request = tonic::Request::new(request);
    grpc.unary(request, path.parse().unwrap(), codec).await.unwrap().into_inner()
}

/// Envoy lets a request pass if its check fails.
#[tokio::test]
async fn no_value_of_a_header_passes_the_limits_because_it_is_not_text() {
    let server = Server::with_domain(BASIC, "");
    let url = format!("http://{}", server.grpc);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    for value in [&b"\xff"[..], b"caf\xe9", b"caf\xe8", b"\xc3\x28ada", "caf\u{e9}".as_bytes()] {
        assert_eq!(code(&send_raw(&channel, value, 20).await), Code::Ok);
        assert_eq!(code(&send_raw(&channel, value, 1).await), Code::OverLimit);
    }
}
