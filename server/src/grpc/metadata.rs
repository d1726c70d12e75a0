//! The dynamic metadata of a response, in the form of envoyproxy/ratelimit.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value as ProtoValue};
use serde_json::{Map, Value, json};

use super::status::Outcome;

/// The configured metadata of the limits that allow the request, with the request that they apply to. `None` if none
/// is configured.
pub(super) fn metadata(request: &RateLimitRequest, outcomes: &[Outcome<'_>]) -> Option<Struct> {
    let mut merged = Map::new();
    let allowed = outcomes.iter().filter(|outcome| outcome.is_allowed());
    for rule in allowed.filter_map(Outcome::rule) {
        merge(&mut merged, &rule.metadata);
    }
    if merged.is_empty() {
        return None;
    }
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        json!({ "entries": entries.map(|e| format!("{}={}", e.key, e.value)).collect::<Vec<_>>() })
    });
    let mut all = Map::new();
    all.insert("domain".into(), request.domain.as_str().into());
    all.insert("descriptors".into(), descriptors.collect());
    if request.hits_addend > 0 {
        all.insert("hitsAddend".into(), request.hits_addend.into());
    }
    all.insert("metadata".into(), merged.into());
    Some(to_struct(all))
}

/// Adds values. The first value of each path stays.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => {
                into.insert(name.clone(), value.clone());
            }
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}

fn to_struct(object: Map<String, Value>) -> Struct {
    Struct { fields: object.into_iter().map(|(name, value)| (name, to_value(value))).collect() }
}

fn to_value(value: Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(to_value).collect() })
        }
        Value::Object(object) => Kind::StructValue(to_struct(object)),
    };
    ProtoValue { kind: Some(kind) }
}
