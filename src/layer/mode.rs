use bytes::Bytes;
use http::Response;

use super::notes::Notes;
use super::{grpc, problem};
use crate::{Decision, Error, Refusal};

/// Answers as an HTTP service does.
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// Answers as a gRPC service does.
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

/// Answers with errors of the service's own type.
#[derive(Clone, Copy, Debug)]
pub struct Errors;

/// How a request that may not pass is answered over HTTP.
pub trait Respond: sealed::Sealed {
    #[doc(hidden)]
    fn denied(decision: &Decision, notes: &Notes) -> Response<Bytes>;
    #[doc(hidden)]
    fn refused(refusal: &Refusal) -> Response<Bytes>;
    #[doc(hidden)]
    fn unavailable(error: &Error) -> Response<Bytes>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Http {}
    impl Sealed for super::Grpc {}
}

impl Respond for Http {
    fn denied(decision: &Decision, notes: &Notes) -> Response<Bytes> {
        notes.problems.denied(decision)
    }

    fn refused(refusal: &Refusal) -> Response<Bytes> {
        problem::refused(refusal)
    }

    fn unavailable(_: &Error) -> Response<Bytes> {
        problem::unavailable()
    }
}

impl Respond for Grpc {
    fn denied(decision: &Decision, _: &Notes) -> Response<Bytes> {
        grpc::denied(decision)
    }

    fn refused(refusal: &Refusal) -> Response<Bytes> {
        grpc::refused(refusal)
    }

    fn unavailable(_: &Error) -> Response<Bytes> {
        grpc::unavailable()
    }
}
