//! Only failed logins count: 5 in 15 minutes for an e-mail address, and 20 for a client IP address.
//!
//! ```sh
//! cargo run --example login
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example login
//! ```
//!
//! `PORT` sets the port (default 3000).

use std::env;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Form, RequestExt, Router};
use fleetlimit::layer::Sent;
use fleetlimit::resolve::{Extension as FromExtension, PeerIp};
use fleetlimit::{
    FailureMode, KeyResolver, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore,
};
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
async fn main() -> Result<(), Box<dyn Error>> {
    let failures = |n| Quota::new(n, Duration::from_secs(15 * 60)).fixed_window();
    let by_email = Policy::new("login-email").quota("email", failures(5));
    let by_address = Policy::new("login-address").quota("address", failures(20));
    let [by_email, by_address] = match env::var("REDIS_URL") {
        Ok(url) => {
            let store = RedisStore::open(url)?;
            // Without Redis nobody logs in, rather than anyone trying all passwords.
            let limiter = |policy| {
                Limiter::builder(store.clone(), policy)
                    .failure_mode(FailureMode::Closed)
                    .timeout(Duration::from_secs(1))
                    .build()
            };
            [limiter(by_email)?, limiter(by_address)?]
        }
        Err(_) => {
            let store = MemoryStore::new();
            [Limiter::new(store.clone(), by_email)?, Limiter::new(store, by_address)?]
        }
    };
    // One key per account, however the address is written.
    let email = FromExtension::map(|login: &Login| login.email.trim().to_lowercase());
    let app = Router::new()
        .route("/login", post(login))
        .layer(count_failures(by_email, email))
        .layer(from_fn(read_login))
        .layer(count_failures(by_address, PeerIp::new()))
        .with_state(Accounts);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    println!(
        "The sixth wrong password is not tried. The right one is `correct horse`:
  curl -i http://{address}/login -d email=me@example.com -d password=wrong",
        address = listener.local_addr()?,
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
