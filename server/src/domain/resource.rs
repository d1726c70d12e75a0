//! The limits of a domain as a control plane sends them, in the messages of `ratelimit.config.ratelimit.v3`.
//!
//! Source: `api/ratelimit/config/ratelimit/v3/rls_conf.proto` of envoyproxy/ratelimit.

use std::collections::BTreeSet;

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value as ProtoValue};
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{Message, Name};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Spanned};

use super::format::{Descriptor, DomainFile, RateLimit, Replaces};

/// A resource in the form of a file, with the name that the control plane has given to it.
pub(crate) struct Resource {
    pub(crate) name: String,
    pub(crate) file: DomainFile,
}

impl Resource {
    /// The type of the resources to ask for.
    pub(crate) fn type_url() -> String {
        RateLimitConfig::type_url()
    }

    /// # Errors
    ///
    /// If it is another message, or has a field that is not known here: a limit without it would be another one.
    pub(crate) fn parse(resource: &Any) -> Result<Self, String> {
        let expected = Self::type_url();
        if resource.type_url != expected {
            let found = resource.type_url.escape_debug();
            return Err(format!("a resource has the type {found} instead of {expected}"));
        }
        let config = RateLimitConfig::decode(resource.value.as_slice());
        let config = config.map_err(|error| format!("a resource is malformed: {error}"))?;
        let name = if config.name.is_empty() { &config.domain } else { &config.name }.clone();
        let unknown = unknown_fields(&resource.value, &CONFIG);
        if !unknown.is_empty() {
            let unknown = unknown.into_iter().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "the resource `{}` has what this version of fleetlimit-server does not know: {unknown}",
                name.escape_debug()
            ));
        }
        let file = DomainFile {
            domain: spanned(config.domain),
            name: Some(config.name).filter(|name| !name.is_empty()),
            count_denied: None,
            negative_hits: false,
            is_resource: true,
            descriptors: descriptors(config.descriptors)
                .map_err(|error| format!("the resource `{}`: {error}", name.escape_debug()))?,
        };
        Ok(Self { name, file })
    }
}

/// A value without a place in a file.
fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(value, Location::UNKNOWN, Location::UNKNOWN)
}

fn descriptors(descriptors: Vec<RateLimitDescriptor>) -> Result<Vec<Descriptor>, String> {
    descriptors.into_iter().map(descriptor).collect()
}

fn descriptor(descriptor: RateLimitDescriptor) -> Result<Descriptor, String> {
    let metadata = descriptor.metadata.map(object).transpose()?;
    Ok(Descriptor {
        key: spanned(descriptor.key),
        value: Some(spanned(descriptor.value)).filter(|value| !value.value.is_empty()),
        rate_limit: descriptor.rate_limit.map(|policy| spanned(rate_limit(policy))),
        policy: None,
        descriptors: descriptors(descriptor.descriptors)?,
        shadow_mode: descriptor.shadow_mode,
        quota_mode: descriptor.quota_mode,
        count_denied: None,
        detailed_metric: descriptor.detailed_metric,
        value_to_metric: false,
        share_threshold: None,
        metadata: metadata.map(spanned),
    })
}

fn rate_limit(policy: RateLimitPolicy) -> RateLimit {
    let unit = match RateLimitUnit::try_from(policy.unit) {
        Ok(RateLimitUnit::Unknown) => None,
        Ok(unit) => Some(unit.as_str_name().to_lowercase()),
        Err(_) => Some(policy.unit.to_string()),
    };
    let replaces =
        policy.replaces.into_iter().map(|replaced| Replaces { name: spanned(replaced.name) });
    RateLimit {
        // A number that is left out is 0, which denies all requests.
        requests_per_unit: Some(policy.requests_per_unit).filter(|_| !policy.unlimited),
        unit: unit.map(spanned),
        unlimited: policy.unlimited,
        name: policy.name,
        replaces: replaces.collect(),
    }
}

fn object(object: Struct) -> Result<Map<String, Value>, String> {
    object.fields.into_iter().map(|(name, value)| Ok((name, json(value)?))).collect()
}

fn json(value: ProtoValue) -> Result<Value, String> {
    Ok(match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::NumberValue(number)) => {
            let number = Number::from_f64(number);
            number.ok_or("a number of `metadata` is not finite")?.into()
        }
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => {
            list.values.into_iter().map(json).collect::<Result<_, _>>()?
        }
        Some(Kind::StructValue(fields)) => object(fields)?.into(),
    })
}

/// The fields that a message has in this version.
struct Schema {
    name: &'static str,
    fields: &'static [u32],
    /// The fields that are messages, apart from `metadata`, which holds anything.
    messages: &'static [(u32, &'static Schema)],
}

static CONFIG: Schema =
    Schema { name: "RateLimitConfig", fields: &[1, 2, 3], messages: &[(3, &DESCRIPTOR)] };
