//! Recipes for common tasks. Every example is compiled by the crate's tests, and most are run. Short examples omit
//! the code around them, such as the enclosing function.
//!
//! Start here:
//! - [Terms](#terms)
//! - [From memory to production](#from-memory-to-production), and
//!   [memory or Redis by configuration](#memory-or-redis-by-configuration)
//! - [Compile errors](#compile-errors) and what to do about them
//!
//! Keys:
//! - [Per-route limits](#per-route-limits), [health probes and CORS](#health-probes-and-cors), and
//!   [a finished router](#a-finished-router)
//! - [By API key](#by-api-key), and why an unauthenticated header limits nobody
//! - [By authenticated user](#by-authenticated-user)
//! - [Behind nginx or a CDN](#behind-nginx-or-a-cdn), and [uploads](#uploads)
//! - [Several keys](#several-keys): per user, per tenant, and for everyone
//!
//! Limits:
//! - [Plans from a database](#plans-from-a-database)
//! - [Cost](#cost)
//! - [Cost by response](#cost-by-response): failed logins, bytes sent
//! - [The tokens of a stream](#the-tokens-of-a-stream)
//! - [Requests in flight](#requests-in-flight)
//! - [Algorithms](#algorithms), and the most that each admits
//! - [Several quotas](#several-quotas)
//! - [Limits in a file](#limits-in-a-file), and changing them without a restart
//! - [Hot keys and distant servers](#hot-keys-and-distant-servers): checks without a round trip
//!
//! Responses:
//! - [A check in a handler](#a-check-in-a-handler), with the headers of a layer
//! - [Custom responses](#custom-responses)
//! - [Login, and other keys from the body](#login-and-other-keys-from-the-body), and
//!   [catch-all errors](#under-a-catch-all-error)
//!
//! Other protocols:
//! - [WebSocket messages](#websocket-messages)
//! - [gRPC](#grpc), and [gRPC by tenant](#grpc-by-tenant)
//! - [Outgoing calls](#outgoing-calls), and [callers that give up](#callers-that-give-up)
//!
//! Operation:
//! - [Tests with a paused clock](#tests-with-a-paused-clock)
//! - [Shutting down](#shutting-down)
//! - [Rollout](#rollout)
//! - [An admin endpoint](#an-admin-endpoint)
//! - [Metrics and traces](#metrics-and-traces)
//!
//! The examples need edition 2024, `cargo add axum` and `cargo add tokio --features full`. Each recipe names what
//! else it needs.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | key | What a limit applies to: a user, an address, an API key. A resolver finds the key of a request. |
//! | permit | The unit of a limit. A check takes one permit for its key, or as many as its cost. |
//! | quota | A number of permits per period, a burst, and an algorithm: 10 per second, and up to 20 at once. |
//! | policy | A named set of quotas that are checked together. |
//! | bucket | The state of one key under one policy: how many of its permits are in use. |
//! | instance | A process with an open store. (A second store in the process counts as another instance.) Instances with the same Redis and the same key prefix share their buckets. |
//! | failure mode | The rule that decides checks while Redis fails. |
//! | lease | Permits that an instance has taken from Redis in advance. With them it decides checks in memory. |
//! | hold | The permits that one piece of work, such as a request, has taken until it ends. |
//!
//! # From memory to production
//!
//! The recipes use a [`MemoryStore`], so that they run anywhere. With several instances, each would enforce the
//! whole limit. So open a [`RedisStore`] instead:
//!
//! ```
//! use std::num::NonZeroUsize;
//! use std::time::Duration;
//! use fleetlimit::{ConfigError, FailureMode, Limiter, Policy, Quota, RedisStore};
//!
//! fn open(url: &str, instances: NonZeroUsize) -> Result<(RedisStore, Limiter), ConfigError> {
//!     let store = RedisStore::open(url)?.key_prefix("search-api").instances(instances);
//!     let policy = Policy::new("search").quota("search", Quota::per_second(10).burst(20));
//!     let limiter = Limiter::builder(store.clone(), policy)
//!         .timeout(Duration::from_millis(50))
//!         .failure_mode(FailureMode::Local)
//!         .build()?;
//!     Ok((store, limiter))
//! }
//! # let three = NonZeroUsize::new(3).unwrap();
//! # open("redis://127.0.0.1:6379", three).unwrap();
//! ```
//!
//! Layers, resolvers and checks stay as they are. These settings are new:
//!
//! | setting | default | why |
//! |---|---|---|
//! | [`key_prefix`] | `fleetlimit` | Services with the same prefix share the buckets of policies with the same name. In an outage they also divide their limits among themselves. So give each service its own prefix, and all its instances the same one. |
//! | [`instances`] | 1 | An instance that starts while Redis is down knows of no others. It divides the limit by this number. With 1, it enforces the whole limit. |
//! | [`timeout`] | 50 ms | The longest that a check waits for Redis, including the time to connect. Use at least twice the round trip to Redis, and at least 20 ms. |
//! | [`failure_mode`] | `Local` | While Redis fails, each instance enforces its share of the limit. With `Closed`, requests get 503. With `Open`, they pass. See [`FailureMode`]. |
//! | [`lease`] | zero | The longest time for which an instance keeps permits that it has taken in advance. Set it for [hot keys and distant servers](#hot-keys-and-distant-servers). |
//!
//! The code around the limiter changes too:
//!
//! - Open one store per process, and clone it. Each store that is opened counts as an instance.
//! - Opening a store does no I/O. To find a wrong password before you serve traffic, call
//!   `limiter.peek("startup").await`. It returns the error in every failure mode.
//! - Before the process exits, call [`RedisStore::shutdown`]: see [Shutting down](#shutting-down).
//! - Behind a proxy, replace `PeerIp` with `ClientIp`: see [Behind nginx or a CDN](#behind-nginx-or-a-cdn).
//! - Give Redis enough memory and the right eviction policy: see [Rollout](#rollout).
//!
//! The example [`production`] has all of this, with metrics, probes and CORS. [docs/operations.md] is about
//! Redis itself, timeouts, Kubernetes and upgrades.
//!
//! ## Memory or Redis by configuration
//!
//! [`AnyStore`] opens the kind of store that a URL names, so a laptop and a cluster run the same code:
//!
//! ```
//! use fleetlimit::{AnyStore, Limiter, Policy, Quota};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // `memory:`, `redis://host:6379`, `redis+cluster://a:6379,b:6379` or `redis+sentinel://host/service`
//! let url = std::env::var("STORE_URL").unwrap_or("memory:".into());
//! // A store in memory ignores the settings of Redis.
//! let store = AnyStore::open(&url)?.map_redis(|redis| redis.key_prefix("search-api"));
//! let policy = Policy::new("search").quota("search", Quota::per_second(10));
//! let limiter = Limiter::new(store.clone(), policy)?;
//! limiter.check("user:7").await?.ensure_allowed()?;
//!
//! // Before the process exits.
//! store.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! # Compile errors
//!
//! | the compiler says | cause | write |
//! |---|---|---|
//! | `lifetime may not live long enough` at a closure, or `one type is more general than the other` at a function | The key borrows from the request, as an `Option<&str>` does. | `Some(tenant.to_str().ok()?.to_owned())` |
//! | `type annotations needed` at a closure | Its argument has no type. | [`from_fn`]`(\|parts\| ..)`, or `\|parts: &Parts\|` |
//! | ``the trait bound `RedisPool: From<..>` is not satisfied`` | The pool is from another version of `deadpool-redis`. | version 0.23, or [`RedisStore::open`], which needs no pool |
//! | ``the trait bound `RateLimit<Router<_>, ..>: Service<IncomingStream<..>>` is not satisfied``, or `` no method named `into_make_service_with_connect_info` `` | A layer around a finished router is not a `Router`. | [`Router::new().fallback_service(..)`](#a-finished-router) |
//! | `` expected `Response<ResponseBody<Body>>`, found `Response<Body>` `` | `option_layer` needs the same body with and without the layer. | a `match`, or a conversion: see [optional layers](crate::RateLimitLayer#optional-layers) |
//! | ``unused `Decision` that must be used`` | A denial is a value, not an error. | `.ensure_allowed()?`, or test `is_allowed()` |
//!
//! # Per-route limits
//!
//! Add one [`RateLimitLayer`] per route or group of routes, each with its own limiter. Give every [`Policy`] a
//! name, because limiters with the same policy name on one store share their buckets. (If their quotas differ,
//! building the second one is an error.) Clients see the name of the quota in the headers. In this example, each
//! policy and its quota have the same name.
//!
//! ```
//! use axum::Router;
//! use axum::routing::{get, post};
//! use fleetlimit::resolve::{MatchedPath, PeerIp};
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! fn app() -> Result<Router, ConfigError> {
//!     let store = MemoryStore::new();
//!     let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
//!     let search = limiter("search", Quota::per_second(2).burst(5))?;
//!     let items = limiter("items", Quota::per_minute(60))?;
//!     let all = limiter("all", Quota::per_second(20).burst(40))?;
//!
//!     Ok(Router::new()
//!         // A bucket per client and route: `/items/{id}` is one route for any id.
//!         .route("/items/{id}", get(async || "item"))
//!         .route("/items", post(async || "created"))
//!         .route_layer(RateLimitLayer::new(items, (PeerIp::new(), MatchedPath)))
//!         // One route.
//!         .route("/search", get(async || "found").layer(RateLimitLayer::new(search, PeerIp::new())))
//!         // All routes above. The outermost layer checks first.
//!         .layer(RateLimitLayer::new(all, PeerIp::new())))
//! }
//! # app().unwrap();
//! ```
//!
//! axum's [`Router::layer`] applies to the routes that were added before it. The layer that was added last runs
//! first. If an inner layer denies a request, the outer one has already taken a permit for it.
//! [`refund_inner_denials`](#several-keys) gives that permit back.
//!
//! ## Health probes and CORS
//!
//! Add the routes of health probes after all layers, so that no limit applies to them. Add tower-http's
//! `CorsLayer` after the rate limit layer, so that it runs first. Otherwise a browser hides the 429 from the page,
//! and preflight requests take permits. This recipe needs `cargo add tower-http --features cors`:
//!
//! ```
//! use axum::Router;
//! use axum::http::header::RETRY_AFTER;
//! use axum::http::{HeaderName, HeaderValue, Method};
//! use axum::routing::get;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//! use tower_http::cors::CorsLayer;
//!
//! fn app(limiter: Limiter) -> Router {
//!     let cors = CorsLayer::new()
//!         .allow_origin(HeaderValue::from_static("https://app.example.com"))
//!         .allow_methods([Method::GET])
//!         // So that scripts can read them.
//!         .expose_headers([
//!             RETRY_AFTER,
//!             HeaderName::from_static("ratelimit"),
//!             HeaderName::from_static("ratelimit-policy"),
//!         ]);
//!     Router::new()
//!         .route("/items", get(async || "items"))
//!         .layer(RateLimitLayer::new(limiter, PeerIp::new()))
//!         .layer(cors)
//!         .route("/healthz", get(async || "healthy"))
//! }
//! # use axum::body::Body;
//! # use axum::extract::connect_info::MockConnectInfo;
//! # use axum::http::{Request, StatusCode};
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(fleetlimit::MemoryStore::new(), fleetlimit::Quota::per_hour(1))?;
//! # let client = std::net::SocketAddr::from(([203, 0, 113, 7], 4711));
//! # let app = app(limiter).layer(MockConnectInfo(client));
//! # let send = async |method, path| {
//! #     let request = Request::builder().method(method).uri(path);
//! #     let request = request.header("origin", "https://app.example.com");
//! #     let request = request.header("access-control-request-method", "GET");
//! #     app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
//! # };
//! # for _ in 0..5 {
//! #     assert_eq!(send(Method::OPTIONS, "/items").await.status(), StatusCode::OK);
//! #     assert_eq!(send(Method::GET, "/healthz").await.status(), StatusCode::OK);
//! # }
//! # assert_eq!(send(Method::GET, "/items").await.status(), StatusCode::OK);
//! # let denied = send(Method::GET, "/items").await;
//! # assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
//! # assert_eq!(denied.headers()["access-control-allow-origin"], "https://app.example.com");
//! # let exposed = denied.headers()["access-control-expose-headers"].to_str()?;
//! # assert_eq!(exposed, "retry-after,ratelimit,ratelimit-policy");
//! # assert_eq!(send(Method::GET, "/healthz").await.status(), StatusCode::OK);
//! # Ok(()) }
//! ```
//!
//! ## A finished router
//!
//! A layer around a finished `Router` also sees requests that match no route. But `layer.layer(router)` is not a
//! `Router`, and `axum::serve` does not accept it. Make it the fallback of a new router:
//!
//! ```
//! use axum::Router;
//! use axum::routing::get;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//! use tower::Layer;
//!
//! fn app(limiter: Limiter) -> Router {
//!     let router = Router::new().route("/", get(async || "hello"));
//!     let limited = RateLimitLayer::new(limiter, PeerIp::new()).layer(router);
//!     Router::new().fallback_service(limited)
//! }
//! # use axum::body::Body;
//! # use axum::extract::connect_info::MockConnectInfo;
//! # use axum::http::{Request, StatusCode};
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(fleetlimit::MemoryStore::new(), fleetlimit::Quota::per_hour(2))?;
//! # let client = std::net::SocketAddr::from(([203, 0, 113, 7], 4711));
//! # let app = app(limiter).layer(MockConnectInfo(client));
//! # for (path, status) in [("/", 200), ("/unknown", 404), ("/", 429)] {
//! #     let request = Request::get(path).body(Body::empty())?;
//! #     assert_eq!(app.clone().oneshot(request).await?.status(), status, "{path}");
//! # }
//! # Ok(()) }
//! ```
//!
//! This recipe needs `cargo add tower`. In such a layer, [`MatchedPath`] finds no route: it works only in a layer
//! that is added to the `Router` or to a route.
//!
//! # By API key
//!
//! A client chooses what it sends. Every unknown key has a full bucket, so a client that invents a
//! new key for every request has no limit at all. `Header::new(API_KEY).or(PeerIp::new())` does not
//! help, because the header is always there. So verify the key first, reject unknown keys, and limit by
//! the verified account. An outer limit per address bounds the number of attempts.
//!
//! ```
//! use axum::Router;
//! use axum::extract::Request;
//! use axum::http::StatusCode;
//! use axum::middleware::{Next, from_fn};
//! use axum::response::Response;
//! use axum::routing::get;
//! use fleetlimit::resolve::{Extension, PeerIp};
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! /// The account behind a valid API key.
//! #[derive(Clone)]
//! struct Account {
//!     id: u64,
//! }
//!
//! async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
//!     let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
//!     // Look the key up in your database.
//!     let account = match key {
//!         Some("secret-of-account-7") => Account { id: 7 },
//!         _ => return Err(StatusCode::UNAUTHORIZED),
//!     };
//!     request.extensions_mut().insert(account);
//!     Ok(next.run(request).await)
//! }
//!
//! fn app() -> Result<Router, ConfigError> {
//!     let store = MemoryStore::new();
//!     let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
//!     let per_account = limiter("account", Quota::per_second(10).burst(20))?;
//!     let per_address = limiter("address", Quota::per_second(20).burst(50))?;
//!
//!     Ok(Router::new()
//!         .route("/", get(async || "hello"))
//!         .layer(RateLimitLayer::new(per_account, Extension::map(|account: &Account| account.id)))
//!         .layer(from_fn(authenticate))
//!         // The last layer runs first: it also limits requests with invalid keys.
//!         .layer(RateLimitLayer::new(per_address, PeerIp::new())))
//! }
//! # app().unwrap();
//! ```
//!
//! [`Header`] is for headers that something outside of your service has verified, such as an API gateway that
//! overwrites them. The value may be a secret, so the key in Redis is only a hash of it, or an HMAC if you set
//! [`with_secret`](crate::resolve::Header::with_secret).
//!
//! # By authenticated user
//!
//! Let your authentication layer insert the user into the request's extensions, and resolve the key
//! from there with [`Extension`]. `or` gives anonymous clients another key, and
//! [`KeyResolver::skip`] lets some requests pass.
//!
//! ```
//! use axum::http::request::Parts;
//! use fleetlimit::resolve::{Extension, PeerIp};
//! use fleetlimit::{KeyResolver, Resolution};
//!
//! #[derive(Clone)]
//! struct User {
//!     id: u64,
//!     is_admin: bool,
//! }
//!
//! fn by_user() -> impl KeyResolver {
//!     Extension::map(|user: &User| match user {
//!         User { is_admin: true, .. } => Resolution::Skip,
//!         User { id, .. } => Resolution::from(format!("user:{id}")),
//!     })
//!     .or(PeerIp::new())
//!     .skip(|parts: &Parts| parts.uri.path() == "/health")
//! }
//! # by_user();
//! ```
//!
//! A client cannot gain buckets by inventing users, because without valid credentials it is limited by address.
//! So one user at one address has at most two buckets. The prefix `user:` keeps the keys of users and addresses
//! apart.
//!
//! Make sure that the authentication layer runs first. In axum, add it after the rate limit layer. With `or`, a
//! missing `User` looks like an anonymous client, so a wrong order goes unreported. Without `or`, the client gets
//! a 500 without details, and the log names the layer that has to run first.
//!
//! # Behind nginx or a CDN
//!
//! Behind a proxy [`PeerIp`] sees the proxy, and all clients share one bucket. [`ClientIp`] reads
//! the header that your proxies set, but only from proxies that you trust:
//!
//! ```
//! use axum::http::HeaderName;
//! use fleetlimit::resolve::ClientIp;
//!
//! # fn main() -> Result<(), fleetlimit::ConfigError> {
//! // nginx on the same host, with `proxy_set_header X-Real-IP $remote_addr;`
//! let nginx = ClientIp::new(["127.0.0.1", "::1"])?.x_real_ip();
//!
//! // A load balancer that appends to X-Forwarded-For, as most do. It has its own subnet. Do not trust
//! // all of a private network, because anything else that runs there could claim any address.
//! let load_balancers = "10.0.8.0/28"; // from your configuration
//! let load_balancer = ClientIp::new([load_balancers])?;
//!
//! // Google's Application Load Balancer, which appends the client and then itself. The firewall lets nobody
//! // else connect.
//! let google = ClientIp::hops(2)?;
//!
//! // A CDN in front of a load balancer. Trust both, so that neither is taken for the client.
//! let cdn_ranges = ["198.51.100.0/24", "2001:db8:cd::/48"]; // from your configuration
//! let cdn = ClientIp::new(cdn_ranges.into_iter().chain([load_balancers]))?;
//!
//! // A CDN that connects directly and sets its own header.
//! const CF_CONNECTING_IP: HeaderName = HeaderName::from_static("cf-connecting-ip");
//! let direct = ClientIp::new(cdn_ranges)?.header(CF_CONNECTING_IP);
//!
//! // A proxy that connects over a Unix socket. Add `.layer(axum::Extension(UnixSocket))` after the
//! // rate limit layer.
//! let unix = ClientIp::new(["unix:"])?;
//! # let _ = (nginx, load_balancer, google, cdn, direct, unix);
//! # Ok(()) }
//! ```
//!
//! Serve the app with `into_make_service_with_connect_info::<SocketAddr>()`, or the peer address is
//! unknown. Do not trust networks that contain clients. If the proxy does not set the header,
//! everyone behind it shares the bucket of the proxy, and the log says so. See [`ClientIp`] for
//! the exact rules, and [`UnixSocket`] for servers without peer addresses.
//!
//! ## Uploads
//!
//! If an HTTP/1 server responds before it has read the whole request, it closes the connection. A client that is
//! still sending then loses the response. nginx responds with 502 instead of 429. With several servers in an
//! `upstream`, it also takes that server out of use for ten seconds. So a client that is over its limit could take
//! all servers out of use for everybody.
//!
//! The layer prevents this. Before it sends its own response, it reads and drops the rest of the body: up to
//! 64 KiB, for up to a second. If clients upload more, raise the size to the largest body that the proxy passes on
//! (`client_max_body_size` of nginx):
//!
//! ```
//! use std::time::Duration;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//!
//! fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
//!     RateLimitLayer::new(limiter, PeerIp::new()).drain(1_048_576, Duration::from_secs(2))
//! }
//! ```
//!
//! The same happens with every handler that responds before it reads the body. In a handler that checks a limit,
//! call [`Drain::read`](crate::layer::Drain::read).
//!
//! # Plans from a database
//!
//! Resolvers and hooks are not async, so they cannot wait for a database. Load the plan in a middleware that runs
//! before the layer. There you can cache it, and handle database errors as you like. Then [`limiter_for`] chooses
//! the limiter. Add an outer limit by address, as in [By API key](#by-api-key). It limits the database queries of
//! clients without an account.
//!
//! ```
//! use std::collections::HashMap;
//!
//! use axum::Router;
//! use axum::extract::{Request, State};
//! use axum::http::StatusCode;
//! use axum::http::request::Parts;
//! use axum::middleware::{Next, from_fn_with_state};
//! use axum::response::Response;
//! use axum::routing::get;
//! use fleetlimit::resolve::Extension;
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! /// A row of the table `accounts`.
//! #[derive(Clone)]
//! struct Account {
//!     id: u64,
//!     plan: String,
//! }
//!
//! /// A stand-in for a connection pool.
//! #[derive(Clone)]
//! struct Database;
//!
//! impl Database {
//!     async fn account_of(&self, token: &str) -> Result<Option<Account>, std::io::Error> {
//!         Ok((token == "Bearer secret").then(|| Account { id: 7, plan: "pro".into() }))
//!     }
//! }
//!
//! async fn load_account(
//!     State(database): State<Database>,
//!     mut request: Request,
//!     next: Next,
//! ) -> Result<Response, StatusCode> {
//!     let token = request.headers().get("authorization").and_then(|token| token.to_str().ok());
//!     let account = database
//!         .account_of(token.ok_or(StatusCode::UNAUTHORIZED)?)
//!         .await
//!         .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?
//!         .ok_or(StatusCode::UNAUTHORIZED)?;
//!     request.extensions_mut().insert(account);
//!     Ok(next.run(request).await)
//! }
//!
//! fn app(database: Database) -> Result<Router, ConfigError> {
//!     let store = MemoryStore::new();
//!     let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
//!     let free = limiter("free", Quota::per_second(1))?;
//!     let plans = HashMap::from([
//!         ("pro".to_owned(), limiter("pro", Quota::per_second(10).burst(50))?),
//!         ("enterprise".to_owned(), limiter("enterprise", Quota::per_second(100).burst(500))?),
//!     ]);
//!     let limit = RateLimitLayer::new(free, Extension::map(|account: &Account| account.id))
//!         .limiter_for(move |parts: &Parts| {
//!             // An unknown plan gets the layer's own limiter, the free one.
//!             plans.get(&parts.extensions.get::<Account>()?.plan).cloned()
//!         });
//!     Ok(Router::new()
//!         .route("/", get(async || "hello"))
//!         .layer(limit)
//!         .layer(from_fn_with_state(database, load_account)))
//! }
//! # app(Database).unwrap();
//! ```
//!
//! If each account has its own quota, one limiter is enough. [`quota_for`] chooses the quota for each request, and
//! [`Limiter::with_quota`] does the same outside of a layer.
//!
//! To change the quota of a plan while the service runs, call [`Limiter::update`] in every instance. Used permits
//! stay used: a key that has used 3 of 3 permits has 3 left when the limit is raised to 6. With `limiter_for`, an
//! account that changes its plan starts with a full bucket, because each policy has its own buckets. With
//! `quota_for`, its used permits stay used.
//!
//! # Cost
//!
//! A request costs one permit by default. [`cost`] sets another number, for example by route or by
//! the size of the request.
//!
//! ```
//! use axum::http::header::CONTENT_LENGTH;
//! use axum::http::request::Parts;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! /// 10 MB per minute per client.
//! fn upload_limit() -> Result<RateLimitLayer<PeerIp>, ConfigError> {
//!     let policy = Policy::new("uploads").quota("bytes", Quota::per_minute(10_000_000));
//!     let limiter = Limiter::new(MemoryStore::new(), policy)?;
//!     Ok(RateLimitLayer::new(limiter, PeerIp::new()).cost(|parts: &Parts| {
//!         let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
//!         // If the length is unknown, charge for the largest body that the service accepts.
//!         length.and_then(|length| length.parse().ok()).unwrap_or(2_097_152)
//!     }))
//! }
//! # upload_limit().unwrap();
//! ```
//!
//! A cost of 0 takes nothing and is allowed. With a [cost by response](#cost-by-response), though, it is denied if a
//! quota has no permit left. A cost above the burst can never be paid at once, so it is always denied, without a
//! `Retry-After`. (Here, the burst includes what a check may [borrow](crate::Quota::borrow_up_to), and what it may
//! wait for.)
//!
//! # Cost by response
//!
//! Some costs are known only after the response. The check takes an estimate, and
//! [`cost_by_response`] replaces it once the response has been sent:
//!
//! ```
//! use axum::http::StatusCode;
//! use fleetlimit::layer::Sent;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//!
//! /// The cost of a query. The handler puts it into the extensions of its response.
//! #[derive(Clone)]
//! struct Points(u64);
//!
//! # fn layers(limiter: Limiter) {
//! let layer = || RateLimitLayer::new(limiter.clone(), PeerIp::new());
//!
//! // Only failures count. Each request takes a permit until it has succeeded, so concurrent requests
//! // cannot exceed the limit.
//! let failures = layer().cost_by_response(|sent: &Sent<'_>| {
//!     if sent.response.status == StatusCode::UNAUTHORIZED { 1 } else { 0 }
//! });
//!
//! // Points. The check takes 100, and the actual cost replaces it. If the client disconnects before
//! // there is a response, it pays 5.
//! let points = layer()
//!     .cost(|_| 100)
//!     .cost_by_response(|sent| sent.response.extensions.get::<Points>().map_or(1, |points| points.0))
//!     .cost_without_response(5);
//!
//! // The bytes that were sent. A request is allowed while any permit is left, however large its response is.
//! let bytes = layer().cost(|_| 0).cost_by_response(|sent| sent.body_bytes);
//! # let _ = (failures, points, bytes);
//! # }
//! # use axum::body::{Body, to_bytes};
//! # use axum::extract::connect_info::MockConnectInfo;
//! # use axum::http::Request;
//! # use axum::{Router, routing::get};
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let quota = fleetlimit::Quota::per_hour(1_000);
//! # let limiter = Limiter::new(fleetlimit::MemoryStore::new(), quota)?;
//! # let bytes = RateLimitLayer::new(limiter, PeerIp::new()).cost(|_| 0);
//! # let bytes = bytes.cost_by_response(|sent| sent.body_bytes);
//! # let client = std::net::SocketAddr::from(([203, 0, 113, 7], 4711));
//! # let app = Router::new().route("/", get(async || "x".repeat(1_000))).layer(bytes);
//! # let app = app.layer(MockConnectInfo(client));
//! # let send = async || app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
//! # let mut responses = Vec::new();
//! # for _ in 0..20 { responses.push(send().await); }
//! # for response in responses {
//! #     assert_eq!(to_bytes(response.into_body(), 2_000).await?.len(), 1_000);
//! # }
//! # let denied = send().await;
//! # assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
//! # let wait = denied.headers()["retry-after"].to_str()?.parse::<u64>()?;
//! # assert!((19 * 3_600..19 * 3_600 + 100).contains(&wait), "{wait}");
//! # Ok(()) }
//! ```
//!
//! **With an estimate of 0, concurrent responses can exceed the limit many times.** A response is charged when it
//! has been sent. Until then, its permits look unused to all other requests. So every response that starts before
//! the first one ends is sent in full: 20 responses of 1,000 bytes pass a limit of 1,000. If the limit must hold at
//! every moment, choose the largest cost as the estimate: see [The tokens of a stream](#the-tokens-of-a-stream).
//!
//! A key that has used more than its limit is in debt, and denied until the debt is repaid. A token bucket keeps the
//! whole debt, so the limit holds on average: with 10,000 per minute, a response of 50,000 is followed by four
//! minutes of denials. [`Quota::debt_up_to`] limits the debt, and with it the wait. Windows forget a debt: a fixed or
//! calendar window when it ends, a sliding window once the charge is older than the window, an approximate sliding
//! window at the end of the next period. Use a token bucket if a debt has to be repaid.
//!
//! Outside of a layer, [`Limiter::charge`] takes permits without a check, and [`Limiter::credit`] gives permits back.
//!
//! A WebSocket has no cost by response: see [WebSocket messages](#websocket-messages).
//!
//! # The tokens of a stream
//!
//! The number of tokens in a streamed response is known only at its end. Reserve the maximum, and give back what
//! was not used. Then streams never exceed the limit, however many run at once. The handler puts
//! a counter into the extensions of its response, and the layer reads it after the last chunk:
//!
//! ```
//! use std::convert::Infallible;
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//!
//! use axum::Extension;
//! use axum::body::Body;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//! use futures_util::{StreamExt, stream};
//!
//! /// The limit of the model for one answer. The burst of the quota has to be at least as large.
//! const MAX_TOKENS: u64 = 4_000;
//!
//! /// The tokens that were generated so far.
//! #[derive(Clone, Default)]
//! struct Generated(Arc<AtomicU64>);
//!
//! async fn answer() -> (Extension<Generated>, Body) {
//!     let generated = Generated::default();
//!     let counter = generated.clone();
//!     // A stand-in for the model.
//!     let tokens = stream::iter(["Hello", ",", " world"]).map(move |token| {
//!         counter.0.fetch_add(1, Relaxed);
//!         Ok::<_, Infallible>(token)
//!     });
//!     (Extension(generated), Body::from_stream(tokens))
//! }
//!
//! fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
//!     RateLimitLayer::new(limiter, PeerIp::new())
//!         .cost(|_| MAX_TOKENS)
//!         // Also if the client disconnects before the end. An error page has no counter, and is free.
//!         .cost_by_response(|sent| match sent.response.extensions.get::<Generated>() {
//!             Some(Generated(count)) => count.load(Relaxed),
//!             None => 0,
//!         })
//! }
//! # use axum::extract::connect_info::MockConnectInfo;
//! # use axum::http::{Request, StatusCode};
//! # use axum::{Router, routing::get};
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(fleetlimit::MemoryStore::new(), fleetlimit::Quota::per_hour(9_000))?;
//! # let client = std::net::SocketAddr::from(([203, 0, 113, 7], 4711));
//! # let app = Router::new().route("/", get(answer)).layer(layer(limiter.clone()));
//! # let app = app.layer(MockConnectInfo(client));
//! # let send = async || app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
//! # let responses = [send().await, send().await, send().await];
//! # assert_eq!(responses.each_ref().map(|response| response.status().as_u16()), [200, 200, 429]);
//! # for response in responses {
//! #     axum::body::to_bytes(response.into_body(), usize::MAX).await?;
//! # }
//! # assert_eq!(limiter.peek("203.0.113.7").await?.remaining(), 9_000 - 2 * 3);
//! # assert_eq!(send().await.status(), StatusCode::OK);
//! # Ok(()) }
//! ```
//!
//! This recipe needs `cargo add futures-util`. With this recipe, a stream of 100 tokens reserves 4,000 while it
//! runs. If that is too much, take the tokens in slices, each before it is generated. Use a
//! [hold](crate::Limiter::hold), which can be extended for each slice and settled at the end:
//!
//! ```
//! use fleetlimit::{Error, Limiter};
//! use tokio::sync::mpsc;
//!
//! /// Larger slices need fewer calls, but reserve more tokens.
//! const SLICE: u64 = 100;
//!
//! async fn generate(
//!     limiter: &Limiter,
//!     tenant: &str,
//!     tokens: impl Iterator<Item = String>,
//!     client: mpsc::Sender<String>,
//! ) -> Result<(), Error> {
//!     let hold = limiter.hold(tenant, SLICE).await?.ensure_allowed()?;
//!     let (mut taken, mut sent) = (SLICE, 0);
//!     for token in tokens {
//!         if sent == taken {
//!             // If this is denied, the stream ends. Its tokens were all sent.
//!             hold.extend(SLICE).await?.ensure_allowed()?;
//!             taken += SLICE;
//!         }
//!         if client.send(token).await.is_err() {
//!             break; // The client has disconnected.
//!         }
//!         sent += 1;
//!     }
//!     // Gives back what is left of the last slice.
//!     hold.settle(sent);
//!     Ok(())
//! }
//! # use fleetlimit::{MemoryStore, Quota};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1_000))?;
//! # let tokens = |n| std::iter::repeat_n("token".to_owned(), n);
//! # let (client, mut sent) = mpsc::channel(100_000);
//! # generate(&limiter, "acme", tokens(150), client.clone()).await?;
//! # assert_eq!(limiter.peek("acme").await?.remaining(), 850);
//! # let streams = (0..20).map(|_| {
//! #     let (limiter, client) = (limiter.clone(), client.clone());
//! #     tokio::spawn(async move { generate(&limiter, "acme", tokens(1_000), client).await })
//! # });
//! # let streams: Vec<_> = streams.collect();
//! # for stream in streams {
//! #     assert!(stream.await?.is_err(), "the limit ends all of them");
//! # }
//! # drop(client);
//! # let mut count = 0;
//! # while sent.recv().await.is_some() { count += 1; }
//! # assert_eq!(count, 150 + 800);
//! # Ok(()) }
//! ```
//!
//! If this future is dropped, for example inside the body of a response, `settle` is not reached, and the last slice stays
//! used. There, settle in a `Drop` of what produces the stream, before the stream ends. The example [`llm_tokens`] does
//! so. It streams server-sent events, takes slices, ends a stream with an error event when the budget is used up, and limits
//! the number of streams. A stream that should wait instead of ending calls `extend` again after the
//! [`retry_after`](crate::Decision::retry_after) of the denial. In its test, 100 concurrent streams share a budget of 10,000 tokens that does not refill: they
//! send at least 9,700, and never more than 10,000.
//!
//! What the streams of a key can get at most above the limit, and what they can reserve without using it. A bucket refills
//! while a stream waits with tokens that it has taken. So over a short span, the streams can send what they have reserved
//! in addition to the burst, but they never take more than the limit allows:
//!
//! | method | above the limit | reserved, not used |
//! |---|---|---|
//! | reserve the maximum, give back the rest | nothing | the maximum, per open stream |
//! | take each slice before it is generated | nothing | a slice per open stream |
//! | charge each slice after it is generated | a slice per open stream | nothing |
//! | charge everything at the end | all tokens of the open streams | nothing |
//!
//! If a slice costs more than was taken, settle the hold with the actual number. The difference is charged and never
//! denied, so a stream can exceed the limit by it.
//!
//! # Requests in flight
//!
//! A [concurrent](crate::Quota::concurrent) quota limits how many requests of a key run at a time, in all instances
//! together. A layer with such a quota takes a permit for each request, and gives it back when the body of the response
//! has ended, or the client disconnects, even while the handler is running. It can be combined with other quotas, except a
//! queue:
//!
//! ```
//! use axum::{Router, routing::get};
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! fn app() -> Result<Router, ConfigError> {
//!     // Five exports at a time for each client, and 100 per minute.
//!     let policy = Policy::new("exports")
//!         .quota("in_flight", Quota::concurrent(5))
//!         .quota("rate", Quota::per_minute(100));
//!     // With several processes, `RedisStore::open(url)?`. All of them need the same policy name and key prefix.
//!     let limiter = Limiter::new(MemoryStore::new(), policy)?;
//!     Ok(Router::new()
//!         .route("/export", get(async || "a,b,c\n"))
//!         .layer(RateLimitLayer::new(limiter, PeerIp::new())))
//! }
//! # use axum::body::Body;
//! # use axum::extract::connect_info::MockConnectInfo;
//! # use axum::http::Request;
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = std::net::SocketAddr::from(([203, 0, 113, 7], 4711));
//! # let app = app()?.layer(MockConnectInfo(client));
//! # let mut responses = Vec::new();
//! # for status in [200, 200, 200, 200, 200, 429] {
//! #     let request = Request::get("/export").body(Body::empty())?;
//! #     let response = app.clone().oneshot(request).await?;
//! #     assert_eq!(response.status(), status);
//! #     responses.push(response);
//! # }
//! # assert!(!responses[5].headers().contains_key("retry-after"));
//! # Ok(()) }
//! ```
//!
//! For a limit per user, choose a resolver that returns the user: see [By authenticated user](#by-authenticated-user).
//!
//! Outside of a layer, [`Limiter::hold`](crate::Limiter::hold) returns a guard, which gives the permit back when it is
//! dropped. It returns one even if the check is denied, which holds nothing, so call `ensure_allowed`. Keep the guard in a
//! named variable for as long as the work runs, because `let _ =` drops it at once:
//!
//! ```
//! use fleetlimit::{Error, Limiter};
//!
//! async fn run_export(limiter: &Limiter, user: &str) -> Result<String, Error> {
//!     let hold = limiter.hold(user, 1).await?.ensure_allowed()?;
//!     let export = "a,b,c\n".to_owned(); // It takes a while.
//!     drop(hold);
//!     Ok(export)
//! }
//! # use fleetlimit::{MemoryStore, Quota};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(MemoryStore::new(), Quota::concurrent(1))?;
//! # for _ in 0..3 { run_export(&limiter, "user:7").await?; }
//! # Ok(()) }
//! ```
//!
//! - **A request takes one permit**, whatever its [cost](#cost). The cost is for the other quotas. A request that should
//!   take more permits names the quota: `Costs::new(1).with("in_flight", 2)`.
//! - **A denial has no `Retry-After`**, because nobody knows when a permit is given back. `RateLimit-Policy` says
//!   `qu="concurrent-requests"`.
//! - **A handler finds the hold of its request** in the extensions, as `Extension<Arc<Hold>>`. It can extend it, and settle
//!   it before the body ends. If the client disconnects, the layer drops the body before it ends the hold, so a `Drop` of
//!   what the body owns may settle it. Without `settle`, what was taken stays used. The extension exists only if the policy has a concurrent quota, and the resolver has not
//!   skipped the request: use `Option<Extension<Arc<Hold>>>` if either may differ. With several such layers, it is that of
//!   the innermost one, and [`layer::holds`](crate::layer::holds) returns all of them.
//! - **The layer ends the hold when the response ends**, whoever has a clone of it. Work that outlives its response needs a
//!   hold of its own, from `Limiter::hold`.
//! - **The handler of a WebSocket has to keep the hold.** A layer cannot see when an upgraded connection closes. So move
//!   the `Arc<Hold>` into the task of the connection: see [WebSocket messages](#websocket-messages). If the handler drops
//!   it, the connection no longer counts, and a warning is logged.
//! - A service [that is not HTTP](crate::RateLimitLayer::with_errors) holds the permit until it has responded.
//! - [`Limiter::check`](crate::Limiter::check) of such a policy is an error, because nobody would give the permit back.
//! - **If Redis fails**, the [failure mode](crate::FailureMode) decides. By default, each process enforces its share of the
//!   limit, counting what it holds. If the limit is below the number of processes, some of them deny everything. With
//!   `Open`, nothing is held or counted.
//! - **A hold takes a call when it starts, and one when it ends.** Concurrent holds of a key share calls. A key of which
//!   permits are held takes one more call every quarter of `hold_for`. A [lease](#hot-keys-and-distant-servers) saves most
//!   calls of busy keys.
//! - If a process is killed, its permits are free after
//!   [`RedisStore::hold_for`](crate::RedisStore::hold_for), 10 seconds by default. What can exceed the limit is in
//!   [docs/exactness.md](https://docs.rs/crate/fleetlimit/latest/source/docs/exactness.md).
//!
//! A limit that each process enforces for itself, to protect its memory or its CPU, needs no shared permits: use tower's
//! `GlobalConcurrencyLimitLayer` with `load_shed`, or a [`Semaphore`](tokio::sync::Semaphore).
//!
//! # Algorithms
//!
//! A [`Quota`] is a token bucket unless you choose another algorithm. All algorithms support costs, make the same
//! decisions on Redis and in memory, and can be mixed in one policy. If nobody else uses the key, a retry with the
//! same cost after `Retry-After` is allowed. (Concurrent quotas differ: a request takes one permit whatever its cost, a
//! denial has no `Retry-After`, and they do not share a policy with a queue.) In the table, `n` is the number of permits per period.
//!
//! | | a span of length `t` admits at most | choose it for |
//! |---|---|---|
//! | [token bucket](crate::Quota) | burst + `n` × `t` / period | nearly everything: smooth, with a burst that you choose |
//! | [borrowing](crate::Quota::borrow_up_to) | burst + borrowed + `n` × `t` / period | costly requests that should start at once and pay afterwards |
//! | [queue](crate::Quota::queue) | burst (1 by default, but at least the largest cost) + `n` × `t` / period proceed | an even flow: [outgoing calls](#outgoing-calls), and work that may wait |
//! | [interval refill](crate::Quota::interval_refill) | burst + `n` for each refill in the span | permits that arrive all at once: 10 a minute, counted from the first check |
//! | [fixed window](crate::Quota::fixed_window) | `n` for each window that the span touches | limits that are easy to explain: 5 attempts in 15 minutes |
//! | [calendar](crate::Quota::calendar) | `n` for each window that the span touches | contracts and invoices: 1,000 per day or month, in UTC or another time zone |
//! | [sliding window](crate::Quota::sliding_window) | `n` in any span of one period | a hard limit for any period; a period is divided into segments, and a permit comes back up to one segment late |
//! | [approximate sliding window](crate::Quota::approximate_sliding_window) | 2 × `n` in any period; about `n` if requests come evenly | little memory, if about `n` is exact enough |
//! | [concurrent](crate::Quota::concurrent) | no bound over time; at most `n` are held at once | [requests in flight](#requests-in-flight); there is no period |
//!
//! The plot shows one series of requests, and which of them each algorithm admits, with 10 permits per 5 seconds:
//!
//! <div>
#![doc = include_str!("../docs/algorithms.svg")]
//! </div>
//!
//! ## Queue
//!
//! A queue does not deny a request that comes too early, but lets it wait. (This algorithm is also known as a
//! leaky bucket.) A layer waits before it calls the service. A waiting request holds no resources of the service,
//! such as a slot of an inner concurrency limit.
//!
//! ```
//! use std::time::Duration;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Quota, RateLimitLayer};
//!
//! /// 20 requests at once, and then one every 100 ms. A request that would wait for longer than a second gets
//! /// a 429.
//! fn shaped() -> Result<RateLimitLayer<PeerIp>, ConfigError> {
//!     let quota = Quota::per_second(10).burst(20).queue(Duration::from_secs(1));
//!     Ok(RateLimitLayer::new(Limiter::new(MemoryStore::new(), quota)?, PeerIp::new()))
//! }
//! # shaped().unwrap();
//! ```
//!
//! - The longest wait is part of the quota, and all processes share the queue. The wait is not part of the
//!   [timeout](crate::LimiterBuilder::timeout).
//! - Each process limits the [number of waiters](crate::LimiterBuilder::max_waiters), in all and
//!   [for each key](crate::LimiterBuilder::max_waiters_per_key).
//! - When a client disconnects, the requests behind it in the same process move up. The last place is given back.
//!   If other processes have queued behind that place, the next request of this process gets it.
//! - A process that is killed leaves its places in the queue. Each place delays the other processes by the time that
//!   its permits take to refill. So when a process ends, drop the futures that wait, and then call
//!   [`RedisStore::shutdown`].
//! - Permits that are given back, by [`Limiter::credit`] or after a response, go to the next request. Requests that
//!   already wait keep their times, so one of them may proceed together with the next request.
//! - While Redis fails, only one instance admits checks of a key if the burst is 1, which is the default of a queue.
//!   Set the burst to at least the number of instances: see [`FailureMode`].
//!
//! ## Fixed window
//!
//! Around the end of a window, a client can use the permits of that window and then those of the next. With
//! `calendar` that is up to 2 × `n` in a moment. With `fixed_window` it is one less, because the first permit of the
//! old window was taken at its start. If that is too much, use a token bucket or a sliding window.
//!
//! # Several quotas
//!
//! A policy can have up to 16 quotas, of which at most 8 are sliding or calendar windows, or concurrent. The algorithms may
//! differ. A check takes permits from all quotas or from none, in one call to Redis. With [`Costs`] a check takes a
//! different number from each.
//!
//! ```
//! use fleetlimit::{Costs, Limiter, MemoryStore, Policy, Quota};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::new("api")
//!     .quota("burst", Quota::per_second(10))
//!     .quota("daily", Quota::per_day(1_000).calendar())
//!     .quota("kilobytes", Quota::new(1_000_000, std::time::Duration::from_secs(30 * 86_400)));
//! let limiter = Limiter::new(MemoryStore::new(), policy)?;
//!
//! let decision = limiter.check_cost("user:7", Costs::new(1).with("kilobytes", 2_000_000)).await?;
//! // No wait is long enough for two gigabytes at once, and no quota was charged.
//! assert!(decision.exceeds_capacity());
//! let violated = decision.quotas().find(|quota| quota.is_violated()).unwrap();
//! assert_eq!(violated.name(), "kilobytes");
//! # Ok(()) }
//! ```
//!
//! # Several keys
//!
//! Quotas on the same key belong in one policy, which is atomic. Limits on different keys (user, tenant, everyone)
//! need a check each, because the keys may be on different servers. If the last check denies a request, the
//! earlier checks have already taken permits. So check the narrowest key first, and give back its permits if a later
//! check denies:
//!
//! ```
//! use axum::Router;
//! use axum::routing::get;
//! use fleetlimit::resolve::{Global, PeerIp};
//! use fleetlimit::{BestEffortChecks, ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! fn limiter(store: &MemoryStore, name: &'static str, n: u64) -> Result<Limiter, ConfigError> {
//!     Limiter::new(store.clone(), Policy::new(name).quota(name, Quota::per_second(n)))
//! }
//!
//! fn app(store: &MemoryStore) -> Result<Router, ConfigError> {
//!     Ok(Router::new()
//!         .route("/", get(async || "hello"))
//!         .layer(RateLimitLayer::new(limiter(store, "global", 1_000)?, Global))
//!         // The last layer runs first.
//!         .layer(RateLimitLayer::new(limiter(store, "client", 10)?, PeerIp::new()).refund_inner_denials()))
//! }
//!
//! # async fn job() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = MemoryStore::new();
//! // Outside of HTTP:
//! let (per_user, global) = (limiter(&store, "user", 10)?, limiter(&store, "jobs", 1_000)?);
//! let checks = BestEffortChecks::new().add(&per_user, "user:7", 1).add(&global, "all", 1);
//! checks.check().await?.ensure_allowed()?;
//! # Ok(()) }
//! # app(&MemoryStore::new()).unwrap();
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(job()).unwrap();
//! ```
//!
//! Giving back is best effort: the docs of [`BestEffortChecks`] list what can go wrong.
//!
//! # Limits in a file
//!
//! [`Limiters`] takes policies by name from a [`PolicySet`], which the feature `serde` reads from any format. The
//! file overrides the limits in the code. A reload changes the limits of the running service, and used permits
//! stay used. An invalid file changes nothing, and the error lists everything that is wrong with it. A file is also
//! invalid if it lacks a policy that is in use and has no default in the code.
//!
//! This recipe needs the feature `serde` and `cargo add toml --features preserve_order`. Without
//! `preserve_order`, the quotas of a policy are sorted by name.
//!
//! ```
//! # #[cfg(feature = "serde")]
//! # fn app() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use axum::routing::get;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiters, MemoryStore, Policy, PolicySet, Quota, RateLimitLayer};
//!
//! fn parse(text: &str) -> Result<PolicySet, toml::de::Error> {
//!     toml::from_str(text)
//! }
//!
//! let file = r#"
//!     [search]
//!     second = "10/s burst 20"
//!     day = "1000/day calendar"
//! "#;
//! let limiters = Limiters::new(MemoryStore::new(), parse(file)?)?;
//! let search = limiters.get("search")?;
//! // With numbers for files that do not have this policy.
//! let items = limiters.limiter(Policy::new("items").quota("second", Quota::per_second(20)))?;
//! let app: Router = Router::new()
//!     .route("/search", get(async || "found").layer(RateLimitLayer::new(search, PeerIp::new())))
//!     .route("/items", get(async || "items").layer(RateLimitLayer::new(items, PeerIp::new())));
//! # let (dir, write) = (std::env::temp_dir(), std::fs::write::<std::path::PathBuf, &str>);
//! # let path = dir.join(format!("fleetlimit-guide-{}.toml", std::process::id()));
//! # write(path.clone(), file)?;
//!
//! // Reloads the file when it changes, until `watch` is dropped.
//! let watch = limiters.watch(&path, parse)?;
//! // Or when you say so, for example on SIGHUP.
//! limiters.reload_file(&path, parse)?;
//! # std::fs::remove_file(path)?;
//! # drop((app, watch));
//! # Ok(()) }
//! # #[cfg(feature = "serde")]
//! # app().unwrap();
//! ```
//!
//! The example `limits_file` is a complete program. All instances have to read the same file. Until the last one
//! has read it, a key gets at most the larger burst and the larger rate. If an algorithm changes, or the period of a
//! calendar window, a key can get the sum of both limits.
//!
//! # Hot keys and distant servers
//!
//! A check waits for a round trip to Redis. If Redis is far away, this takes long. If most checks are for one key, a
//! single server has to decide them. With a [`lease`], a check that goes to Redis also takes the permits that the
//! instance expects to need next. Then the instance decides the next checks of the key in memory. It takes more before
//! these permits run out, and no check waits for that.
//!
//! The limit still holds for all instances together: over any span of time, a token bucket admits at most its burst plus
//! its rate times the span.
//!
//! ```
//! use std::time::Duration;
//! use fleetlimit::{ConfigError, Limiter, Policy, Quota, Store};
//!
//! fn limiter(store: impl Store) -> Result<Limiter, ConfigError> {
//!     let policy = Policy::new("api").quota("rate", Quota::per_second(1_000));
//!     Limiter::builder(store, policy).lease(Duration::from_millis(100)).build()
//! }
//! # use fleetlimit::{MemoryStore, RedisStore};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # limiter(RedisStore::open("redis://127.0.0.1:6379")?)?;
//! # let decision = limiter(MemoryStore::new())?.check("acme").await?;
//! # assert_eq!((decision.limit(), decision.remaining()), (1_000, 999));
//! # Ok(()) }
//! ```
//!
//! **Use a lease** if each instance checks a key many times while a lease lasts. An instance that checks a key less than
//! twice in that time takes no lease of it. The burst has to be large, too: with `n` instances, each takes at most
//! `1/(2n)` of the permits that are free. So a lease gains little for a limit of 10 per second for each client.
//!
//! **Choose the length** between two bounds:
//!
//! - At least four round trips to Redis, because an instance asks for the next lease at least two round trips before
//!   the current one ends.
//! - At most a tenth of the time in which the burst refills, because the bucket in Redis is smaller than the burst, by
//!   the rate times the lease. With 1,000 per second, a burst of 1,000 and a lease of 100 ms, it holds 900. So
//!   responses of an unused key have `q=1000` and `r=899`. A check that costs more than 900 is always denied.
//!
//! If four round trips are longer than that tenth, use a larger burst.
//!
//! **The cost of a lease** depends on the demand. In the plot, three instances check one key. The left side shows what
//! they admit, compared with an exact bucket that gets the same requests. The right side shows how many checks do not
//! wait for Redis.
//!
//! <div>
#![doc = include_str!("../docs/leases.svg")]
//! </div>
//!
//! - Below the limit, nearly all checks are decided in memory, and nothing is lost.
//! - If the demand is always above the limit, few permits are free, so leases decide few checks. A key that was not
//!   used before gets a smaller burst first, by the rate times the lease. Later nothing is lost here either.
//! - If requests come in bursts that empty the bucket, each burst gets fewer permits, by the rate times the lease. In
//!   the plot, a lease of 100 ms loses 100 of the 2,000 permits that an exact bucket admits in a burst of one second:
//!   1,000 that the bucket holds, and 1,000 that refill in that second.
//!
//! Before you deploy a lease:
//!
//! - **All instances need the same lease.** While they have different ones, as in a rolling deployment, a token bucket can
//!   admit more: the rate times the longest lease. If the demand is above the limit, instances with shorter leases, or
//!   with none, get most of the permits meanwhile, because the bucket is larger for them.
//! - **Call [`RedisStore::shutdown`]** before the process ends, so that it gives back unused permits. If a process is
//!   killed, its unused permits count as used until they have refilled.
//! - **If Redis fails**, a lease is used until its permits are used up or it ends. Then the failure mode decides.
//! - Queues and sliding windows have no leases. A concurrent quota has them only if it is the only quota of its policy. In a fixed or calendar window, a lease ends with the window.
//!
//! The docs of [`lease`] have the details, such as what [`Limiter::reset`] does to leases. The
//! [metrics](#metrics-and-traces) show how many checks are decided by leases, and how many of their permits are used.
//!
//! # A check in a handler
//!
//! A handler can return a [`Decision`](crate::Decision) or an [`Error`](crate::Error) as a response. `?` on
//! [`ensure_allowed`](crate::Decision::ensure_allowed) gives the same 429 as a layer. To add the rate limit headers
//! to your own responses, return a tuple with the decision. For a denial with your own body, add
//! [`decision.headers`](crate::Decision::headers), which includes `Retry-After`:
//!
//! ```
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::response::{IntoResponse, Response};
//! use fleetlimit::Limiter;
//! use fleetlimit::layer::HeaderStyle;
//!
//! async fn search(State(limiter): State<Limiter>) -> Result<Response, fleetlimit::Error> {
//!     let decision = limiter.check("user:7").await?;
//!     if decision.is_denied() {
//!         let headers = decision.headers(HeaderStyle::Ietf);
//!         return Ok((StatusCode::TOO_MANY_REQUESTS, headers, "too many searches").into_response());
//!     }
//!     Ok((decision, "found").into_response())
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(fleetlimit::MemoryStore::new(), fleetlimit::Quota::per_minute(1))?;
//! # let found = search(State(limiter.clone())).await?;
//! # assert_eq!(found.status(), StatusCode::OK);
//! # assert_eq!(found.headers()["ratelimit"], r#""default";r=0;t=60"#);
//! # let denied = search(State(limiter)).await?;
//! # assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
//! # assert!(denied.headers().contains_key("retry-after"));
//! # assert_eq!(denied.headers()["cache-control"], "no-store");
//! # Ok(()) }
//! ```
//!
//! Behind a layer, the handler need not check again. It finds the decision of the layer in an
//! `Option<axum::Extension<Decision>>`, which is `None` if the resolver skipped the request.
//!
//! # Custom responses
//!
//! One hook builds every error response of the layer: [`error_response`]. It returns an
//! `http::Response`. With axum, call `.into_response()` on anything that implements `IntoResponse`.
//! JSON as below needs `cargo add serde_json`:
//!
//! ```
//! use axum::Json;
//! use axum::http::StatusCode;
//! use axum::response::{IntoResponse, Response};
//! use serde_json::json;
//! use fleetlimit::layer::{Cause, ErrorContext};
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//!
//! fn error_response(context: &ErrorContext<'_>) -> Response {
//!     let (status, error) = match context.cause() {
//!         Cause::Denied(_) => (StatusCode::TOO_MANY_REQUESTS, "rate limit exceeded"),
//!         // A misconfigured server: the log has the details, the client gets none.
//!         Cause::MissingKey(rejection) if rejection.status().is_server_error() => {
//!             (rejection.status(), "internal error")
//!         }
//!         Cause::MissingKey(rejection) | Cause::Rejected(rejection) => {
//!             (rejection.status(), rejection.message())
//!         }
//!         // In the failure mode `Closed`, or if the costs name an unknown quota.
//!         Cause::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "try again later"),
//!         _ => return context.default_response().into_response(),
//!     };
//!     let policy = context.policy().name();
//!     (status, Json(json!({ "error": error, "policy": policy }))).into_response()
//! }
//!
//! fn layer(limiter: Limiter) -> RateLimitLayer<PeerIp> {
//!     RateLimitLayer::new(limiter, PeerIp::new()).error_response(error_response)
//! }
//! ```
//!
//! The layer adds `Retry-After` and the rate limit headers to a denial. Unless the hook sets `Cache-Control`, the
//! layer sets it to `no-store`. The text of an [`Error`](crate::Error) describes the server: log it, and
//! do not send it to clients.
//!
//! # Login, and other keys from the body
//!
//! A layer does not read bodies. Check in the handler instead, where the body has been parsed. This recipe needs
//! `cargo add serde --features derive`.
//!
//! ```
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::response::{IntoResponse, Response};
//! use axum::routing::post;
//! use axum::{Json, Router};
//! use serde::Deserialize;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! #[derive(Deserialize)]
//! struct Login {
//!     email: String,
//!     password: String,
//! }
//!
//! async fn login(
//!     State(attempts): State<Limiter>,
//!     Json(login): Json<Login>,
//! ) -> Result<Response, fleetlimit::Error> {
//!     // One key per account, however the address is written.
//!     let account = login.email.trim().to_lowercase();
//!     attempts.check(account.as_str()).await?.ensure_allowed()?;
//!     if login.password != "correct horse" {
//!         return Ok((StatusCode::UNAUTHORIZED, "wrong e-mail address or password").into_response());
//!     }
//!     // The next attempts after a success start with a full bucket. A failed reset must not fail the
//!     // login.
//!     if let Err(error) = attempts.reset(account.as_str()).await {
//!         eprintln!("cannot reset the login attempts: {error}");
//!     }
//!     Ok("welcome".into_response())
//! }
//!
//! fn app() -> Result<Router, ConfigError> {
//!     let store = MemoryStore::new();
//!     let limiter = |name, quota| Limiter::new(store.clone(), Policy::new(name).quota(name, quota));
//!     // Five attempts at once, then one every three minutes.
//!     let per_account = limiter("login-account", Quota::per_hour(20).burst(5))?;
//!     let per_address = limiter("login-address", Quota::per_hour(100).burst(20))?;
//!     Ok(Router::new()
//!         .route("/login", post(login).layer(RateLimitLayer::new(per_address, PeerIp::new())))
//!         .with_state(per_account))
//! }
//! # use axum::body::Body;
//! # use axum::extract::connect_info::MockConnectInfo;
//! # use axum::http::Request;
//! # use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = std::net::SocketAddr::from(([203, 0, 113, 7], 4711));
//! # let app = app()?.layer(MockConnectInfo(client));
//! # let log_in = async |email: &str, password: &str| {
//! #     let body = serde_json::json!({ "email": email, "password": password }).to_string();
//! #     let request = Request::post("/login").header("content-type", "application/json");
//! #     app.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap().status().as_u16()
//! # };
//! # assert_eq!(log_in("me@example.com", "correct horse").await, 200);
//! # for _ in 0..5 {
//! #     assert_eq!(log_in(" Me@example.com", "wrong").await, 401);
//! # }
//! # assert_eq!(log_in("me@example.com", "correct horse").await, 429);
//! # assert_eq!(log_in("you@example.com", "correct horse").await, 200);
//! # Ok(()) }
//! ```
//!
//! - **Anyone can lock the owner of an account out**, for as long as they keep trying. The limit per address only
//!   bounds how many accounts one address can lock out.
//! - **While Redis is down**, each instance allows its share of the attempts. One that starts in the outage allows
//!   the whole limit, unless you set [`instances`]. If you would rather let nobody log in, build `per_account` with
//!   [`FailureMode::Closed`]. `reset` ignores the failure mode: it fails whenever Redis does.
//! - **Keys are readable in Redis.** If e-mail addresses must not be stored there, hash them first.
//!
//! The example `login` counts only failures. It has a layer by address, then a middleware that reads the body, and
//! then a layer by e-mail address.
//!
//! ## Under a catch-all error
//!
//! Many handlers return a catch-all error type, for example around an `anyhow::Error`, which responds to any error
//! with 500. With such a type, `?` also turns denials and outages into a 500. Recover the limiter's error where the
//! type becomes a response:
//!
//! ```
//! use axum::http::StatusCode;
//! use axum::response::{IntoResponse, Response};
//! use fleetlimit::Limiter;
//!
//! /// Or around an `anyhow::Error`, which has the same `downcast`.
//! struct AppError(Box<dyn std::error::Error + Send + Sync>);
//!
//! impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for AppError {
//!     fn from(error: E) -> Self {
//!         Self(error.into())
//!     }
//! }
//!
//! impl IntoResponse for AppError {
//!     fn into_response(self) -> Response {
//!         match self.0.downcast::<fleetlimit::Error>() {
//!             Ok(error) => error.into_response(),
//!             Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
//!         }
//!     }
//! }
//!
//! async fn handler(limiter: Limiter) -> Result<&'static str, AppError> {
//!     limiter.check("user:7").await?.ensure_allowed()?;
//!     Ok("hello")
//! }
//! # use fleetlimit::{MemoryStore, Quota};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fleetlimit::ConfigError> {
//! # let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1))?;
//! # assert_eq!(handler(limiter.clone()).await.into_response().status(), StatusCode::OK);
//! # let denied = handler(limiter).await.into_response();
//! # assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
//! # assert!(denied.headers().contains_key("retry-after"));
//! # Ok(()) }
//! ```
//!
//! # WebSocket messages
//!
//! A layer sees only the request that opens a WebSocket, and so limits connections, not messages. Check each
//! message in the handler. This recipe needs `cargo add axum --features ws`.
//!
//! ```
//! use axum::Router;
//! use axum::extract::State;
//! use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
//! use axum::response::Response;
//! use axum::routing::any;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//!
//! async fn chat(upgrade: WebSocketUpgrade, State(messages): State<Limiter>) -> Response {
//!     // The user that was authenticated.
//!     let user = "user:7";
//!     upgrade.on_upgrade(move |socket| serve(socket, messages, user))
//! }
//!
//! async fn serve(mut socket: WebSocket, messages: Limiter, user: &'static str) {
//!     while let Some(Ok(message)) = socket.recv().await {
//!         let Message::Text(text) = message else { continue };
//!         let reply = match messages.check(user).await {
//!             Ok(decision) if decision.is_allowed() => text,
//!             Ok(_) => "slow down".into(),
//!             // Redis fails, in the failure mode `Closed`.
//!             Err(_) => break,
//!         };
//!         if socket.send(Message::Text(reply)).await.is_err() {
//!             break;
//!         }
//!     }
//! }
//!
//! fn app(connections: Limiter, messages: Limiter) -> Router {
//!     Router::new()
//!         .route("/chat", any(chat))
//!         .layer(RateLimitLayer::new(connections, PeerIp::new()))
//!         .with_state(messages)
//! }
//! # use fleetlimit::{MemoryStore, Policy, Quota};
//! # use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = MemoryStore::new();
//! # let limiter = |name, n| {
//! #     Limiter::new(store.clone(), Policy::new(name).quota(name, Quota::per_hour(n)))
//! # };
//! # let (connections, messages) = (limiter("connections", 1)?, limiter("messages", 2)?);
//! # let settled = limiter("settled", 100)?;
//! # let by_response = RateLimitLayer::new(settled.clone(), PeerIp::new()).cost_by_response(|_| 7);
//! # let app = app(connections, messages).layer(by_response);
//! # let app = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # tokio::spawn(async { axum::serve(listener, app).await });
//! # let open = async || {
//! #     let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
//! #     let head = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
//! #         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
//! #     client.write_all(head.as_bytes()).await.unwrap();
//! #     let mut head = Vec::new();
//! #     while !head.ends_with(b"\r\n\r\n") {
//! #         head.push(client.read_u8().await.unwrap());
//! #     }
//! #     (client, String::from_utf8(head).unwrap())
//! # };
//! # let (mut client, head) = open().await;
//! # assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
//! # let (_, head) = open().await;
//! # assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
//! # for reply in ["hello", "hello", "slow down", "slow down"] {
//! #     // A text frame of a client, with a mask of zeros.
//! #     client.write_all(b"\x81\x85\0\0\0\0hello").await?;
//! #     let mut frame = vec![0; 2 + reply.len()];
//! #     client.read_exact(&mut frame).await?;
//! #     assert_eq!(&frame[2..], reply.as_bytes());
//! # }
//! # // The connection that is open, and the one that was denied.
//! # assert_eq!(settled.peek("127.0.0.1").await?.remaining(), 100 - 2 * 7);
//! # Ok(()) }
//! ```
//!
//! To slow the client down instead, call [`acquire`], which waits until the message may proceed. Meanwhile the
//! handler reads nothing, and so the client cannot send much more.
//!
//! [`cost_by_response`] cannot charge for a WebSocket. The response that opens it has no body, so its cost is
//! settled at once. (Under a policy with a concurrent quota, it is not settled at all: the handler calls
//! [`Hold::settle`](crate::Hold::settle).) To count it as a [request in flight](#requests-in-flight) while it is open, take the hold from the
//! extensions of the request, and move it into the closure of `on_upgrade`:
//!
//! ```
//! use std::sync::Arc;
//! use axum::Extension;
//! use axum::extract::ws::{WebSocket, WebSocketUpgrade};
//! use axum::response::Response;
//! use fleetlimit::Hold;
//!
//! async fn chat(upgrade: WebSocketUpgrade, Extension(hold): Extension<Arc<Hold>>) -> Response {
//!     upgrade.on_upgrade(async move |socket| {
//!         serve(socket).await;
//!         drop(hold);
//!     })
//! }
//! # async fn serve(_: WebSocket) {}
//! # axum::Router::<()>::new().route("/chat", axum::routing::any(chat));
//! ```
//!
//! # gRPC
//!
//! The same layer works for tonic. Denials are gRPC responses there: `RESOURCE_EXHAUSTED` with a `RetryInfo`. This
//! needs the crate's feature `tonic`. Without it, the layer does not recognize tonic's server, [`PeerIp`] finds no
//! address, and every call fails. The log says why.
//!
//! ```no_run
//! use std::net::SocketAddr;
//!
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, RateLimitLayer};
//! use tonic::transport::{Error, Server};
//!
//! async fn serve(limiter: Limiter, address: SocketAddr) -> Result<(), Error> {
//!     // Any service that tonic generates works in place of the health service.
//!     let (_reporter, service) = tonic_health::server::health_reporter();
//!     Server::builder()
//!         .layer(RateLimitLayer::new(limiter, PeerIp::new()))
//!         .add_service(service)
//!         .serve(address)
//!         .await
//! }
//! ```
//!
//! This recipe needs `cargo add --path ../fleetlimit --features tonic` and `cargo add tonic tonic-health`.
//!
//! A request gets a gRPC response if its content type is gRPC or gRPC-Web and tonic serves it. The layer recognizes
//! tonic's server, and tonic's routes in an axum router. In both cases, the service needs a name such as
//! `package.Service`. Elsewhere, [`grpc`] enables gRPC responses. Do not enable them on HTTP routes: a gRPC response
//! has the HTTP status 200, so a denial would look like a success.
//!
//! The path of a request is `/package.Service/Method`, so `(PeerIp::new(), Path)` limits each method separately. A
//! client can invent methods, and each is a new key. So add that layer to known services only, or match the path in
//! a closure. Browsers read gRPC-Web statuses only if CORS exposes the headers `grpc-status` and `grpc-message`.
//!
//! ## gRPC by tenant
//!
//! gRPC metadata are headers that the client chooses. So let an interceptor verify them and insert the tenant
//! into the request's extensions, where [`Extension`] finds it. In tonic, the layer that was added **first** runs
//! first:
//!
//! ```
//! use fleetlimit::resolve::{Extension, PeerIp};
//! use fleetlimit::{Limiter, RateLimitLayer};
//! use tonic::service::InterceptorLayer;
//! use tonic::transport::Server;
//! use tonic::{Request, Status};
//!
//! #[derive(Clone)]
//! struct Tenant(u64);
//!
//! fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
//!     let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok());
//!     let tenant = match token {
//!         Some("Bearer secret") => Tenant(7),
//!         _ => return Err(Status::unauthenticated("invalid token")),
//!     };
//!     request.extensions_mut().insert(tenant);
//!     Ok(request)
//! }
//!
//! # async fn serve(
//! #     per_address: Limiter,
//! #     per_tenant: Limiter,
//! #     incoming: tonic::transport::server::TcpIncoming,
//! # ) -> Result<(), tonic::transport::Error> {
//! # let (_reporter, service) = tonic_health::server::health_reporter();
//! Server::builder()
//!     // Also limits calls with invalid tokens.
//!     .layer(RateLimitLayer::new(per_address, PeerIp::new()))
//!     .layer(InterceptorLayer::new(authenticate))
//!     .layer(RateLimitLayer::new(per_tenant, Extension::map(|Tenant(id): &Tenant| *id)))
//!     .add_service(service)
//! #   .serve_with_incoming(incoming)
//! #   .await
//! # }
//! # use fleetlimit::{MemoryStore, Policy, Quota};
//! # use tonic::{Code, metadata::MetadataValue};
//! # use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = MemoryStore::new();
//! # let limiter = |name, n| {
//! #     Limiter::new(store.clone(), Policy::new(name).quota(name, Quota::per_hour(n)))
//! # };
//! # let (per_address, per_tenant) = (limiter("address", 5)?, limiter("tenant", 2)?);
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let url = format!("http://{}", listener.local_addr()?);
//! # tokio::spawn(serve(per_address, per_tenant, listener.into()));
//! # let channel = tonic::transport::Endpoint::from_shared(url)?.connect().await?;
//! # let mut client = HealthClient::new(channel);
//! # let mut call = async |token| {
//! #     let mut request = Request::new(HealthCheckRequest { service: String::new() });
//! #     request.metadata_mut().insert("authorization", MetadataValue::from_static(token));
//! #     client.check(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
//! # };
//! # assert_eq!(call("Bearer wrong").await, Code::Unauthenticated);
//! # assert_eq!(call("Bearer secret").await, Code::Ok);
//! # assert_eq!(call("Bearer secret").await, Code::Ok);
//! # assert_eq!(call("Bearer secret").await, Code::ResourceExhausted);
//! # assert_eq!(call("Bearer wrong").await, Code::Unauthenticated);
//! # assert_eq!(call("Bearer wrong").await, Code::ResourceExhausted);
//! # Ok(()) }
//! ```
//!
//! # Outgoing calls
//!
//! Instances that share a budget of five requests per second to a third party take their permits from one key.
//! [`acquire`] waits until a permit is available, in the order of arrival. The [queue](#queue) limits the wait.
//! Without a queue, [`max_wait`](crate::LimiterBuilder::max_wait) does. A check that would have to wait longer is
//! denied at once, and so is one that finds too many waiters in its process. By default 128 may wait for one key.
//! With a single key, raise [`max_waiters_per_key`](crate::LimiterBuilder::max_waiters_per_key).
//!
//! ```
//! use std::time::Duration;
//! use fleetlimit::{Error, Limiter, MemoryStore, Quota};
//!
//! const BUDGET: Quota = Quota::per_second(5).queue(Duration::from_secs(30));
//!
//! async fn call(limiter: &Limiter) -> Result<(), Error> {
//!     limiter.acquire("third-party").await?.ensure_allowed()?;
//!     // Make the call.
//!     Ok(())
//! }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::new(MemoryStore::new(), BUDGET)?;
//! # let start = tokio::time::Instant::now();
//! # for _ in 0..11 { call(&limiter).await?; }
//! # assert_eq!(start.elapsed().as_secs(), 2);
//! # Ok(()) }
//! ```
//!
//! A [`RateLimitLayer`] around a client waits in the same way: see the example `outbound`. Its option
//! [`without_drain`](crate::RateLimitLayer::without_drain) is for clients, whose request bodies need not be read
//! before a denial. Use [`FailureMode::Closed`] if calls beyond the limit are worse than no calls.
//!
//! Calls proceed 200 ms apart. The network and busy machines delay some of them, so two can arrive closer
//! together. If the other side counts strictly, leave some room, such as 5 per 1,100 ms.
//!
//! ## Callers that give up
//!
//! A caller that drops the future of [`acquire`] leaves the queue, and those behind it in the process move up.
//! So `select!` is enough for a deadline or a shutdown. When all callers have returned, call `shutdown` on the store,
//! which waits until the places are given back:
//!
//! ```
//! use std::time::Duration;
//! use fleetlimit::Limiter;
//! use tokio::sync::watch;
//! use tokio::time::sleep;
//!
//! /// Returns true if the call may be made.
//! async fn may_call(
//!     limiter: &Limiter,
//!     mut shutdown: watch::Receiver<bool>,
//! ) -> Result<bool, fleetlimit::Error> {
//!     tokio::select! {
//!         decision = limiter.acquire("third-party") => Ok(decision?.is_allowed()),
//!         _ = sleep(Duration::from_secs(5)) => Ok(false),
//!         _ = shutdown.wait_for(|is_shutting_down| *is_shutting_down) => Ok(false),
//!     }
//! }
//! # use fleetlimit::{AnyStore, Quota};
//! # use tokio::time::Instant;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = AnyStore::open("memory:")?;
//! # let quota = Quota::per_second(1).queue(Duration::from_secs(30));
//! # let limiter = Limiter::new(store.clone(), quota)?;
//! # let (stop, shutdown) = watch::channel(false);
//! # let start = Instant::now();
//! # let callers: Vec<_> = (0..10).map(|_| {
//! #     let (limiter, shutdown) = (limiter.clone(), shutdown.clone());
//! #     tokio::spawn(async move { may_call(&limiter, shutdown).await })
//! # }).collect();
//! # let mut allowed = 0;
//! # for caller in callers { allowed += u32::from(caller.await??); }
//! # assert!((5..=6).contains(&allowed), "{allowed}");
//! # assert_eq!(start.elapsed().as_secs(), 5);
//! # // The places of those that have given up are free.
//! # limiter.acquire("third-party").await?.ensure_allowed()?;
//! # assert!(start.elapsed() <= Duration::from_secs(6));
//!
//! # let caller = tokio::spawn({
//! #     let limiter = limiter.clone();
//! #     async move { may_call(&limiter, shutdown).await }
//! # });
//! // At SIGTERM: first the callers return, then the store.
//! stop.send(true)?;
//! # assert!(!caller.await??);
//! store.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! # Tests with a paused clock
//!
//! A [`MemoryStore`] follows Tokio's paused clock, so a test of a limit takes no time:
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::body::Body;
//! use axum::http::{Request, StatusCode};
//! use axum::routing::get;
//! use tokio::time::advance;
//! use fleetlimit::resolve::Global;
//! use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
//! use tower::ServiceExt;
//!
//! # /*
//! #[tokio::test(start_paused = true)]
//! # */
//! async fn a_client_may_return_after_the_wait() {
//!     let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1)).unwrap();
//!     let app = Router::new()
//!         .route("/", get(async || "hello"))
//!         .layer(RateLimitLayer::new(limiter, Global));
//!     let status = async || {
//!         let request = Request::new(Body::empty());
//!         app.clone().oneshot(request).await.unwrap().status()
//!     };
//!     assert_eq!(status().await, StatusCode::OK);
//!     assert_eq!(status().await, StatusCode::TOO_MANY_REQUESTS);
//!     advance(Duration::from_secs(60)).await;
//!     assert_eq!(status().await, StatusCode::OK);
//! }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { a_client_may_return_after_the_wait().await }
//! ```
//!
//! This recipe needs `cargo add --dev tokio --features full,test-util` and `cargo add --dev tower
//! --features util`.
//!
//! - The buckets of a [`RedisStore`] follow the clock of the Redis server, so only real time refills them.
//! - [`Decision::allowed`] and [`Decision::denied`] create decisions, for tests of code that takes a `Decision`.
//! - axum's `MockConnectInfo` provides the address for [`PeerIp`] and [`ClientIp`].
//!
//! # Shutting down
//!
//! Finish the open requests, and then call [`RedisStore::shutdown`]. It deregisters the instance, so that in a later
//! outage the others divide the whole limits among themselves. It charges what the instance took while Redis failed.
//! It also logs the number of checks that Redis did not decide, if that has not been logged yet.
//!
//! ```no_run
//! use axum::Router;
//! use tokio::net::TcpListener;
//! use tokio::signal::unix::{SignalKind, signal};
//! use fleetlimit::RedisStore;
//!
//! async fn serve(app: Router, store: RedisStore) -> std::io::Result<()> {
//!     // What Kubernetes, systemd and Docker send.
//!     let mut terminate = signal(SignalKind::terminate())?;
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app)
//!         .with_graceful_shutdown(async move {
//!             terminate.recv().await;
//!         })
//!         .await?;
//!     store.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! `shutdown` takes at most a second. The grace period of the orchestrator has to be long enough for the open
//! requests and that second.
//!
//! # Rollout
//!
//! 1. **Prepare Redis.** Give it enough memory, the eviction policy `noeviction`, and a user with only the
//!    permissions that [`RedisStore`] lists. When memory is full, checks fail, and the failure mode
//!    decides. With other policies, Redis may evict buckets instead, and their keys can use a full burst again: see
//!    [docs/operations.md].
//! 2. **Measure first**, in shadow mode. Requests are decided and charged as usual, but not denied,
//!    and clients see no headers. Look at who would be denied:
//!
//!    ```
//!    use fleetlimit::resolve::PeerIp;
//!    use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
//!
//!    let limiter = Limiter::builder(MemoryStore::new(), Quota::per_second(10))
//!        .enforce_for_percent(0.0)
//!        .build()?;
//!    let layer = RateLimitLayer::new(limiter, PeerIp::new()).on_decision(|checked| {
//!        if checked.decision.would_be_denied() {
//!            println!("would deny {:?}", checked.key);
//!        }
//!    });
//!    # let _ = layer;
//!    # Ok::<(), fleetlimit::ConfigError>(())
//!    ```
//!
//!    Then enforce the limit for 1% of the keys, 10%, and all.
//! 3. **Start with a generous limit and the failure mode [`Open`]**, so that requests pass while Redis is
//!    down. (While Redis is only [overloaded](crate::FailureMode#overload), each instance enforces its share of the
//!    limit.) Change to `Local` once the limit fits.
//! 4. **Watch the log.** Alert on `tracing` events of the target `fleetlimit` at the levels WARN and ERROR. WARN
//!    means, for example, that the failure mode decides checks, or that an instance cannot register. ERROR means
//!    that requests are rejected because of a misconfiguration, or that invalid limits are not used. Each event has
//!    a stable name in its field `event`: [docs/messages.md] has the cause of each, and what to change. Count
//!    denials with [metrics](#metrics-and-traces).
//! 5. **Tighten** with a deployment, or with [`Limiter::update`] in every instance. Used permits stay used. While
//!    two versions of a quota run at once, a key gets at most the larger burst and the larger rate. If the algorithm
//!    changes, or the period of a calendar window, a key can get the sum of both limits.
//!
//! # An admin endpoint
//!
//! Operators ask three questions: what is left for a key, which keys are denied most, and how to block one.
//! [`Limiter::peek`] answers the first, and takes no permit. [`DeniedKeys`] finds the keys that are denied most, in
//! bounded memory. A [`BlockList`] blocks keys in all instances. This recipe needs the crate's feature `denied-keys`.
//!
//! ```
//! # #[cfg(feature = "denied-keys")]
//! # mod recipe {
//! use std::num::NonZeroU16;
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::extract::{Path, State};
//! use axum::routing::{get, put};
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{BlockList, DeniedKeys, Error, Limiter, RateLimitLayer, Store};
//!
//! const TWENTY: NonZeroU16 = NonZeroU16::new(20).unwrap();
//!
//! #[derive(Clone)]
//! struct Admin {
//!     limiter: Limiter,
//!     denied: DeniedKeys,
//!     blocked: BlockList,
//! }
//!
//! async fn left(State(admin): State<Admin>, Path(key): Path<String>) -> Result<String, Error> {
//!     let decision = admin.limiter.peek(key).await?;
//!     Ok(format!("{} of {} permits left\n", decision.remaining(), decision.limit()))
//! }
//!
//! async fn most_denied(State(admin): State<Admin>) -> String {
//!     let lines = admin.denied.list().into_iter().map(|(key, count)| format!("{count} {key}\n"));
//!     lines.collect()
//! }
//!
//! async fn block(State(admin): State<Admin>, Path(key): Path<String>) -> Result<&'static str, Error> {
//!     let policy = admin.limiter.policy();
//!     admin.blocked.block(policy.name(), key, Duration::from_secs(3_600)).await?;
//!     Ok("blocked for an hour\n")
//! }
//!
//! /// Returns the routes of the service and those for operators.
//! pub fn apps(store: &impl Store, limiter: Limiter) -> (Router, Router) {
//!     let (denied, blocked) = (DeniedKeys::plain(TWENTY), BlockList::new(store));
//!     let counter = denied.clone();
//!     let layer = RateLimitLayer::new(limiter.clone(), PeerIp::new())
//!         .on_decision(move |checked| counter.observe(checked.key, checked.decision));
//!     let app = Router::new().route("/", get(async || "hello")).layer(layer);
//!     let admin = Router::new()
//!         // The key of an IPv6 client has a slash.
//!         .route("/keys/{*key}", get(left))
//!         .route("/denied", get(most_denied))
//!         .route("/blocked/{*key}", put(block))
//!         .with_state(Admin { limiter, denied, blocked });
//!     (app, admin)
//! }
//! # }
//! # #[cfg(feature = "denied-keys")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use axum::body::{Body, to_bytes};
//! # use axum::extract::connect_info::MockConnectInfo;
//! # use axum::http::Request;
//! # use fleetlimit::{Limiter, MemoryStore, Quota};
//! # use tower::ServiceExt;
//! # let store = MemoryStore::new();
//! # let (app, admin) = recipe::apps(&store, Limiter::new(store.clone(), Quota::per_hour(1))?);
//! # let app = app.layer(MockConnectInfo(std::net::SocketAddr::from(([203, 0, 113, 7], 4711))));
//! # let text = async |method, path| {
//! #     let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
//! #     let response = admin.clone().oneshot(request).await.unwrap();
//! #     String::from_utf8(to_bytes(response.into_body(), 1_000).await.unwrap().into()).unwrap()
//! # };
//! # assert_eq!(text("GET", "/keys/203.0.113.7").await, "1 of 1 permits left\n");
//! # for _ in 0..3 { app.clone().oneshot(Request::new(Body::empty())).await?; }
//! # assert_eq!(text("GET", "/keys/203.0.113.7").await, "0 of 1 permits left\n");
//! # assert_eq!(text("GET", "/denied").await, "2 203.0.113.7\n");
//! # assert_eq!(text("PUT", "/blocked/203.0.113.8").await, "blocked for an hour\n");
//! # assert_eq!(text("GET", "/keys/2001:db8:1:2::/64").await, "1 of 1 permits left\n");
//! # Ok(()) }
//! # #[cfg(not(feature = "denied-keys"))]
//! # fn main() {}
//! ```
//!
//! Serve these routes on a port that only operators reach, or behind authentication: they show keys, which may be
//! addresses or names. The example `admin` asks for a bearer token. Call [`BlockList::refresh`] when a process
//! starts, so that the list applies to its first request.
//!
//! # Metrics and traces
//!
//! With the feature `metrics`, fleetlimit reports metrics to the recorder of the crate [`metrics`]. The example
//! `metrics` serves them to Prometheus (`cargo run --example metrics --features metrics`), and `docs/grafana.json`
//! is a dashboard.
//!
//! - The names follow OpenTelemetry, and the units are those of UCUM. The queries below and the dashboard use the
//!   names that Prometheus recommends, such as `fleetlimit_decisions_total`, and need histograms. With
//!   `metrics-exporter-prometheus`, call `with_recommended_naming(true)` and set buckets, as the example does.
//! - Install the recorder before the first check. Counters and gauges also include what happened before that, but
//!   histograms do not. A zero-sized recorder is treated as no recorder.
//! - Set no idle timeout in an exporter, because what it removes is not reported again.
//! - No label contains the key of a check. In each process, up to 2,000 servers have a label value of their own,
//!   and all further servers share the value `other`.
//!
//! | metric | kind | unit | labels | |
//! |---|---|---|---|---|
//! | `fleetlimit.decisions` | counter | {decision} | `fleetlimit.policy`, `fleetlimit.outcome`, `fleetlimit.source` | Decisions about checks. The outcome is `allowed`, `denied`, `would_be_denied` (in shadow mode) or `failed` (no decision). A check fails if the store fails in the failure mode [`Closed`], if its costs name an unknown quota, or if its policy needs a [hold](#requests-in-flight). In these cases, the source is `failure_mode`. The sources are those of [`Source`]: `store`, `cached`, `local`, `failure_mode`, `quota`, `blocked`, `lease`. |
//! | `fleetlimit.check.failures` | counter | {check} | `fleetlimit.policy`, `error.type` | Checks for which the store failed, whose costs name an unknown quota, or that needed a [hold](#requests-in-flight). The type is an [`ErrorKind`]: `timeout`, `unavailable`, `server`, `overloaded`, `unknown_quota`, `not_held`. |
//! | `fleetlimit.check.duration` | histogram | s | `fleetlimit.policy` | How long checks waited for Redis. One in 256 is measured. |
//! | `fleetlimit.charges.forgiven` | counter | {permit} | `fleetlimit.policy` | Permits that were not charged, because the key already owed as much as it can: see [`Quota::debt_up_to`]. With several quotas, only the largest amount is counted. |
//! | `fleetlimit.lease.permits` | counter | {permit} | `fleetlimit.policy`, `fleetlimit.lease.event` | Permits of [leases](#hot-keys-and-distant-servers). The event is `leased` when they are taken. When the lease ends, each permit is counted once more: as `used`, as `returned` (given back, or already refilled), or as `lost` (neither used nor given back, for example because Redis failed or the key was reset). With several quotas, only the largest amount is counted. |
//! | `fleetlimit.permits.held` | gauge | {permit} | `fleetlimit.policy` | Permits of [concurrent quotas](#requests-in-flight) that this process holds, of all keys together. For a layer, it is usually the number of requests in flight. The metric appears once a permit has been held. |
//! | `fleetlimit.evictions` | counter | {bucket} | none | Buckets that were evicted from the memory of the process: from a [`MemoryStore`], or from what a [`RedisStore`] keeps for outages. |
//! | `fleetlimit.redis.repairs` | counter | {bucket} | `fleetlimit.policy` | Values in Redis that were corrupt or of another type. Each counts as a bucket with no permits left. |
//! | `fleetlimit.redis.uncharged` | counter | {permit} | `fleetlimit.policy` | Permits that were taken locally while Redis failed, and that Redis might never charge: the charge timed out or failed after it was sent, or there were more keys than [`local_keys`](crate::RedisStore::local_keys). With several quotas, only the largest amount is counted. |
//! | `fleetlimit.redis.call.duration` | histogram | s | `fleetlimit.server` | How long a server took to reply to a batch, including the network. |
//! | `fleetlimit.redis.batch.size` | histogram | {check} | `fleetlimit.server` | Checks that were sent together. |
//! | `fleetlimit.redis.queue.length` | histogram | {check} | `fleetlimit.server` | Checks that still waited when a batch was sent. |
//! | `fleetlimit.redis.breaker.open` | gauge | {breaker} | `fleetlimit.server` | Circuit breakers that are open. There is one for each server and timeout. |
//! | `fleetlimit.redis.breaker.openings` | counter | {opening} | `fleetlimit.server` | How often they have opened. |
//! | `fleetlimit.redis.noscript` | counter | {reply} | `fleetlimit.server` | `NOSCRIPT` replies, after which a script is sent again as a whole. |
//! | `fleetlimit.redis.redirections` | counter | {reply} | `fleetlimit.server` | `MOVED` and `ASK` replies. |
//! | `fleetlimit.redis.connections` | gauge | {connection} | `fleetlimit.server` | Established connections. |
//! | `fleetlimit.redis.connection.failures` | counter | {attempt} | `fleetlimit.server` | Failed attempts to connect. |
//! | `fleetlimit.fleet.instances` | gauge | {instance} | `fleetlimit.key_prefix`, `fleetlimit.server` | Instances that share the limits, as this one knows them. |
//! | `fleetlimit.fleet.share` | gauge | 1 | `fleetlimit.key_prefix`, `fleetlimit.server` | The share of a limit that this instance enforces while Redis fails, between 0 and 1. This metric and `fleetlimit.fleet.instances` exist if a limiter has the failure mode `Local` or `Open`, or a [lease](#hot-keys-and-distant-servers). |
//!
//! The first metric answers most questions. These queries are for Prometheus. `docs/alerts.yaml` has alerting rules
//! for these cases, with thresholds per policy, and for other cases. [docs/runbook.md] says what to do about each.
//!
//! - Does Redis decide? If not, the source says what decides instead, which depends on the failure mode:
//!   - `Local`, the default: each instance enforces its share, with the source `local`. Alert on
//!     `sum(rate(fleetlimit_decisions_total{fleetlimit_source="local"}[5m])) > 0.05 * sum(rate(fleetlimit_decisions_total[5m]))`.
//!     A few such decisions are normal, because a late reply causes one.
//!   - `Open`: checks are allowed, with the source `failure_mode`. Alert on
//!     `sum(rate(fleetlimit_decisions_total{fleetlimit_source="failure_mode", fleetlimit_outcome="allowed"}[5m])) > 0`.
//!   - `Closed`: checks fail, and requests get 503. Alert on
//!     `sum(rate(fleetlimit_decisions_total{fleetlimit_outcome="failed"}[5m])) > 0`.
//! - Is Redis overloaded? If it works, but has more checks than it decides in time, the modes `Local` and `Open` both
//!   decide with the source `local`, and `fleetlimit_check_failures_total{error_type="overloaded"}` grows.
//! - How many checks do leases decide? In the result of
//!   `sum by (fleetlimit_source) (rate(fleetlimit_decisions_total[5m]))`, they have the source `lease`.
//! - Which policies deny? `sum by (fleetlimit_policy) (rate(fleetlimit_decisions_total{fleetlimit_outcome="denied"}[5m]))`.
//!   Keys are in no metric: see [An admin endpoint](#an-admin-endpoint).
//!
//! With the feature `tracing`, each check that waits for the store has a span `rate_limit_check`. Each decision is
//! an event `rate limit decision`, with the policy, the quota, the outcome, the source, what remains, and the wait
//! in milliseconds. The level of both is `DEBUG`, the target `fleetlimit`. Problems are logged without this feature
//! too: see [Rollout](#rollout).
//!
//! [`metrics`]: https://docs.rs/metrics
//! [`Closed`]: crate::FailureMode::Closed
//! [`Source`]: crate::Source
//! [`ErrorKind`]: crate::ErrorKind
//! [`MemoryStore`]: crate::MemoryStore
//! [`RedisStore`]: crate::RedisStore
//! [`RedisStore::shutdown`]: crate::RedisStore::shutdown
//! [`RateLimitLayer`]: crate::RateLimitLayer
//! [`Policy`]: crate::Policy
//! [`Quota`]: crate::Quota
//! [`Quota::debt_up_to`]: crate::Quota::debt_up_to
//! [`Costs`]: crate::Costs
//! [`KeyResolver::skip`]: crate::KeyResolver::skip
//! [`Limiter::update`]: crate::Limiter::update
//! [`Limiters`]: crate::Limiters
//! [`PolicySet`]: crate::PolicySet
//! [`FailureMode::Closed`]: crate::FailureMode::Closed
//! [`Open`]: crate::FailureMode::Open
//! [`Decision::allowed`]: crate::Decision::allowed
//! [`Decision::denied`]: crate::Decision::denied
//! [`Header`]: crate::resolve::Header
//! [`Extension`]: crate::resolve::Extension
//! [`ClientIp`]: crate::resolve::ClientIp
//! [`UnixSocket`]: crate::resolve::UnixSocket
//! [`PeerIp`]: crate::resolve::PeerIp
//! [`MatchedPath`]: crate::resolve::MatchedPath
//! [`Router::layer`]: https://docs.rs/axum/latest/axum/struct.Router.html#method.layer
//! [`limiter_for`]: crate::RateLimitLayer::limiter_for
//! [`quota_for`]: crate::RateLimitLayer::quota_for
//! [`Limiter::with_quota`]: crate::Limiter::with_quota
//! [`BestEffortChecks`]: crate::BestEffortChecks
//! [`cost`]: crate::RateLimitLayer::cost
//! [`cost_by_response`]: crate::RateLimitLayer::cost_by_response
//! [`grpc`]: crate::RateLimitLayer::grpc
//! [`Limiter::charge`]: crate::Limiter::charge
//! [`Limiter::credit`]: crate::Limiter::credit
//! [`acquire`]: crate::Limiter::acquire
//! [`error_response`]: crate::RateLimitLayer::error_response
//! [`AnyStore`]: crate::AnyStore
//! [`BlockList`]: crate::BlockList
//! [`BlockList::refresh`]: crate::BlockList::refresh
//! [`DeniedKeys`]: crate::DeniedKeys
//! [`FailureMode`]: crate::FailureMode
//! [`Limiter::peek`]: crate::Limiter::peek
//! [`RedisStore::open`]: crate::RedisStore::open
//! [`from_fn`]: crate::resolve::from_fn
//! [`key_prefix`]: crate::RedisStore::key_prefix
//! [`instances`]: crate::RedisStore::instances
//! [`timeout`]: crate::LimiterBuilder::timeout
//! [`failure_mode`]: crate::LimiterBuilder::failure_mode
//! [`lease`]: crate::LimiterBuilder::lease
//! [`Limiter::reset`]: crate::Limiter::reset
//! [`production`]: https://docs.rs/crate/fleetlimit/latest/source/examples/production.rs
//! [`llm_tokens`]: https://docs.rs/crate/fleetlimit/latest/source/examples/llm_tokens.rs
//! [docs/operations.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/operations.md
//! [docs/runbook.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/runbook.md
//! [docs/messages.md]: https://docs.rs/crate/fleetlimit/latest/source/docs/messages.md

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The anchors that rustdoc gives to the headings of this page.
    fn anchors() -> BTreeSet<String> {
        let mut is_code = false;
        let lines = include_str!("guide.rs").lines().filter_map(|line| line.strip_prefix("//! "));
        let headings = lines.filter(|line| {
            is_code ^= line.trim_start().starts_with("```");
            !is_code && line.starts_with('#')
        });
        let slug = |heading: &str| {
            let kept =
                heading.trim_start_matches('#').trim().chars().filter_map(|char| match char {
                    ' ' => Some('-'),
                    _ if char.is_alphanumeric() || "-_".contains(char) => {
                        Some(char.to_ascii_lowercase())
                    }
                    _ => None,
                });
            kept.collect()
        };
        headings.map(slug).collect()
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
        files.collect()
    }

    /// Rustdoc does not check the part of a link after `#`.
    #[test]
    fn every_link_to_a_section_of_the_guide_leads_to_one() {
        let anchors = anchors();
        assert!(anchors.contains("login-and-other-keys-from-the-body"), "{anchors:?}");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut pages = files(&root.join("src"));
        pages.push(root.join("README.md"));
        let mut broken = Vec::new();
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            let mut links = vec!["crate::guide#", "fleetlimit/guide/index.html#"];
            if page.ends_with("src/guide.rs") {
                links.push("](#");
            }
            for start in links {
                for target in text.split(start).skip(1) {
                    let end =
                        target.find(|char: char| !char.is_alphanumeric() && !"-_".contains(char));
                    let target = &target[..end.unwrap_or(target.len())];
                    // The texts that this test looks for have none.
                    if !target.is_empty() && !anchors.contains(target) {
                        broken.push(format!("{}: #{target}", page.display()));
                    }
                }
            }
        }
        assert!(broken.is_empty(), "{broken:#?}");
    }
}
