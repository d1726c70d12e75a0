//! Values that are not UTF-8. Envoy sends the bytes of a header as they are, and a request that fails
//! passes all limits, so decoding must not fail because of them.

use std::ascii;
use std::borrow::Cow;

use bytes::Bytes;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message;
use tonic::Status;

/// Decodes a request whatever the bytes of its texts.
///
/// # Errors
///
/// If it is not a request.
pub(super) fn decode(message: Bytes) -> Result<RateLimitRequest, Status> {
    RateLimitRequest::decode(message.clone())
        .or_else(|_| OfBytes::decode(message).map(RateLimitRequest::from))
        .map_err(|error| Status::internal(error.to_string()))
}

/// A request whose texts can be any bytes. On the wire there is no difference.
#[derive(Clone, PartialEq, Message)]
struct OfBytes {
    #[prost(bytes = "bytes", tag = "1")]
    domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<DescriptorOfBytes>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorOfBytes {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<EntryOfBytes>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
struct EntryOfBytes {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

impl From<OfBytes> for RateLimitRequest {
    fn from(request: OfBytes) -> Self {
        let OfBytes { domain, descriptors, hits_addend } = request;
        let descriptors = descriptors.into_iter().map(Into::into).collect();
        Self { domain: text(&domain).into(), descriptors, hits_addend }
    }
}

impl From<DescriptorOfBytes> for RateLimitDescriptor {
    fn from(descriptor: DescriptorOfBytes) -> Self {
        let DescriptorOfBytes { entries, limit, hits_addend, is_negative_hits } = descriptor;
        let entry = |EntryOfBytes { key, value }| Entry {
            key: text(&key).into(),
            value: text(&value).into(),
        };
        let entries = entries.into_iter().map(entry).collect();
        Self { entries, limit, hits_addend, is_negative_hits }
    }
}

/// Returns the text, with `\xe9` for a byte that is not UTF-8. A value that has this text already is taken for the
/// same.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.into();
    }
    let escaped = bytes.utf8_chunks().fold(String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid().iter();
        text.extend(invalid.flat_map(|byte| ascii::escape_default(*byte)).map(char::from));
        text
    });
    escaped.into()
}
