//! Recipes for common tasks. Every example is compiled by the crate's tests, and run where it can be. Short
//! ones leave out what surrounds them, such as the function they are in, or a limiter made as above.
//!
//! - [Per-route limits](#per-route-limits)
//! - [By API key](#by-api-key), and why an unauthenticated header limits nobody
//! - [By authenticated user](#by-authenticated-user)
//! - [Behind nginx or a CDN](#behind-nginx-or-a-cdn)
//! - [Plans from a database](#plans-from-a-database)
//! - [Cost](#cost)
//! - [Cost by response](#cost-by-response): failed logins, bytes sent
//! - [Algorithms](#algorithms), and the most that each admits
//! - [Several quotas](#several-quotas)
//! - [Several keys](#several-keys): per user, per tenant, and for everyone
//! - [Limits in a file](#limits-in-a-file), and changing them without a restart
//! - [Custom responses](#custom-responses)
//! - [Login, and other keys from the body](#login-and-other-keys-from-the-body)
//! - [gRPC](#grpc)
//! - [Outgoing calls](#outgoing-calls)
//! - [Tests with a paused clock](#tests-with-a-paused-clock)
//! - [Shutting down](#shutting-down)
//! - [Rollout](#rollout)
//! - [Metrics and traces](#metrics-and-traces)
//!
//! The examples use a [`MemoryStore`]. In production replace it with a [`RedisStore`]; nothing else
//! changes. They need edition 2024, `cargo add axum` and `cargo add tokio --features full`.
//!
//! # Per-route limits
//!
//! Add one [`RateLimitLayer`] per route or group of routes, each with its own limiter. Give every
//! [`Policy`] a name: limiters with the same name on the same store share their buckets, and a
//! second limiter with the same name but different quotas is an error. The policy's name separates
//! buckets, and the quota's name is what clients see in the headers. Here they are the same.
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
//! axum's [`Router::layer`] applies to the routes that were added before it. [`MatchedPath`] works
//! only in a layer that is added to the `Router` or to a route, not in one wrapped around the
//! finished `Router`. A request that one layer allowed and an inner layer denied has consumed a
//! permit of the outer one, unless that has [`refund_inner_denials`](#several-keys).
//!
//! Add tower-http's `CorsLayer` after the rate limit layer, so that it runs first. Otherwise a
//! browser hides the 429 from the page, and preflight requests take permits. Expose `Retry-After`
//! and `RateLimit` with `expose_headers` if scripts read them.
//!
//! # By API key
//!
//! A client chooses what it sends. Every unknown key has a full bucket, so a client that invents a
//! new key for every request has no limit at all. `Header::new(API_KEY).or(PeerIp::new())` does not
//! help: the header is always there. So verify the key first, reject unknown ones, and limit by
//! what was verified. An outer limit per address bounds the number of attempts.
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
//! [`Header`] is for headers that something outside of your service has verified, such as an API
//! gateway that overwrites them. It puts a hash of the value into Redis, keyed with a secret if you
//! give it one.
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
//! Here a client cannot gain buckets by inventing users: without valid credentials it is limited by
//! address. So one user at one address has at most two buckets. The prefix `user:` keeps the keys
//! of users and addresses apart. Make sure that the authentication layer runs first (in axum: is
//! added later). With `or`, a missing `User` looks like an anonymous client, so a wrong order goes
//! unreported. Without `or` it is a 500 without details for the client, and the log says which
//! layer has to run first.
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
//! // A load balancer that appends to X-Forwarded-For, as most do, in a subnet of its own. Do not trust all
//! // of a private network: whatever else runs there could claim any address.
//! let load_balancers = "10.0.8.0/28"; // from your configuration
//! let load_balancer = ClientIp::new([load_balancers])?;
//!
//! // Google's Application Load Balancer, which appends the client and then itself. The firewall lets nobody
//! // else connect.
//! let google = ClientIp::hops(2)?;
//!
//! // A CDN in front of a load balancer: trust both, so that neither is taken for the client.
//! let cdn_ranges = ["198.51.100.0/24", "2001:db8:cd::/48"]; // from your configuration
//! let cdn = ClientIp::new(cdn_ranges.into_iter().chain([load_balancers]))?;
//!
//! // A CDN that connects directly and sets its own header.
//! const CF_CONNECTING_IP: HeaderName = HeaderName::from_static("cf-connecting-ip");
//! let direct = ClientIp::new(cdn_ranges)?.header(CF_CONNECTING_IP);
//!
//! // A proxy that connects over a Unix socket: add `.layer(axum::Extension(UnixSocket))` after the
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
//! An HTTP/1 server that responds before it has read a request closes the connection, and a client
//! that is still sending loses the response. nginx then responds with 502 instead of 429 and, with
//! several servers in an `upstream`, takes this one out of use for ten seconds: a client that is over
//! its limit could take all servers out of use for everybody. So before the layer responds itself, it reads and
//! drops the rest of the body, up to 64 KiB and for up to a second. If clients upload more, raise
//! this to the largest body that the proxy passes on (`client_max_body_size` of nginx):
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
//! The same happens with every handler that responds before it reads the body.
//! [`Drain::read`](crate::layer::Drain::read) is for those that check a limit.
//!
//! # Plans from a database
//!
//! Resolvers and hooks are not async, so that the layer never waits for anything but the check.
//! Load the plan in a middleware before the layer. There you can cache it, and handle database
//! errors as you like. Then [`limiter_for`] chooses the limiter. Add an outer limit by address, as
//! in [By API key](#by-api-key), to limit the queries of clients without an account.
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
//! If each account has numbers of its own, one limiter is enough: [`quota_for`] takes them from
//! the request, and [`Limiter::with_quota`] does the same outside of a layer.
//!
//! To change the numbers of a plan while the service runs, call [`Limiter::update`] in every
//! instance. Used permits stay used: after 3 of 3, a limit that is raised to 6 leaves 3
//! immediately. With `limiter_for`, an account that changes its plan starts with a full bucket,
//! because each policy has its own buckets. With `quota_for`, used permits stay used.
//!
//! # Cost
//!
//! A request costs one permit by default. [`cost`] sets another number, for example by route or by
//! the size of the request. A cost of 0 is always allowed (with a
//! [cost by response](#cost-by-response) only while every quota has a permit left). A cost that no wait
//! can satisfy (above the burst plus what may be borrowed or waited for) is always denied, without a
//! `Retry-After`.
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
//! # Cost by response
//!
//! Some costs are known only when the response is there. The check takes an estimate, which
//! [`cost_by_response`] replaces once the response has been sent:
//!
//! ```
//! use axum::http::StatusCode;
//! use fleetlimit::layer::Sent;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Costs, Limiter, RateLimitLayer};
//!
//! /// What a query has cost. The handler puts it into the extensions of its response.
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
//! // The bytes that were sent. While any are left, a request is allowed, however large the response.
//! let bytes = layer().cost(|_| 0).cost_by_response(|sent| sent.body_bytes);
//!
//! // Points. The check takes 100, and the actual cost replaces it. If the client disconnects before
//! // there is a response, it pays 5.
//! let points = layer()
//!     .cost(|_| 100)
//!     .cost_by_response(|sent| sent.response.extensions.get::<Points>().map_or(1, |points| points.0))
//!     .cost_without_response(5);
//! # }
//! ```
//!
//! A cost above the estimate can exceed what is left. Then the key is in debt, and denied until the
//! debt is repaid. A bucket keeps the debt whole: with 10,000 tokens per minute, a response of 50,000 is
//! followed by four minutes of denials, and a hundred concurrent responses hold to the limit as well, on
//! average. [`Quota::debt_up_to`] limits the debt, and so the wait. A window forgets a debt when it
//! ends, an approximate sliding window at the end of the next period: see [`Limiter::charge`]. Outside of a layer, use
//! [`Limiter::charge`] and [`Limiter::credit`].
//!
//! # Algorithms
//!
//! A [`Quota`] is a token bucket unless you choose another algorithm. All of them support costs,
//! decide the same on Redis and in memory, and can be mixed in one policy. If nobody else uses the
//! key, a retry with the same cost after `Retry-After` is allowed. In the table, `n` is the number
//! of permits per period.
//!
//! | | a span of length `t` admits at most | choose it for |
//! |---|---|---|
//! | [token bucket](crate::Quota) | burst + `n` × `t` / period | nearly everything: smooth, with a burst that you choose |
//! | [borrowing](crate::Quota::borrow_up_to) | burst + borrowed + `n` × `t` / period | costly requests that should start at once and pay afterwards |
//! | [queue](crate::Quota::queue) | burst (1 by default), or the largest cost if that is higher, + `n` × `t` / period proceed | an even flow: [outgoing calls](#outgoing-calls), and work that may wait |
//! | [interval refill](crate::Quota::interval_refill) | burst + `n` for each refill in the span | permits that arrive all at once: 10 a minute, counted from the first check |
//! | [fixed window](crate::Quota::fixed_window) | `n` for each window that the span touches | limits that are easy to explain: 5 attempts in 15 minutes |
//! | [calendar](crate::Quota::calendar) | `n` for each window that the span touches | contracts and invoices: 1,000 per day or month, in UTC or another time zone |
//! | [sliding window](crate::Quota::sliding_window) | `n` in any span of one period | a hard limit for any period; a permit comes back up to a segment late |
//! | [approximate sliding window](crate::Quota::approximate_sliding_window) | 2 × `n` in any period; about `n` if requests come evenly | a window that is not used up again at its edge, in little memory |
//!
//! What each admits of the same requests, with 10 permits per 5 seconds (`make plots` draws it):
//!
//! <div>
#![doc = include_str!("../docs/algorithms.svg")]
//! </div>
//!
//! ## Queue
//!
//! A leaky bucket as a queue does not deny what comes too early, but lets it wait. A layer waits
//! before it calls the service. Meanwhile it holds no resources of the service, such as a place of
//! an inner concurrency limit. The longest wait is part of the quota and holds for all processes
//! together; the [number of waiters](crate::LimiterBuilder::max_waiters) is limited in each
//! process, and [for each key](crate::LimiterBuilder::max_waiters_per_key). Waiting is not part of the timeout.
//! When a client disconnects, those behind it in the process move up, and the last place is given back. If other
//! processes have queued behind that one, the next request of the process gets it. A process that is killed
//! leaves its places behind, and the others wait for the time in which their permits refill. So drop what
//! waits when a process ends, and then call `RedisStore::shutdown`. Those that wait already keep their times
//! if permits are given back by [`Limiter::credit`] or after a response. The next request gets these permits, so it may proceed
//! together with one that has waited.
//!
//! ```
//! use std::time::Duration;
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{ConfigError, Limiter, MemoryStore, Quota, RateLimitLayer};
//!
//! /// 20 requests at once, and then one every 100 ms. Those that would wait for longer than a second get
//! /// a 429.
//! fn shaped() -> Result<RateLimitLayer<PeerIp>, ConfigError> {
//!     let quota = Quota::per_second(10).burst(20).queue(Duration::from_secs(1));
//!     Ok(RateLimitLayer::new(Limiter::new(MemoryStore::new(), quota)?, PeerIp::new()))
//! }
//! # shaped().unwrap();
//! ```
//!
//! ## Fixed window
//!
//! Around the end of a window, a client can use the permits of that window and then those of the
//! next: up to 2 × `n` in a moment with `calendar`, and one less with `fixed_window`, whose window
//! starts with its first permit. If that is too much, use a token bucket or a sliding window.
//!
//! # Several quotas
//!
//! A policy can have up to 16 quotas of any algorithms, of which at most 8 are sliding or calendar
//! windows. A check takes from all of them or
//! from none, in one call to Redis. [`Costs`] take a different number of permits from each.
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
//! Quotas on the same key belong in one policy, which is atomic. Limits on different keys (user,
//! tenant, everyone) need a check each, because the keys may be on different servers. Without
//! further measures, a request that the last check denies has taken permits from the others. Check
//! the narrowest key first and let it give its permits back:
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
//! This is best effort: [`BestEffortChecks`] has the bounds.
//!
//! # Limits in a file
//!
//! [`Limiters`] takes policies by name from a [`PolicySet`], which the feature `serde` reads from any
//! format. The file overrides the code. A reload changes the limits of the running service and
//! keeps what was consumed. An invalid file changes nothing, and all errors in it are listed. A valid
//! file is rejected too if a policy that is in use is neither in the file nor in the code.
//! This needs `cargo add toml --features preserve_order` (without that feature the quotas of a policy are
//! sorted by name) and the feature `serde`.
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
//! The example `limits_file` is a complete program. All instances have to read the same file. Until
//! the last one has, a key gets at most the larger burst and the larger rate. If an algorithm or the
//! period of a calendar changes, it can get the sum of both limits.
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
//! The layer adds `Retry-After` and the rate limit headers to a denial, and `Cache-Control: no-store` to
//! each of these responses that does not set it. An [`Error`](crate::Error) describes the server: log it, do not send it to clients.
//!
//! # Login, and other keys from the body
//!
//! A layer does not read bodies. Check in the handler instead: a [`Decision`](crate::Decision) and
//! an [`Error`](crate::Error) are responses that look like those of the layer, so `?` is enough.
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
//! # app().unwrap();
//! ```
//!
//! ## Under a catch-all error
//!
//! Many handlers return an error type that any error converts into, for example by way of
//! `anyhow::Error`, and respond to it with 500. With that type, `?` makes a 500 of a denial and of an
//! outage too. Take the error of the limiter out again in the response, in two lines:
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
//! The example `login` counts only failures, with a layer by address in front of the middleware
//! that reads the body, and a layer by e-mail address behind it.
//!
//! This recipe needs `cargo add serde --features derive`. A limit per account lets anyone lock the
//! owner of an account out for as long as they keep trying; the limit per address only bounds how
//! many accounts one address can lock out. While Redis is down, each instance allows its share of the
//! attempts, and one that knows of no others the whole. If that is worse than nobody being able to log
//! in, build `per_account` with [`FailureMode::Closed`]. `reset` ignores the failure mode: it fails whenever Redis does. Keys
//! are readable in Redis: hash them first if e-mail addresses must not be stored there.
//!
//! # gRPC
//!
//! The same layer works for tonic. Where tonic serves a request with a gRPC content type, gRPC-Web
//! included, the layer sends gRPC responses: `RESOURCE_EXHAUSTED` with a `RetryInfo` for a denial. That
//! is on tonic's server, and on the routes of tonic in an axum router, for services with a name such as
//! `package.Service`. Elsewhere the application says so with [`grpc`]. On an HTTP
//! route a client cannot get gRPC responses. They have the HTTP status 200, so its denials would look like
//! successes.
//!
//! The layer knows tonic's server, and [`PeerIp`] the peer address from it, only with the crate's
//! feature `tonic`. Without it every call with `PeerIp` fails, and the log says why.
//!
//! ```no_run
//! use fleetlimit::resolve::PeerIp;
//! use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
//! use tonic::transport::Server;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10).burst(20))?;
//!     // Any service that tonic generates works in place of the health service.
//!     let (_reporter, service) = tonic_health::server::health_reporter();
//!     Server::builder()
//!         .layer(RateLimitLayer::new(limiter, PeerIp::new()))
//!         .add_service(service)
//!         .serve("127.0.0.1:50051".parse()?)
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! This recipe needs `cargo add --path ../fleetlimit --features tonic` and `cargo add tonic
//! tonic-health`. The path of a request is `/package.Service/Method`, so `(PeerIp::new(), Path)`
//! limits per method. Unknown methods are keys too: add the layer to known services only, or match
//! the path in a closure. Browsers read gRPC-Web statuses only if CORS exposes the headers
//! `grpc-status` and `grpc-message`.
//!
//! # Outgoing calls
//!
//! Instances that share a budget of five requests per second to a third party take their permits
//! from one key. [`acquire`] waits until the permit is there, in the order of arrival and for at
//! most the longest wait of the [queue](#queue) or, without one,
//! [`max_wait`](crate::LimiterBuilder::max_wait). If the wait would be longer, or too many tasks of the
//! process wait already, it denies at once. By default 128 may wait for one key: with a single key, raise
//! [`max_waiters_per_key`](crate::LimiterBuilder::max_waiters_per_key).
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
//! A [`RateLimitLayer`] around a client waits in the same way: see the example `outbound`. With
//! [`without_drain`](crate::RateLimitLayer::without_drain) it does not read the body of a request that it
//! denies. Use
//! [`FailureMode::Closed`] if calls beyond the limit are worse than no calls.
//!
//! Calls proceed 200 ms apart, but the network and busy machines delay some of them, so two can
//! arrive closer together. If the other side counts strictly, leave some room, such as 5
//! per 1,100 ms.
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
//! --features util`. The buckets of a [`RedisStore`] follow the server's clock, so only time
//! refills them. Code that takes a decision can be tested with one made by [`Decision::allowed`] or
//! [`Decision::denied`]. For a resolver by address, use axum's `MockConnectInfo`.
//!
//! # Shutting down
//!
//! Finish the open requests, and then call [`RedisStore::shutdown`]. It deregisters the instance, so that
//! the others soon divide the limits among themselves, charges what the instance took while Redis failed, and
//! writes what has been counted and not reported yet to the log.
//!
//! ```no_run
//! use axum::Router;
//! use tokio::net::TcpListener;
//! use tokio::signal;
//! use fleetlimit::RedisStore;
//!
//! async fn serve(app: Router, store: RedisStore) -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app)
//!         .with_graceful_shutdown(async { signal::ctrl_c().await.unwrap_or_default() })
//!         .await?;
//!     store.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! Orchestrators such as Kubernetes send SIGTERM: wait for
//! `signal::unix::signal(SignalKind::terminate())` as well.
//!
//! # Rollout
//!
//! 1. **Measure first**, in shadow mode: requests are decided and charged as usual, but not denied,
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
//! 2. **Start with a generous limit and the failure mode [`Open`]**, so that no request is denied
//!    while Redis is down. (While Redis is only [overloaded](crate::FailureMode#overload), each instance
//!    enforces its share of the limit.) Change to `Local` once the limit fits. Alert on
//!    `tracing` events of the target `fleetlimit` at level WARN (for example: the failure mode decides checks,
//!    a circuit breaker opens, an instance cannot register or has not yet, permits cannot be charged
//!    afterwards, or a policy in a file is not used) and ERROR (requests are rejected because of a
//!    misconfiguration, or limits in a file or of a request are invalid and not used). Count denials with [metrics](#metrics-and-traces).
//! 3. **Tighten** with a deployment, or with [`Limiter::update`] in every instance. Used permits
//!    stay used. While two versions of a quota run at once, on a rolling deployment, a key gets at
//!    most the larger burst and the larger rate. If the algorithm or the period of a calendar changes, it
//!    can get the sum of both limits.
//! 4. **Give Redis enough memory**, the eviction policy `volatile-ttl` or `noeviction`, and a user
//!    with only the permissions that [`RedisStore`] lists. When memory is full, `noeviction` makes
//!    checks fail, and the failure mode decides; `volatile-ttl` refills the buckets that it evicts.
//!
//! # Metrics and traces
//!
//! With the feature `metrics`, fleetlimit reports to the recorder of the crate [`metrics`]. If one is
//! installed after the first check, counters and gauges have what happened before, and histograms do not. (A
//! zero-sized recorder is treated as no recorder.) Set no idle timeout in an exporter: what it removes is
//! not reported again. `cargo run --example metrics --features metrics` serves the metrics to Prometheus,
//! and `docs/grafana.json` is a dashboard for them.
//!
//! The names follow OpenTelemetry, and the units are those of UCUM. The queries below and the dashboard
//! have the names that Prometheus recommends, such as `fleetlimit_decisions_total`, and need histograms.
//! With `metrics-exporter-prometheus`, call `with_recommended_naming(true)` and set buckets, as the
//! example does. No label has the value of a key. A process has labels for 2,000 servers, and `other`
//! for all further ones.
//!
//! | metric | kind | unit | labels | |
//! |---|---|---|---|---|
//! | `fleetlimit.decisions` | counter | {decision} | `fleetlimit.policy`, `fleetlimit.outcome`, `fleetlimit.source` | Decisions about checks. The outcome is `allowed`, `denied`, `would_be_denied` (in shadow mode) or `failed` (no decision: the store failed in the failure mode [`Closed`], or the costs name an unknown quota; the source is `failure_mode`). The sources are those of [`Source`]: `store`, `cached`, `local`, `failure_mode`, `quota`, `blocked`. |
//! | `fleetlimit.check.failures` | counter | {check} | `fleetlimit.policy`, `error.type` | Checks for which the store failed, or whose costs name an unknown quota. The type is an [`ErrorKind`]: `timeout`, `unavailable`, `server`, `overloaded`, `unknown_quota`. |
//! | `fleetlimit.check.duration` | histogram | s | `fleetlimit.policy` | How long checks waited for Redis. One in 256 is measured. |
//! | `fleetlimit.charges.forgiven` | counter | {permit} | `fleetlimit.policy` | Permits that were not charged, because the key already owed as much as it can: see [`Quota::debt_up_to`]. With several quotas, only the largest amount is counted. |
//! | `fleetlimit.evictions` | counter | {bucket} | none | Buckets that were evicted from the memory of the process: from a [`MemoryStore`], or from what a [`RedisStore`] keeps for outages. |
//! | `fleetlimit.redis.repairs` | counter | {bucket} | `fleetlimit.policy` | Values in Redis that were corrupt or of another type, and count as buckets without permits. |
//! | `fleetlimit.redis.uncharged` | counter | {permit} | `fleetlimit.policy` | Permits taken locally while Redis failed that might remain uncharged there: the charge timed out or failed after it was sent, or there were more keys than [`local_keys`](crate::RedisStore::local_keys). With several quotas, only the largest amount is counted. |
//! | `fleetlimit.redis.call.duration` | histogram | s | `fleetlimit.server` | How long a server took to reply to a batch, including the network. |
//! | `fleetlimit.redis.batch.size` | histogram | {check} | `fleetlimit.server` | Checks that were sent together. |
//! | `fleetlimit.redis.queue.length` | histogram | {check} | `fleetlimit.server` | Checks that still waited when a batch was sent. |
//! | `fleetlimit.redis.breaker.open` | gauge | {breaker} | `fleetlimit.server` | Circuit breakers that are open. There is one for each timeout. |
//! | `fleetlimit.redis.breaker.openings` | counter | {opening} | `fleetlimit.server` | How often they have opened. |
//! | `fleetlimit.redis.noscript` | counter | {reply} | `fleetlimit.server` | `NOSCRIPT` replies, after which a script is sent again as a whole. |
//! | `fleetlimit.redis.redirections` | counter | {reply} | `fleetlimit.server` | `MOVED` and `ASK` replies. |
//! | `fleetlimit.redis.connections` | gauge | {connection} | `fleetlimit.server` | Established connections. |
//! | `fleetlimit.redis.connection.failures` | counter | {attempt} | `fleetlimit.server` | Failed attempts to connect. |
//! | `fleetlimit.fleet.instances` | gauge | {instance} | `fleetlimit.key_prefix`, `fleetlimit.server` | Instances that share the limits, as this one knows them. |
//! | `fleetlimit.fleet.share` | gauge | 1 | `fleetlimit.key_prefix`, `fleetlimit.server` | The share of a limit that this instance enforces while Redis fails, between 0 and 1. Only in the failure modes `Local` and `Open`, as the row above. |
//!
//! The first metric answers most questions. These queries are for Prometheus:
//!
//! - Is a limit not enforced? Alert on
//!   `rate(fleetlimit_decisions_total{fleetlimit_source="failure_mode", fleetlimit_outcome="allowed"}[5m]) > 0`.
//!   With the source `local` instead, each instance enforces its share: Redis fails, or has more checks than it
//!   decides in time (`fleetlimit_check_failures_total{error_type="overloaded"}`). The outcome `failed` means that
//!   requests get 503.
//! - Which policies deny? `sum by (fleetlimit_policy) (rate(fleetlimit_decisions_total{fleetlimit_outcome="denied"}[5m]))`.
//!   Keys are in no metric. With the feature `denied-keys`, `DeniedKeys` finds those that are denied most
//!   often.
//!
//! With the feature `tracing`, each check that waits for the store has a span `rate_limit_check`. Each
//! decision is an event `rate limit decision`, with the policy, the quota, the outcome, the source, what
//! remains, and the wait in milliseconds. The level of both is `DEBUG`, the target
//! `fleetlimit`. Problems are logged without this feature too: see [Rollout](#rollout).
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
//! [`on_decision`]: crate::RateLimitLayer::on_decision
