//! The rate limit service's only method. Not tonic's generated server, because what a client can make the process
//! hold is counted from the first bytes of a request to the last ones of its response.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as OverallCode;
use futures_util::stream;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prost::Message as _;
use tokio::sync::Semaphore;
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::{Code, Status};

use super::codec::decode;
use super::ratelimit::RateLimitService;
use super::wire::{PartCounts, has_entry};
use crate::held_bytes::{Charge, HeldBytes};
use crate::lists::Listed;
use crate::live::Active;
use crate::telemetry;
use crate::warnings::Cause;

/// The bytes before a message: a flag for compression, and its length.
const PREFIX: usize = 5;
/// The bytes of a message that takes long to decode, compared with a check.
const LARGE: usize = 16 * 1_024;

#[derive(Clone)]
pub(super) struct ShouldRateLimit {
    service: Arc<RateLimitService>,
    /// The most bytes of a request.
    most_bytes: usize,
    /// Large messages are decoded one at a time, so that other requests do not wait for all of them.
    large: Arc<Semaphore>,
}

/// The code with which a request ends. Gateways often let requests pass whose checks fail, so operators have to see
/// that, also if the gateway does not wait for the answer.
struct CountedCode(Code);

impl Drop for CountedCode {
    fn drop(&mut self) {
        if self.0 != Code::Ok {
            telemetry::grpc_error(self.0);
        }
    }
}

impl ShouldRateLimit {
    pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

    pub(super) fn new(service: RateLimitService, most_bytes: usize) -> Self {
        Self { service: Arc::new(service), most_bytes, large: Arc::new(Semaphore::new(1)) }
    }

    /// The rest of the request, such as its headers, is dropped before this is polled.
    pub(super) fn call(
        &self,
        request: Request,
        held: &HeldBytes,
    ) -> impl Future<Output = Response> + use<> {
        let (this, body, charge) = (self.clone(), request.into_body(), held.charge());
        async move {
            let mut code = CountedCode(Code::Cancelled);
            match this.answer(body, charge).await {
                Ok(message) => {
                    code.0 = Code::Ok;
                    response(message)
                }
                Err(status) => {
                    code.0 = status.code();
                    status.into_http()
                }
            }
        }
    }

    /// Returns the response with its prefix.
    async fn answer(&self, body: Body, mut charge: Charge) -> Result<Bytes, Status> {
        let message = read(body, self.most_bytes, &mut charge).await?;
        let turn = match message.len() {
            LARGE.. => self.large.acquire().await.ok(),
            _ => None,
        };
        let active = self.service.active();
        let counts = PartCounts::of(&message);
        let request = is_within(counts, &active)
            .and_then(|()| charge.set(message.len() + counts.bytes()))
            .and_then(|()| decode(message.clone()))
            // Bytes that are not UTF-8 have become longer.
            .and_then(|request| {
                charge.set(request.encoded_len() + counts.bytes()).map(|()| request)
            });
        let response = match request {
            Ok(request) => {
                drop((message, turn));
                self.service.should_rate_limit(&active, &request).await?
            }
            Err(status) => denied(&active, &message).ok_or(status)?,
        };
        let message = with_prefix(&response)?;
        if charge.set(message.len()).is_ok() {
            return Ok(charge.keep(message));
        }
        // An error instead of a denial would let the request pass.
        let overall_code = response.overall_code;
        with_prefix(&RateLimitResponse { overall_code, ..RateLimitResponse::default() })
    }
}

/// Reads the only message.
async fn read(mut body: Body, most: usize, charge: &mut Charge) -> Result<Bytes, Status> {
    let mut bytes = BytesMut::new();
    let mut whole = None;
    while let Some(frame) = body.frame().await.transpose().map_err(cancelled)? {
        let Ok(data) = frame.into_data() else { continue };
        bytes.extend_from_slice(&data);
        if whole.is_none()
            && let Some(&[flag, a, b, c, d]) = bytes.first_chunk::<PREFIX>()
        {
            if flag != 0 {
                return Err(Status::unimplemented("compression is not supported"));
            }
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length > most {
                let message = format!("a request of {length} bytes, of at most {most}");
                return Err(Status::out_of_range(message));
            }
            charge.set(length)?;
            bytes.reserve((PREFIX + length).saturating_sub(bytes.len()));
            whole = Some(PREFIX + length);
        }
        if whole.is_some_and(|whole| bytes.len() > whole) {
            return Err(Status::internal("more than one message"));
        }
    }
    if whole != Some(bytes.len()) {
        return Err(Status::internal("the message is not complete"));
    }
    Ok(bytes.freeze().slice(PREFIX..))
}

/// The body of a request ends with an error if the client takes it back.
fn cancelled(error: axum::Error) -> Status {
    Status::cancelled(error.to_string())
}

/// Returns an error if the request has too many parts.
fn is_within(counts: PartCounts, active: &Active) -> Result<(), Status> {
    let limits = &active.settings.resource_limits;
    let numbers = [
        ("descriptors", counts.descriptors, limits.descriptors),
        ("entries", counts.most_entries, limits.entries),
    ];
    let Some((parts, many, most)) = numbers.into_iter().find(|(_, many, most)| many > most) else {
        return Ok(());
    };
    if let Some(count) = active.warnings.add(Cause::TooManyParts) {
        tracing::warn!(
            event = "too_many_parts",
            count,
            "a request has {many} {parts}, more than `resource_limits.{parts}`, so it is not checked: raise the limit"
        );
    }
    Err(Status::invalid_argument(format!("{many} {parts}, of at most {most}")))
}

/// A response for a request that is refused, and has an entry on the deny list. Gateways may let it pass otherwise.
/// It has no statuses, because there may be very many descriptors.
fn denied(active: &Active, message: &[u8]) -> Option<RateLimitResponse> {
    let is_denied =
        |key: &str, value: &str| active.lists.of_entry(key, value) == Some(Listed::Denied);
    if !has_entry(message, is_denied) {
        return None;
    }
    telemetry::overruled(Listed::Denied.list());
    let overall_code = OverallCode::OverLimit.into();
    Some(RateLimitResponse { overall_code, ..RateLimitResponse::default() })
}

fn with_prefix(response: &RateLimitResponse) -> Result<Bytes, Status> {
    let length = response.encoded_len();
    let prefix =
        u32::try_from(length).map_err(|_| Status::internal("the response is too large"))?;
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.push(0);
    bytes.extend(prefix.to_be_bytes());
    response.encode(&mut bytes).map_err(|error| Status::internal(error.to_string()))?;
    Ok(bytes.into())
}

fn response(message: Bytes) -> Response {
    let trailers =
        http::HeaderMap::from_iter([(Status::GRPC_STATUS, HeaderValue::from_static("0"))]);
    let frames =
        [Ok::<_, std::convert::Infallible>(Frame::data(message)), Ok(Frame::trailers(trailers))];
    let mut response = Response::new(Body::new(StreamBody::new(stream::iter(frames))));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}
