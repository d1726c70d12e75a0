//! Only failed logins count: 5 in 15 minutes for an e-mail address, and 20 for a client IP address.
//!
//! ```sh
//! cargo run --example login
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example login
//! ```
//!
//! `PORT` sets the port (default 3000).
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit unavailable, failing closed event="failure_mode_decides" policy="login-address" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Form, RequestExt, Router};
use fleetlimit::layer::Sent;
use fleetlimit::resolve::{Extension as FromExtension, PeerIp};
use fleetlimit::{AnyStore, FailureMode, KeyResolver, Limiter, Policy, Quota, RateLimitLayer};
use serde::Deserialize;
use tokio::net::TcpListener;

#[derive(Clone, Deserialize)]
struct Login {
    email: String,
    password: String,
}

/// A stand-in for the accounts.
#[derive(Clone, Copy)]
struct Accounts;

impl Accounts {
    fn verify(self, login: &Login) -> bool {
        login.password == "correct horse"
    }
}

/// Reads the body, because a rate limit layer does not.
async fn read_login(request: Request, next: Next) -> Result<Response, Response> {
    let Form(login) =
        request.extract::<Form<Login>, _>().await.map_err(IntoResponse::into_response)?;
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(login);
    Ok(next.run(request).await)
}

async fn login(State(accounts): State<Accounts>, Extension(login): Extension<Login>) -> StatusCode {
    if accounts.verify(&login) { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

/// A login takes a permit when it arrives, so that concurrent attempts cannot exceed the limit. It gets
/// it back unless it fails.
fn count_failures<K: KeyResolver>(limiter: Limiter, resolver: K) -> RateLimitLayer<K> {
    let has_failed = |sent: &Sent<'_>| sent.response.status == StatusCode::UNAUTHORIZED;
    RateLimitLayer::new(limiter, resolver).cost_by_response(move |sent| u64::from(has_failed(sent)))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Shows when Redis does not answer, and when it does again.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let failures = |n| Quota::new(n, Duration::from_secs(15 * 60)).fixed_window();
    // Without Redis nobody logs in, rather than anyone trying all passwords.
    let limiter = |policy| {
        Limiter::builder(store.clone(), policy)
            .failure_mode(FailureMode::Closed)
            .timeout(Duration::from_secs(1))
            .build()
    };
    let by_email = limiter(Policy::new("login-email").quota("email", failures(5)))?;
    let by_address = limiter(Policy::new("login-address").quota("address", failures(20)))?;
    // One key per account, however the address is written.
    let email = FromExtension::map(|login: &Login| login.email.trim().to_lowercase());
    let app = Router::new()
        .route("/login", post(login))
        .layer(count_failures(by_email, email))
        .layer(from_fn(read_login))
        .layer(count_failures(by_address, PeerIp::new()))
        .with_state(Accounts);

    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!(
        "The sixth wrong password is not tried. The right one is `correct horse`:
  curl -i http://{address}/login -d email=me@example.com -d password=wrong",
        address = listener.local_addr()?,
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
