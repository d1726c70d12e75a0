//! Reads the rest of a request before the layer responds itself.
//!
//! Over HTTP/1 the server would otherwise close the connection, and a client that is still sending would lose
//! the response. To respond first and read then, as nginx does, would need a task for each such request, and
//! bodies that can be moved to it. A denied client can wait. Bodies must be `http_body::Body` for this, which
//! `Http<NoDrain>` does not ask for: without a type parameter, services with other bodies could not be
//! limited. → `tests/it/uploads.rs`

use std::fmt;
use std::future::{Future, Ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderValue, Version};
use http_body::Body;
use pin_project_lite::pin_project;

use crate::timer::{self, Sleep};

/// The most that is read and dropped of a request's body before an early response: up to 64 KiB, for up
/// to a second, by default.
///
/// Over HTTP/1, a server that responds before it has read the request closes the connection. The client
/// may still be sending then, and loses the response: a proxy such as nginx reports 502 instead of 429,
/// and after a few of these takes the server for broken. A [`RateLimitLayer`](crate::RateLimitLayer)
/// does this for its own responses: see [`RateLimitLayer::drain`](crate::RateLimitLayer::drain). Handlers
/// that check a limit before they read the body can use [`read`](Self::read).
///
/// Nothing is read if the request
///
/// - uses HTTP/2 or HTTP/3, where a stream ends without the connection;
/// - has no body;
/// - announces in `Content-Length` more than may be read, because the connection is closed in any case;
/// - has the header `Expect: 100-continue`, because the client waits before it sends the body, and need not
///   send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    max_bytes: u64,
    longest: Duration,
}

/// The setting of a layer that leaves request bodies unread: see [`RateLimitLayer::without_drain`](crate::RateLimitLayer::without_drain).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoDrain;

impl Default for Drain {
    fn default() -> Self {
        Self::up_to(64 * 1_024, Duration::from_secs(1))
    }
}

impl Drain {
    /// Reads up to this many bytes, for up to this long. With 0 bytes nothing is read. With a duration of
    /// 0 only what has already arrived is.
    pub const fn up_to(max_bytes: u64, longest: Duration) -> Self {
        Self { max_bytes, longest }
    }

    /// Reads and drops the body of a request, if that is needed. Returns when the body has ended or
    /// failed, or at one of the limits.
    ///
    /// ```
    /// use axum::body::Body;
    /// use axum::extract::{Request, State};
    /// use axum::response::IntoResponse;
    /// use fleetlimit::Limiter;
    /// use fleetlimit::layer::Drain;
    ///
    /// async fn upload(
    ///     State(limiter): State<Limiter>,
    ///     request: Request,
    /// ) -> Result<impl IntoResponse, fleetlimit::Error> {
    ///     let (parts, body) = request.into_parts();
    ///     let decision = limiter.check("uploads").await?;
    ///     if decision.is_denied() {
    ///         Drain::default().read(&parts, body).await;
    ///     }
    ///     decision.ensure_allowed()?;
    ///     // Read the body.
    ///     Ok("stored")
    /// }
    /// # let _: axum::Router<Limiter> = axum::Router::new().route("/", axum::routing::post(upload));
    /// ```
    pub async fn read<B: Body>(self, request: &Parts, body: B) {
        if self.is_needed(request, &body) {
            self.drained(body).await;
        }
    }

    fn is_needed<B: Body>(self, request: &Parts, body: &B) -> bool {
        !body.is_end_stream()
            && request.version <= Version::HTTP_11
            && body.size_hint().lower() <= self.max_bytes
            && self.max_bytes > 0
            && !waits_to_be_asked(request)
    }

    fn drained<B: Body>(self, body: B) -> Drained<B> {
        Drained { body, left: self.max_bytes, longest: self.longest, timer: None }
    }
}

/// True if the client waits before it sends the body. Others who say so, but do not wait, would lose the response.
fn waits_to_be_asked(request: &Parts) -> bool {
    let is_asking =
        |expected: &HeaderValue| expected.as_bytes().eq_ignore_ascii_case(b"100-continue");
    request.version == Version::HTTP_11 && request.headers.get(EXPECT).is_some_and(is_asking)
}

/// A setting for request bodies of the type `B` that are unread when the layer responds: [`Drain`] for
/// any [`http_body::Body`], or [`NoDrain`] for any type.
///
/// If a body is not an `http_body::Body`, call
/// [`RateLimitLayer::without_drain`](crate::RateLimitLayer::without_drain).
pub trait DrainBody<B>: sealed::Sealed {
    #[doc(hidden)]
    type Drained: Future<Output = ()>;

    /// Takes the request only if its body has to be read.
    #[doc(hidden)]
    fn drain_body(&self, request: &mut Option<(Parts, B)>) -> Option<Self::Drained>;
}

impl<B: Body> DrainBody<B> for Drain {
    type Drained = Drained<B>;

    #[inline]
    fn drain_body(&self, request: &mut Option<(Parts, B)>) -> Option<Drained<B>> {
        let (head, body) = request.as_ref()?;
        if !self.is_needed(head, body) {
            return None;
        }
        request.take().map(|(_, body)| self.drained(body))
    }
}

impl<B> DrainBody<B> for NoDrain {
    type Drained = Ready<()>;

    #[inline]
    fn drain_body(&self, _: &mut Option<(Parts, B)>) -> Option<Ready<()>> {
        None
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Drain {}
    impl Sealed for super::NoDrain {}
}

pin_project! {
    /// The future of [`Drain`], which ends when the body has ended or failed, or at one of the limits.
    pub struct Drained<B> {
        #[pin]
        body: B,
        left: u64,
        longest: Duration,
        // Only once the body keeps us waiting. Not Tokio's, which a runtime may lack.
        timer: Option<Sleep>,
    }
}

impl<B: Body> Future for Drained<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while !this.body.is_end_stream() {
            match this.body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Frames without data count too, so that there is an end to them.
                    let bytes = frame.data_ref().map_or(0, Buf::remaining).max(1);
                    match this.left.checked_sub(bytes as u64) {
                        Some(left) => *this.left = left,
                        None => return Poll::Ready(()),
                    }
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => {
                    let timer = this.timer.get_or_insert_with(|| timer::sleep(*this.longest));
                    return Pin::new(timer).poll(cx);
                }
            }
        }
        Poll::Ready(())
    }
}

impl<B> fmt::Debug for Drained<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drained").finish_non_exhaustive()
    }
}
