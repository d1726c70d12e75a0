//! nginx in front of the server, with the documented configuration.

use reqwest::{Client, StatusCode};

use crate::common::{Gateway, Server};

const SETTINGS: &str = "policies: { api: { requests: 3/h } }";

#[tokio::test]
async fn nginx_passes_on_what_is_admitted_and_answers_denials_with_429() {
    let server = Server::with_settings(SETTINGS);
    let nginx = Gateway::nginx(&server);
    let get = async || {
        // The client's own header does not count.
        let request = Client::new().get(nginx.url()).header("x-forwarded-for", "192.0.2.1");
        request.send().await.unwrap()
    };
    let header = |response: &reqwest::Response, name: &str| {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    for remaining in [2, 1, 0] {
        let response = get().await;
        assert_eq!(response.status(), StatusCode::OK);
        let field = header(&response, "ratelimit").unwrap();
        assert!(field.starts_with(&format!(r#""requests";r={remaining};t="#)), "{field}");
        assert_eq!(header(&response, "ratelimit-policy").unwrap(), r#""requests";q=3;w=3600"#);
        assert_eq!(response.text().await.unwrap(), "hello\n");
    }
    let denied = get().await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "retry-after").unwrap(), "1200");
    assert!(header(&denied, "ratelimit").unwrap().starts_with(r#""requests";r=0;t="#));
}

#[tokio::test]
async fn nginx_passes_requests_on_if_the_server_is_gone() {
    let mut server = Server::with_settings(SETTINGS);
    let nginx = Gateway::nginx(&server);
    server.kill();
    for _ in 0..5 {
        let response = Client::new().get(nginx.url()).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}
