//! A client of HTTP for the exporters, whose threads have no runtime of their own.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::HttpError;
use tokio::runtime::Handle;

/// The most bytes of a response.
const MOST_BYTES: usize = 1 << 20;

/// A client that sends requests in the runtime in which it was created.
#[derive(Debug)]
pub(super) struct HttpClient {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Handle,
}

impl HttpClient {
    pub(super) fn new() -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, runtime: Handle::current() }
    }
}

#[tonic::async_trait]
impl opentelemetry_http::HttpClient for HttpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.client.request(request.map(Full::new));
        let response = self.runtime.spawn(async move {
            let (head, body) = response.await?.into_parts();
            let body = Limited::new(body, MOST_BYTES).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        });
        response.await?
    }
}
