//! The JSON body of a request.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::response::Response;
use serde::de::DeserializeOwned;

use super::problem;

/// Like [`Json`], with problem details for a body that is not what is expected.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let body = Json::from_request(request, state).await;
        body.map(|Json(body)| Self(body))
            .map_err(|rejection: JsonRejection| problem(rejection.status(), &rejection.body_text()))
    }
}
