//! What gRPC reflection says about the services, so that tools such as grpcurl can call them without the
//! files of their protocols.
//!
//! Source: `envoy/service/ratelimit/v3/rls.proto` and the files that it imports. The fields of
//! responses that this service never sets are left out.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    OneofDescriptorProto, ServiceDescriptorProto,
};
use tonic_reflection::server::Builder;

const DURATION: &str = "google/protobuf/duration.proto";
const STRUCT: &str = "google/protobuf/struct.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const BASE: &str = "envoy/config/core/v3/base.proto";
const UNITS: &str = "envoy/type/v3/ratelimit_unit.proto";
const DESCRIPTORS: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

/// A reflection service that describes the rate limit service and the health checks.
pub(super) fn builder() -> Builder<'static> {
    Builder::configure()
        .register_file_descriptor_set(descriptors())
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn descriptors() -> FileDescriptorSet {
    let file = vec![duration(), structs(), wrappers(), base(), units(), request(), service()];
    FileDescriptorSet { file }
}

fn duration() -> FileDescriptorProto {
    let fields = vec![field(1, "seconds", Type::Int64), field(2, "nanos", Type::Int32)];
    file(DURATION, "google.protobuf", &[], vec![message("Duration", fields)])
}

fn structs() -> FileDescriptorProto {
    let value = ".google.protobuf.Value";
    let entry = DescriptorProto {
        options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..message(
            "FieldsEntry",
            vec![field(1, "key", Type::String), of_type(field(2, "value", Type::Message), value)],
        )
    };
    let fields = field(1, "fields", Type::Message);
    let fields = repeated(of_type(fields, ".google.protobuf.Struct.FieldsEntry"));
    let object = DescriptorProto { nested_type: vec![entry], ..message("Struct", vec![fields]) };
    let kinds = [
        of_type(field(1, "null_value", Type::Enum), ".google.protobuf.NullValue"),
        field(2, "number_value", Type::Double),
        field(3, "string_value", Type::String),
        field(4, "bool_value", Type::Bool),
        of_type(field(5, "struct_value", Type::Message), ".google.protobuf.Struct"),
        of_type(field(6, "list_value", Type::Message), ".google.protobuf.ListValue"),
    ];
    let kinds = kinds.map(|kind| FieldDescriptorProto { oneof_index: Some(0), ..kind });
    let kind = OneofDescriptorProto { name: Some("kind".into()), options: None };
    let any = DescriptorProto { oneof_decl: vec![kind], ..message("Value", kinds.to_vec()) };
    let values = repeated(of_type(field(1, "values", Type::Message), value));
    let messages = vec![object, any, message("ListValue", vec![values])];
    FileDescriptorProto {
        enum_type: vec![enumeration("NullValue", &[("NULL_VALUE", 0)])],
        ..file(STRUCT, "google.protobuf", &[], messages)
    }
}

fn wrappers() -> FileDescriptorProto {
    let fields = vec![field(1, "value", Type::Uint64)];
    file(WRAPPERS, "google.protobuf", &[], vec![message("UInt64Value", fields)])
}

fn base() -> FileDescriptorProto {
    let fields = vec![
        field(1, "key", Type::String),
        field(2, "value", Type::String),
        field(3, "raw_value", Type::Bytes),
    ];
    file(BASE, "envoy.config.core.v3", &[], vec![message("HeaderValue", fields)])
}

fn units() -> FileDescriptorProto {
    let units = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"];
    let numbered = units.into_iter().zip(0..).collect::<Vec<_>>();
    FileDescriptorProto {
        enum_type: vec![enumeration("RateLimitUnit", &numbered)],
        ..file(UNITS, "envoy.type.v3", &[], Vec::new())
    }
}

fn request() -> FileDescriptorProto {
    let package = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    let entry = vec![field(1, "key", Type::String), field(2, "value", Type::String)];
    let limit = vec![
        field(1, "requests_per_unit", Type::Uint32),
        of_type(field(2, "unit", Type::Enum), ".envoy.type.v3.RateLimitUnit"),
    ];
    let fields = vec![
        repeated(of_type(field(1, "entries", Type::Message), &format!("{package}.Entry"))),
        of_type(field(2, "limit", Type::Message), &format!("{package}.RateLimitOverride")),
        of_type(field(3, "hits_addend", Type::Message), ".google.protobuf.UInt64Value"),
        field(4, "is_negative_hits", Type::Bool),
    ];
    let descriptor = DescriptorProto {
        nested_type: vec![message("Entry", entry), message("RateLimitOverride", limit)],
        ..message("RateLimitDescriptor", fields)
    };
    let package = "envoy.extensions.common.ratelimit.v3";
    file(DESCRIPTORS, package, &[UNITS, WRAPPERS], vec![descriptor])
}

