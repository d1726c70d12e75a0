//! Decisions as responses, for checks outside of a layer.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Response, StatusCode};

use super::headers::{QuotaFields, RateLimitHeaders, insert_retry_after};
use super::retry_jitter::RetryJitter;
use super::{HeaderStyle, no_store, problem};
use crate::{Decision, Error, ErrorKind};

impl Decision {
    /// The headers that a layer adds for this decision: the rate limit headers, and `Retry-After` and
    /// `Cache-Control: no-store` if it is denied. None if the limit is
    /// [not enforced](Self::is_enforced) for the key.
    ///
    /// ```
    /// use fleetlimit::layer::HeaderStyle;
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(2))?;
    /// let headers = limiter.check("user:7").await?.headers(HeaderStyle::Ietf);
    /// assert_eq!(headers["ratelimit"], r#""default";r=1;t=30"#);
    /// assert_eq!(headers["ratelimit-policy"], r#""default";q=2;w=60"#);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn headers(&self, style: HeaderStyle) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let style = if self.is_enforced { style } else { HeaderStyle::None };
        RateLimitHeaders::new(style, self, &QuotaFields::of(self)).append_to(&mut headers);
        insert_retry_after(self, &mut headers);
        if self.is_denied() {
            no_store::forbid(&mut headers);
        }
        headers
    }

    /// The response that a layer sends for this decision: 429 with problem details if it is denied,
    /// and an empty 200 if it is allowed, with the headers of [`HeaderStyle::Ietf`]. Unlike a layer's,
    /// its `Retry-After` has no [jitter](crate::RateLimitLayer::retry_jitter).
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        let mut response = if self.is_allowed() {
            Response::new(Bytes::new())
        } else {
            problem::denied(problem::denied_body(self))
        };
        response.headers_mut().extend(self.headers(HeaderStyle::Ietf));
        response
    }
}

impl Error {
    /// A response for this error, which reveals nothing about the server: like a layer's for a
    /// denial (429) or a failed store (503), and an empty 400 for a rejected request.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        match (self.kind(), self.decision()) {
            (ErrorKind::Denied, Some(decision)) => decision.response(),
            (ErrorKind::Rejected, _) => {
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = StatusCode::BAD_REQUEST;
                no_store::forbid(response.headers_mut());
                response
            }
            (ErrorKind::UnknownQuota, _) => problem::unavailable(),
            _ => {
                let mut response = problem::unavailable();
                let seconds = RetryJitter::default().unavailable();
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
                response
            }
        }
    }
}

#[cfg(feature = "axum")]
mod axum_impls {
    use axum::body::Body;
    use axum::response::{IntoResponse, IntoResponseParts, Response, ResponseParts};

    use super::*;

    /// The response of [`Decision::response`].
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    impl IntoResponse for Decision {
        fn into_response(self) -> Response {
            self.response().map(Body::from)
        }
    }

    /// Adds the rate limit headers of [`HeaderStyle::Ietf`] to a response, as a layer does to that of its
    /// service. The status stays as it is, and a denial gets neither `Retry-After` nor
    /// `Cache-Control: no-store`: for a denial with a body of your own, use
    /// [`Decision::headers`], which has them.
    ///
    /// ```
    /// use axum::http::StatusCode;
    /// use axum::response::{IntoResponse, Response};
    /// use fleetlimit::layer::HeaderStyle;
    /// use fleetlimit::{Error, Limiter};
    ///
    /// async fn handler(limiter: &Limiter) -> Result<Response, Error> {
    ///     let decision = limiter.check("user:7").await?;
    ///     if decision.is_denied() {
    ///         let headers = decision.headers(HeaderStyle::Ietf);
    ///         return Ok((StatusCode::TOO_MANY_REQUESTS, headers, "try again later").into_response());
    ///     }
    ///     Ok((decision, "hello").into_response())
    /// }
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use fleetlimit::{MemoryStore, Quota};
    /// # let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1))?;
    /// # assert_eq!(handler(&limiter).await?.headers()["ratelimit"], r#""default";r=0;t=60"#);
    /// # let denied = handler(&limiter).await?;
    /// # assert_eq!(denied.status(), 429);
    /// # assert_eq!(denied.headers()["retry-after"], "60");
    /// # assert_eq!(denied.headers()["cache-control"], "no-store");
    /// # Ok(()) }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    impl IntoResponseParts for Decision {
        type Error = std::convert::Infallible;

        fn into_response_parts(
            self,
            mut parts: ResponseParts,
        ) -> Result<ResponseParts, Self::Error> {
            let style = if self.is_enforced { HeaderStyle::Ietf } else { HeaderStyle::None };
            RateLimitHeaders::new(style, &self, &QuotaFields::of(&self))
                .insert_into(parts.headers_mut());
            Ok(parts)
        }
    }

    /// The response of [`Error::response`].
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    impl IntoResponse for Error {
        fn into_response(self) -> Response {
            self.response().map(Body::from)
        }
    }
}
