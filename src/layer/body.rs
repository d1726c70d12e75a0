//! The body of a response: that of the service, whose bytes may be counted, or one made by the layer.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use pin_project_lite::pin_project;

use super::settlement::Meter;
use crate::error::BoxError;

pin_project! {
    /// The body of a response: the service's, or that of a response made by the layer. It is not
    /// `Sync`, because custom bodies need not be.
    pub struct ResponseBody<B> {
        #[pin]
        kind: BodyKind<B>,
        meter: Option<Box<Meter>>,
    }
}

pin_project! {
    #[project = BodyKindProj]
    enum BodyKind<B> {
        Service { #[pin] body: B },
        Layer { #[pin] body: Full<Bytes> },
        Custom { #[pin] body: UnsyncBoxBody<Bytes, BoxError> },
    }
}

/// The body of a response made by the layer.
pub(super) enum ErrorBody {
    Full(Bytes),
    Boxed(UnsyncBoxBody<Bytes, BoxError>),
}

impl ErrorBody {
    pub(super) fn boxed<B>(body: B) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self::Boxed(body.map_err(Into::into).boxed_unsync())
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn service(body: B, meter: Option<Box<Meter>>) -> Self {
        Self { kind: BodyKind::Service { body }, meter }
    }
}

impl<B> From<ErrorBody> for ResponseBody<B> {
    fn from(body: ErrorBody) -> Self {
        let kind = match body {
            ErrorBody::Full(bytes) => BodyKind::Layer { body: Full::new(bytes) },
            ErrorBody::Boxed(body) => BodyKind::Custom { body },
        };
        Self { kind, meter: None }
    }
}

/// An empty body.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self { kind: BodyKind::Layer { body: Full::default() }, meter: None }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        match this.kind.project() {
            BodyKindProj::Service { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                if let (Some(meter), Some(Ok(frame))) = (this.meter.as_mut(), &frame) {
                    meter.add(frame.data_ref().map_or(0, Bytes::len));
                }
                // At its end, and not only when the body is dropped.
                if this.meter.is_some() && (frame.is_none() || body.is_end_stream()) {
                    *this.meter = None;
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            BodyKindProj::Layer { body } => body.poll_frame(cx).map_err(|never| match never {}),
            BodyKindProj::Custom { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Service { body } => body.is_end_stream(),
            BodyKind::Layer { body } => body.is_end_stream(),
            BodyKind::Custom { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Service { body } => body.size_hint(),
            BodyKind::Layer { body } => body.size_hint(),
            BodyKind::Custom { body } => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made_by = match &self.kind {
            BodyKind::Service { .. } => "service",
            BodyKind::Layer { .. } | BodyKind::Custom { .. } => "layer",
        };
        f.debug_tuple("ResponseBody").field(&made_by).finish()
    }
}
