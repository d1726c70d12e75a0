use http::request::Parts;

use super::{KeyResolver, Resolution};

/// Counts by the path of the request's URI, as the layer sees it.
///
/// Nothing is decoded or normalised, and the method and the query are not part of the key. Below
/// axum's `Router::nest` the path is without the nested router's prefix.
///
/// # Security
/// The client chooses the path. Every path that it invents is a bucket of its own, full at first:
/// `/search`, `/search/` and `/%73earch` are three. Alone this protects fixed routes from all
/// clients together, and no more; prefer `MatchedPath`, or join it with a key of the caller in
/// a tuple.
///
/// # Examples
/// ```
/// use tollgate::resolve::Path;
/// use tollgate::{KeyResolver, Resolution};
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

/// Counts by the route that axum matched: `/users/{id}`, whatever the id.
///
/// The number of buckets is the number of routes. The method is not part of the key.
///
/// # Requests without a route
/// Axum runs what was added with `Router::layer` for its fallback too, where no route matched: there
/// is no key then, and the request is answered with 404. To keep a fallback of your own, add the
/// layer with `Router::route_layer`, which leaves the fallback alone, or say what to count with
/// `MatchedPath.or(Global)`, or let it pass with `MatchedPath.or_exempt()`. Axum names no route for
/// `nest_service` either, nor for a layer around the whole `Router`.
///
/// # Examples
/// A quota for each client on each route:
/// ```
/// use tollgate::resolve::{Global, MatchedPath, PeerIp};
/// # fn check(_: impl tollgate::KeyResolver) {}
///
/// let resolver = (PeerIp::new(), MatchedPath);
/// # check(resolver);
///
/// // All that matches no route is one more route.
/// use tollgate::KeyResolver;
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
            None => Resolution::Missing(super::Refusal::new(
                http::StatusCode::NOT_FOUND,
                "no route matches the request, or its rate limit is outside of the router",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Uri;

    #[test]
    fn nothing_is_taken_for_something_else() {
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

        // Answers with the resolution instead of the response.
        async fn asked(router: Router, path: &'static str) -> String {
            let app = router.layer(from_fn(async |request: Request, _| {
                format!("{:?}", MatchedPath.resolve(&request.into_parts().0))
            }));
            let request = Request::get(path).body(Body::empty()).unwrap();
            let body = app.oneshot(request).await.unwrap().into_body();
            String::from_utf8(to_bytes(body, 1024).await.unwrap().to_vec()).unwrap()
        }

        #[tokio::test]
        async fn invented_paths_share_the_bucket_of_their_route() {
            assert_eq!(asked(router(), "/users/1").await, r#"Key(Key("/users/{id}"))"#);
            assert_eq!(asked(router(), "/users/%32?x").await, r#"Key(Key("/users/{id}"))"#);
            assert_eq!(asked(router(), "/api/items/1").await, r#"Key(Key("/api/items/{id}"))"#);
        }

        #[tokio::test]
        async fn a_request_without_a_route_is_404() {
            for path in ["/nowhere", "/api/nowhere", "/files/a"] {
                let answer = asked(router(), path).await;
                assert!(answer.starts_with("Missing(Refusal { status: 404"), "{path}: {answer}");
            }
        }
    }
}
