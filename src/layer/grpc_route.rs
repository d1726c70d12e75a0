//! Recognizes the requests that tonic serves, which get gRPC responses. For others that takes an option.
//!
//! The method and the content type of a request do not suffice, because the client chooses them: on an HTTP
//! route it could turn the status of its denials into a 200, which logs take for success. tonic is recognized
//! by what the application has done: the route that axum has matched has the form that tonic gives it or, on
//! tonic's server, the connection info is there and the path names a service. So one layer serves HTTP and
//! gRPC on the same port. → `tests/it/traps.rs`

use http::request::Parts;

/// True if tonic serves the request, as far as that can be known.
pub(super) fn is_served_by_tonic(request: &Parts) -> bool {
    match matched_route(request) {
        Some(route) => route.strip_suffix("/{*rest}").is_some_and(is_service),
        None => is_from_tonic_server(request) && has_service_path(request.uri.path()),
    }
}

/// The route in an axum router. tonic adds `/package.Service/{*rest}` for each service.
#[cfg(feature = "axum")]
fn matched_route(request: &Parts) -> Option<&str> {
    request.extensions.get().map(axum::extract::MatchedPath::as_str)
}

#[cfg(not(feature = "axum"))]
fn matched_route(_: &Parts) -> Option<&str> {
    None
}

/// A layer of tonic's server sees a request before it is routed, and that server may have other routes.
#[cfg(feature = "tonic")]
fn is_from_tonic_server(request: &Parts) -> bool {
    use tonic::transport::server;

    let extensions = &request.extensions;
    #[cfg(unix)]
    if extensions.get::<server::UdsConnectInfo>().is_some() {
        return true;
    }
    extensions.get::<server::TcpConnectInfo>().is_some()
}

#[cfg(not(feature = "tonic"))]
fn is_from_tonic_server(_: &Parts) -> bool {
    false
}

/// `/package.Service/Method`
fn has_service_path(path: &str) -> bool {
    path.rsplit_once('/').is_some_and(|(service, _)| is_service(service))
}

/// `/package.Service`, which no path of an HTTP API looks like.
fn is_service(path: &str) -> bool {
    let Some((package, service)) = path.strip_prefix('/').and_then(|name| name.rsplit_once('.'))
    else {
        return false;
    };
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    package.split('.').all(is_name)
        && is_name(service)
        && service.starts_with(|first: char| first.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_of_an_http_api_is_taken_for_a_service() {
        for service in ["/grpc.health.v1.Health", "/helloworld.Greeter", "/a.b_c.D2"] {
            assert!(is_service(service), "{service}");
            assert!(has_service_path(&format!("{service}/Method")), "{service}");
        }
        for other in [
            "",
            "/",
            "/login",
            "/api/login",
            "/v1.0",
            "/v1.0/Login",
            "/index.html",
            "/files/a.B",
            "/.Service",
            "/a..Service",
            "/a.Service/b",
            "a.Service",
            "/a.service",
            "/{x}.Service",
            "/a.Service%2f",
            "/Service",
        ] {
            assert!(!is_service(other), "{other}");
        }
        assert!(!has_service_path("/login") && !has_service_path("/helloworld.Greeter"));
        assert!(!has_service_path("/helloworld.Greeter/a/b"));
    }
}
