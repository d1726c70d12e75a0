use http::request::Parts;

use super::{KeyResolver, Resolution};

/// Uses the path of the request's URI as the key, as the layer sees it.
///
/// The path is not decoded or normalized. The method and the query are not part of the key. Inside
/// axum's `Router::nest` the path lacks the prefix of the nested router.
///
/// # Security
/// The client chooses the path, and every path that it invents has a full bucket: `/search`,
/// `/search/` and `/%73earch` are three keys. On its own, it limits all clients of a path
/// together. Prefer `MatchedPath`, or combine it with the client's key in a tuple.
///
/// # Examples
/// ```
/// use fleetlimit::resolve::Path;
/// use fleetlimit::{KeyResolver, Resolution};
///
/// let (parts, ()) = http::Request::get("https://example.com/search?q=1").body(())?.into_parts();
/// assert_eq!(Path.resolve(&parts), Resolution::Key("/search".into()));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path;

impl KeyResolver for Path {
    fn resolve(&self, parts: &Parts) -> Resolution {
        Resolution::Key(parts.uri.path().into())
    }
}

/// Uses the route that axum matched as the key: `/users/{id}` for any id.
///
/// There are as many keys as routes. The method is not part of the key.
///
/// # Requests without a route
/// axum also runs the layers of `Router::layer` for its fallback, where no route matched. Then
/// there is no key, and the request is answered with 404. To keep your own fallback, add the layer
/// with `Router::route_layer`, which does not run for the fallback, or use another key with
/// `MatchedPath.or(Global)`, or let the request pass with `MatchedPath.or_skip()`. axum also
/// provides no route inside `nest_service`, and to a layer around the whole `Router`.
///
/// # Examples
/// A bucket per client and route:
/// ```
/// use fleetlimit::resolve::{Global, MatchedPath, PeerIp};
/// # fn check(_: impl fleetlimit::KeyResolver) {}
///
/// let resolver = (PeerIp::new(), MatchedPath);
/// # check(resolver);
///
/// // Requests that match no route share one more key per client.
/// use fleetlimit::KeyResolver;
/// let resolver = (PeerIp::new(), MatchedPath.or(Global));
/// # check(resolver);
/// ```
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchedPath;

#[cfg(feature = "axum")]
impl KeyResolver for MatchedPath {
    fn resolve(&self, parts: &Parts) -> Resolution {
        match parts.extensions.get::<axum::extract::MatchedPath>() {
            Some(path) => Resolution::Key(path.as_str().into()),
            None => Resolution::Missing(super::Rejection::not_found("").with_advice(
                "axum matched no route for the request, which is normal for unknown paths; if it \
                 happens for all requests, move the rate limit layer inside the router, or use \
                 `MatchedPath.or(...)`",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Uri;

    #[test]
    fn different_paths_have_different_keys() {
        for (uri, path) in [("/a%2Fb?c", "/a%2Fb"), ("//a/../b/", "//a/../b/"), ("*", "*")] {
            let mut parts = http::Request::new(()).into_parts().0;
            parts.uri = Uri::from_static(uri);
            assert_eq!(Path.resolve(&parts), Resolution::Key(path.into()));
        }
    }

    #[cfg(feature = "axum")]
    mod matched {
        use super::*;
        use axum::Router;
        use axum::body::{Body, to_bytes};
        use axum::extract::Request;
        use axum::middleware::from_fn;
        use axum::routing::get;
        use tower::ServiceExt;

        fn router() -> Router {
            Router::new()
                .route("/users/{id}", get(async || "user"))
                .nest("/api", Router::new().route("/items/{id}", get(async || "item")))
                .nest_service("/files", get(async || "file"))
        }

        // Responds with the resolution.
        async fn resolved(router: Router, path: &'static str) -> String {
            let app = router.layer(from_fn(async |request: Request, _| {
                format!("{:?}", MatchedPath.resolve(&request.into_parts().0))
            }));
            let request = Request::get(path).body(Body::empty()).unwrap();
            let body = app.oneshot(request).await.unwrap().into_body();
            String::from_utf8(to_bytes(body, 1024).await.unwrap().to_vec()).unwrap()
        }

        #[tokio::test]
        async fn invented_paths_share_the_bucket_of_their_route() {
            assert_eq!(resolved(router(), "/users/1").await, r#"Key(Key("/users/{id}"))"#);
            assert_eq!(resolved(router(), "/users/%32?x").await, r#"Key(Key("/users/{id}"))"#);
            assert_eq!(resolved(router(), "/api/items/1").await, r#"Key(Key("/api/items/{id}"))"#);
        }

        #[tokio::test]
        async fn a_request_without_a_route_is_404() {
            for path in ["/nowhere", "/api/nowhere", "/files/a"] {
                let answer = resolved(router(), path).await;
                assert!(answer.starts_with("Missing(Rejection { status: 404"), "{path}: {answer}");
            }
        }
    }
}
