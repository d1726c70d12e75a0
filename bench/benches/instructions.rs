//! Instruction counts of the code that needs no Redis. They are the same in every run, so a
//! regression is visible on any machine. Limiters and services are warmed up before the count.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use fleetlimit::layer::HeaderStyle;
use fleetlimit::resolve::{ClientIp, Extension, Header, PeerIp};
use fleetlimit::{
    Decision, Key, KeyResolver, Limiter, MemoryStore, Policy, Quota, RateLimit, RateLimitLayer,
    Resolution,
};
use governor::middleware::StateInformationMiddleware;
use gungraun::prelude::*;
use http::request::Parts;
use http::{HeaderName, Request, Response};
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::{Governor, GovernorConfigBuilder};
use tower_governor::key_extractor::PeerIpKeyExtractor;

const ALLOW_ALL: Quota = Quota::per_second(1).burst(1_000);
/// The warm-up uses the only request.
const DENY: Quota = Quota::per_day(1);

#[derive(Clone, Copy)]
struct OkService;

impl Service<Request<Body>> for OkService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// The futures of a memory store are ready on the first poll.
fn poll_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the future is not ready"),
    }
}

fn limiter(quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), Policy::from(quota)).unwrap()
}

fn warm_limiter(quota: Quota) -> Limiter {
    let limiter = limiter(quota);
    for _ in 0..3 {
        let _ = poll_once(limiter.check(black_box("203.0.113.7"))).unwrap();
    }
    limiter
}

#[library_benchmark]
#[bench::allowed(warm_limiter(ALLOW_ALL))]
#[bench::denied(warm_limiter(DENY))]
fn memory_check(limiter: Limiter) -> (Limiter, Decision) {
    let decision = poll_once(limiter.check(black_box("203.0.113.7"))).unwrap();
    (limiter, decision)
}

fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo("203.0.113.7:4711".parse::<SocketAddr>().unwrap()));
    request
}

fn warm<S: Service<Request<Body>>>(mut service: S) -> (S, Request<Body>) {
    for _ in 0..3 {
        drop(poll_once(service.call(request())));
    }
    (service, request())
}

type Layered = RateLimit<OkService, PeerIp>;

fn layered(quota: Quota, style: HeaderStyle) -> (Layered, Request<Body>) {
    warm(RateLimitLayer::new(limiter(quota), PeerIp::new()).headers(style).layer(OkService))
}

#[library_benchmark]
#[bench::bare(warm(OkService))]
fn service((mut service, request): (OkService, Request<Body>)) -> Response<Body> {
    poll_once(service.call(black_box(request))).unwrap()
}

// Subtract `service` to get the cost of the layer: the resolver, the decision and the headers.
// Subtract `memory_allowed_no_headers` to get the cost of the headers.
#[library_benchmark]
#[bench::memory_allowed(layered(ALLOW_ALL, HeaderStyle::Ietf))]
#[bench::memory_allowed_x_headers(layered(ALLOW_ALL, HeaderStyle::XRateLimit))]
#[bench::memory_allowed_no_headers(layered(ALLOW_ALL, HeaderStyle::None))]
#[bench::memory_denied(layered(DENY, HeaderStyle::Ietf))]
fn service_in_layer(
    (mut service, request): (Layered, Request<Body>),
) -> (Layered, Response<fleetlimit::layer::ResponseBody<Body>>) {
    let response = poll_once(service.call(black_box(request))).unwrap();
    (service, response)
}

type Governed = Governor<PeerIpKeyExtractor, StateInformationMiddleware, OkService, Body>;

fn governor(seconds: u64, burst: u32) -> (Governed, Request<Body>) {
    let mut config = GovernorConfigBuilder::default();
    let config =
        config.period(Duration::from_secs(seconds)).burst_size(burst).use_headers().finish();
    warm(GovernorLayer::new(config.unwrap()).layer(OkService))
}

#[library_benchmark]
#[bench::allowed(governor(1, 1_000))]
#[bench::denied(governor(86_400, 1))]
fn service_in_tower_governor(
    (mut service, request): (Governed, Request<Body>),
) -> (Governed, Response<Body>) {
    let response = poll_once(service.call(black_box(request))).unwrap();
    (service, response)
}

fn parts(peer: &str) -> Parts {
    let request = Request::get("/").header("x-api-key", "0123456789abcdef0123456789abcdef");
    let request = request.header("x-forwarded-for", "192.0.2.1, 203.0.113.7");
    let mut parts = request.body(()).unwrap().into_parts().0;
    let peer = SocketAddr::new(peer.parse().unwrap(), 4711);
    parts.extensions.insert(ConnectInfo(peer));
    parts.extensions.insert(peer.ip());
    parts
}

fn resolve(resolver: &impl KeyResolver, parts: &Parts) -> Resolution {
    black_box(resolver).resolve(black_box(parts))
}

#[library_benchmark]
#[bench::v4(parts("203.0.113.7"))]
#[bench::v6(parts("2001:db8:1:2::3"))]
fn peer_ip(parts: Parts) -> (Parts, Resolution) {
    let key = resolve(&PeerIp::new(), &parts);
    (parts, key)
}

fn client_ip_behind(proxy: &str) -> (ClientIp, Parts) {
    (ClientIp::new(["10.0.0.0/8"]).unwrap(), parts(proxy))
}

#[library_benchmark]
#[bench::one_proxy(client_ip_behind("10.0.0.1"))]
#[bench::direct(client_ip_behind("203.0.113.7"))]
fn client_ip((resolver, parts): (ClientIp, Parts)) -> (ClientIp, Parts, Resolution) {
    let key = resolve(&resolver, &parts);
    (resolver, parts, key)
}

// Valgrind lacks the SHA instructions that the hash uses where the processor has them.
#[library_benchmark]
#[bench::value_of_32_bytes((Header::new(HeaderName::from_static("x-api-key")), parts("203.0.113.7")))]
fn header((resolver, parts): (Header, Parts)) -> (Header, Parts, Resolution) {
    let key = resolve(&resolver, &parts);
    (resolver, parts, key)
}

#[library_benchmark]
#[bench::address(parts("203.0.113.7"))]
fn extension(parts: Parts) -> (Parts, Resolution) {
    let key = resolve(&Extension::map(|address: &IpAddr| Key::from(*address)), &parts);
    (parts, key)
}

#[library_benchmark]
#[bench::two_keys([Key::from("203.0.113.7"), Key::from("/search")])]
fn key_join(parts: [Key; 2]) -> Key {
    Key::join(black_box(&parts))
}

// A key longer than 128 bytes is stored as a digest.
#[library_benchmark]
#[bench::short("user:4711".to_owned())]
#[bench::long("0123456789abcdef".repeat(9))]
fn key_from(text: String) -> Key {
    Key::from(black_box(text.as_str()))
}

library_benchmark_group!(name = decision, benchmarks = [memory_check]);
library_benchmark_group!(
    name = middleware,
    benchmarks = [service, service_in_layer, service_in_tower_governor]
);
library_benchmark_group!(
    name = resolvers,
    benchmarks = [peer_ip, client_ip, header, extension, key_join, key_from]
);
main!(library_benchmark_groups = [decision, middleware, resolvers]);
