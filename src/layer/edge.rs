//! Between a request and a verdict: over HTTP with headers and responses, elsewhere with errors.

use std::mem;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};

use super::fields::Told;
use super::mode::{Errors, Respond};
use super::notes::Notes;
use super::{RateLimitLayer, fields};
use crate::{Decision, Error, ErrorKind, Limiter, Refusal};

pub(super) trait Edge<Req> {
    /// What the hooks see of a request.
    type Seen;
    type Rest;
    /// What is kept of a request that passes, until the service has answered.
    type Ticket;
    /// The answer to a request that may not pass.
    type Rejection;

    fn apart(request: Req) -> (Self::Seen, Self::Rest);
    fn whole(seen: Self::Seen, rest: Self::Rest) -> Req;

    /// The limiter of requests that have no plan of their own.
    fn limiter(&self) -> &Limiter;
    fn admit(&self, decision: &Decision, limiter: &Limiter, seen: &mut Self::Seen) -> Self::Ticket;
    fn deny(&self, decision: &Decision, limiter: &Limiter, seen: &Self::Seen) -> Self::Rejection;
    fn refuse(&self, refusal: &Refusal) -> Self::Rejection;
    /// The store did not answer, and the failure mode lets nobody pass.
    fn fail(&self, error: &Error) -> Self::Rejection;
}

impl<K, M: Respond, B> Edge<Request<B>> for RateLimitLayer<K, Parts, M> {
    type Seen = Parts;
    type Rest = B;
    type Ticket = Told;
    type Rejection = Response<Bytes>;

    #[inline]
    fn apart(request: Request<B>) -> (Parts, B) {
        request.into_parts()
    }

    #[inline]
    fn whole(parts: Parts, body: B) -> Request<B> {
        Request::from_parts(parts, body)
    }

    fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    #[inline]
    fn admit(&self, decision: &Decision, limiter: &Limiter, parts: &mut Parts) -> Told {
        parts.extensions.insert(*decision);
        Notes::of(limiter).fields.tell(self.headers, decision)
    }

    fn deny(&self, decision: &Decision, limiter: &Limiter, parts: &Parts) -> Response<Bytes> {
        let notes = Notes::of(limiter);
        let (mut response, own) = match &self.denied_response {
            None => (M::denied(decision, notes), None),
            Some(denied) => {
                let mut response = denied(decision, parts);
                let own = mem::take(response.headers_mut());
                (response, Some(own))
            }
        };
        let headers = response.headers_mut();
        notes.fields.tell(self.headers, decision).write(headers);
        fields::write_wait(decision, headers);
        // What a response of the user says itself stands.
        headers.extend(own.into_iter().flatten());
        response
    }

    fn refuse(&self, refusal: &Refusal) -> Response<Bytes> {
        M::refused(refusal)
    }

    fn fail(&self, error: &Error) -> Response<Bytes> {
        M::unavailable(error)
    }
}

impl<K, R> Edge<R> for RateLimitLayer<K, R, Errors> {
    type Seen = R;
    type Rest = ();
    type Ticket = ();
    type Rejection = Error;

    fn apart(request: R) -> (R, ()) {
        (request, ())
    }

    fn whole(request: R, (): ()) -> R {
        request
    }

    fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    fn admit(&self, _: &Decision, _: &Limiter, _: &mut R) {}

    fn deny(&self, decision: &Decision, _: &Limiter, _: &R) -> Error {
        Error::denied(*decision)
    }

    fn refuse(&self, refusal: &Refusal) -> Error {
        Error::new(ErrorKind::Refused, refusal.reason().to_owned())
    }

    fn fail(&self, error: &Error) -> Error {
        error.clone()
    }
}
