//! Values that are not UTF-8. Envoy sends the bytes of a header as they are, and a request that fails
//! passes all limits, so decoding must not fail because of them.

use std::ascii;

use bytes::{Buf, Bytes};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

/// Decodes requests whatever the bytes of their texts.
#[derive(Clone, Copy, Default)]
pub(super) struct RateLimitCodec;

pub(super) struct RequestDecoder;

impl Codec for RateLimitCodec {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = RequestDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<RateLimitResponse, RateLimitRequest>::default().encoder()
    }

    fn decoder(&mut self) -> RequestDecoder {
        RequestDecoder
    }
}

impl Decoder for RequestDecoder {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        let message = source.copy_to_bytes(source.remaining());
        RateLimitRequest::decode(message.clone())
            .or_else(|_| OfBytes::decode(message).map(RateLimitRequest::from))
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
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
        Self { domain: text(&domain), descriptors, hits_addend }
    }
}

impl From<DescriptorOfBytes> for RateLimitDescriptor {
    fn from(descriptor: DescriptorOfBytes) -> Self {
        let DescriptorOfBytes { entries, limit, hits_addend, is_negative_hits } = descriptor;
        let entry = |EntryOfBytes { key, value }| Entry { key: text(&key), value: text(&value) };
        let entries = entries.into_iter().map(entry).collect();
        Self { entries, limit, hits_addend, is_negative_hits }
    }
}

/// With `\xe9` for a byte that is not UTF-8. A value that has this text already is taken for the same.
fn text(bytes: &[u8]) -> String {
    bytes.utf8_chunks().fold(String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid().iter();
        text.extend(invalid.flat_map(|byte| ascii::escape_default(*byte)).map(char::from));
        text
    })
}