static DESCRIPTOR: Schema = Schema {
    name: "RateLimitDescriptor",
    fields: &[1, 2, 3, 4, 5, 6, 7, 8],
    messages: &[(3, &POLICY), (4, &DESCRIPTOR)],
};
static POLICY: Schema =
    Schema { name: "RateLimitPolicy", fields: &[1, 2, 3, 4, 5], messages: &[(5, &REPLACE)] };
static REPLACE: Schema = Schema { name: "RateLimitReplace", fields: &[1], messages: &[] };

/// Finds what prost skips: fields of a later version.
fn unknown_fields(mut message: &[u8], schema: &Schema) -> BTreeSet<String> {
    let mut unknown = BTreeSet::new();
    while let Some((number, content)) = next_field(&mut message) {
        if !schema.fields.contains(&number) {
            unknown.insert(format!("field {number} of {}", schema.name));
        }
        let inner = schema.messages.iter().find(|(of, _)| *of == number);
        if let (Some((_, inner)), Some(content)) = (inner, content) {
            unknown.append(&mut unknown_fields(content, inner));
        }
    }
    unknown
}

/// Reads a field of a valid message: its number and, if it is a text or a message, its bytes. `None` at the end.
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    if message.is_empty() {
        return None;
    }
    let (number, wire_type) = decode_key(message).ok()?;
    if wire_type == WireType::LengthDelimited {
        let length = decode_varint(message).ok()?;
        let (content, rest) = message.split_at_checked(length.try_into().ok()?)?;
        *message = rest;
        return Some((number, Some(content)));
    }
    skip_field(wire_type, number, message, DecodeContext::default()).ok()?;
    Some((number, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(value: Vec<u8>) -> Any {
        Any { type_url: Resource::type_url(), value }
    }

    fn config() -> RateLimitConfig {
        let policy = RateLimitPolicy {
            unit: RateLimitUnit::Month.into(),
            requests_per_unit: 3,
            ..RateLimitPolicy::default()
        };
        let inner = RateLimitDescriptor {
            key: "plan".to_owned(),
            rate_limit: Some(policy),
            shadow_mode: true,
            ..RateLimitDescriptor::default()
        };
        let outer = RateLimitDescriptor {
            key: "user".to_owned(),
            value: "anna".to_owned(),
            descriptors: vec![inner],
            ..RateLimitDescriptor::default()
        };
        RateLimitConfig {
            name: "gateway/http".to_owned(),
            domain: "d".to_owned(),
            descriptors: vec![outer],
        }
    }

    #[test]
    fn a_resource_is_the_file_that_says_the_same() {
        let resource = Resource::parse(&any(config().encode_to_vec())).unwrap();
        let text = "name: gateway/http\ndomain: d\ndescriptors:\n- key: user\n  value: anna\n  descriptors:\n  - key: \
                    plan\n    shadow_mode: true\n    rate_limit: { unit: month, requests_per_unit: 3 }";
        let file: DomainFile = serde_saphyr::from_str(text).unwrap();
        let [from_resource, from_file] =
            [&resource.file, &file].map(|file| serde_json::to_value(file).unwrap());
        assert_eq!(from_resource, from_file);
        assert_eq!(resource.name, "gateway/http");
    }

    /// A limit without `share_threshold`, say, would be another one.
    #[test]
    fn fields_of_a_later_version_are_errors_at_any_depth() {
        let error = |value: Vec<u8>| Resource::parse(&any(value)).err();
        let valid = config().encode_to_vec();
        assert_eq!(error(valid.clone()), None);
        // Field 9, of four kinds: a number, a text, and eight and four bytes.
        for field in
            [&[0x48, 1][..], &[0x4a, 1, b'x'], &[0x49, 0, 0, 0, 0, 0, 0, 0, 0], &[0x4d, 0, 0, 0, 0]]
        {
            let of_config = error([&valid[..], field].concat()).unwrap();
            assert!(
                of_config.contains("`gateway/http`")
                    && of_config.ends_with("field 9 of RateLimitConfig"),
                "{of_config}"
            );
            // A policy in a descriptor in a descriptor.
            let mut message = field.to_vec();
            for number in [3, 4, 3] {
                message = [&[number << 3 | 2, message.len() as u8][..], &message].concat();
            }
            let of_policy = error([&valid[..], &message].concat()).unwrap();
            assert!(of_policy.ends_with("field 9 of RateLimitPolicy"), "{of_policy}");
        }
    }

    #[test]
    fn what_is_no_resource_is_an_error() {
        let other = Any { type_url: "type.googleapis.com/other".to_owned(), value: Vec::new() };
        assert!(Resource::parse(&other).err().unwrap().contains("type.googleapis.com/other"));
        assert!(Resource::parse(&any(vec![0x0a, 9])).err().unwrap().contains("malformed"));
        let mut infinite = config();
        let number = ProtoValue { kind: Some(Kind::NumberValue(f64::INFINITY)) };
        infinite.descriptors[0].metadata =
            Some(Struct { fields: [("a".to_owned(), number)].into() });
        let error = Resource::parse(&any(infinite.encode_to_vec())).err().unwrap();
        assert!(error.contains("not finite"), "{error}");
    }
}