fn service() -> FileDescriptorProto {
    let package = "envoy.service.ratelimit.v3";
    let response = format!(".{package}.RateLimitResponse");
    let descriptor = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    let request = message(
        "RateLimitRequest",
        vec![
            field(1, "domain", Type::String),
            repeated(of_type(field(2, "descriptors", Type::Message), descriptor)),
            field(3, "hits_addend", Type::Uint32),
        ],
    );
    let units = [
        ("UNKNOWN", 0),
        ("SECOND", 1),
        ("MINUTE", 2),
        ("HOUR", 3),
        ("DAY", 4),
        ("WEEK", 7),
        ("MONTH", 5),
        ("YEAR", 6),
    ];
    let limit = DescriptorProto {
        enum_type: vec![enumeration("Unit", &units)],
        ..message(
            "RateLimit",
            vec![
                field(3, "name", Type::String),
                field(1, "requests_per_unit", Type::Uint32),
                of_type(field(2, "unit", Type::Enum), &format!("{response}.RateLimit.Unit")),
            ],
        )
    };
    let status = message(
        "DescriptorStatus",
        vec![
            of_type(field(1, "code", Type::Enum), &format!("{response}.Code")),
            of_type(field(2, "current_limit", Type::Message), &format!("{response}.RateLimit")),
            field(3, "limit_remaining", Type::Uint32),
            of_type(field(4, "duration_until_reset", Type::Message), ".google.protobuf.Duration"),
        ],
    );
    let header = ".envoy.config.core.v3.HeaderValue";
    let statuses = format!("{response}.DescriptorStatus");
    let fields = vec![
        of_type(field(1, "overall_code", Type::Enum), &format!("{response}.Code")),
        repeated(of_type(field(2, "statuses", Type::Message), &statuses)),
        repeated(of_type(field(3, "response_headers_to_add", Type::Message), header)),
        of_type(field(6, "dynamic_metadata", Type::Message), ".google.protobuf.Struct"),
    ];
    let codes = [("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)];
    let response_message = DescriptorProto {
        nested_type: vec![limit, status],
        enum_type: vec![enumeration("Code", &codes)],
        ..message("RateLimitResponse", fields)
    };
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".into()),
        input_type: Some(format!(".{package}.RateLimitRequest")),
        output_type: Some(response),
        ..MethodDescriptorProto::default()
    };
    let service = ServiceDescriptorProto {
        name: Some("RateLimitService".into()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    };
    let messages = vec![request, response_message];
    FileDescriptorProto {
        service: vec![service],
        ..file(SERVICE, package, &[BASE, DESCRIPTORS, DURATION, STRUCT], messages)
    }
}

fn file(
    name: &str,
    package: &str,
    imports: &[&str],
    messages: Vec<DescriptorProto>,
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.into()),
        package: Some(package.into()),
        dependency: imports.iter().map(|&import| import.into()).collect(),
        message_type: messages,
        syntax: Some("proto3".into()),
        ..FileDescriptorProto::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.into()), field, ..DescriptorProto::default() }
}

fn field(number: i32, name: &str, kind: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        ..FieldDescriptorProto::default()
    }
}

fn repeated(field: FieldDescriptorProto) -> FieldDescriptorProto {
    FieldDescriptorProto { label: Some(Label::Repeated.into()), ..field }
}

fn of_type(field: FieldDescriptorProto, name: &str) -> FieldDescriptorProto {
    FieldDescriptorProto { type_name: Some(name.into()), ..field }
}

fn enumeration(name: &str, values: &[(&str, i32)]) -> EnumDescriptorProto {
    let value = |&(name, number): &(&str, i32)| EnumValueDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        ..EnumValueDescriptorProto::default()
    };
    let value = values.iter().map(value).collect();
    EnumDescriptorProto { name: Some(name.into()), value, ..EnumDescriptorProto::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that has only these descriptors understands what the service sends.
    #[test]
    fn the_numbers_of_fields_are_those_of_the_protocol() {
        use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
            DescriptorStatus, RateLimit,
        };
        use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
        use envoy_types::pb::google::protobuf::value::Kind;
        use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
        use prost::Message;

        let pool = prost_reflect::DescriptorPool::from_file_descriptor_set(descriptors()).unwrap();
        let dynamic = |name: &str, bytes: &[u8]| {
            let descriptor =
                pool.get_message_by_name(&format!("envoy.service.ratelimit.v3.{name}"));
            prost_reflect::DynamicMessage::decode(descriptor.unwrap(), bytes).unwrap().to_string()
        };
        let limit = RateLimit { name: "n".into(), requests_per_unit: 5, unit: 7 };
        let status = DescriptorStatus {
            code: 2,
            current_limit: Some(limit),
            limit_remaining: 3,
            ..DescriptorStatus::default()
        };
        let values = [Kind::NumberValue(1.0), Kind::BoolValue(true), Kind::StringValue("s".into())];
        let values = values.map(|kind| Value { kind: Some(kind) }).into();
        let list = Value { kind: Some(Kind::ListValue(ListValue { values })) };
        let response = RateLimitResponse {
            overall_code: 1,
            statuses: vec![status],
            dynamic_metadata: Some(Struct { fields: [("m".into(), list)].into() }),
            ..RateLimitResponse::default()
        };
        assert_eq!(
            dynamic("RateLimitResponse", &response.encode_to_vec()),
            "overall_code:OK,statuses:[{code:OVER_LIMIT,current_limit\
             {requests_per_unit:5,unit:WEEK,name:\"n\"},limit_remaining:3}],dynamic_metadata\
             {fields:[{key:\"m\",value{list_value{values:[{number_value:1.0},{bool_value:true},\
             {string_value:\"s\"}]}}}]}"
        );
        let request = RateLimitRequest { domain: "d".into(), hits_addend: 4, ..Default::default() };
        assert_eq!(
            dynamic("RateLimitRequest", &request.encode_to_vec()),
            "domain:\"d\",hits_addend:4"
        );
    }
}
