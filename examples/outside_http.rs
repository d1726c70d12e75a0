//! Rate limits without HTTP: a worker that waits for permits, and a tower service whose callers get
//! an error.
//!
//! ```sh
//! cargo run --example outside_http
//! ```

use std::time::Instant;

use fleetlimit::{Error, ErrorKind, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

#[derive(Clone, Copy)]
struct Mail {
    tenant: &'static str,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = MemoryStore::new();
    let outgoing = Policy::new("outgoing").quota("recipients", Quota::per_second(50).burst(10));
    let outgoing = Limiter::new(store.clone(), outgoing)?;
    let start = Instant::now();
    for recipients in [5, 5, 10, 2_000] {
        // Waits until there are enough permits, for up to 30 seconds by default.
        let decision = outgoing.acquire_cost("acme", recipients).await?;
        match decision.is_allowed() {
            true => println!("{recipients:4} recipients: sent after {:.1?}", start.elapsed()),
            false => println!("{recipients:4} recipients: too many for one mail"),
        }
    }

    // Any error type that converts from a `fleetlimit::Error` works.
    let incoming = Policy::new("incoming").quota("mails", Quota::per_minute(2));
    let limiter = Limiter::new(store, incoming)?;
    let mut mailbox = ServiceBuilder::new()
        .layer(RateLimitLayer::with_errors(limiter, |mail: &Mail| mail.tenant))
        .service(service_fn(async |_: Mail| Ok::<_, anyhow::Error>("accepted")));
    for _ in 0..3 {
        let mail = Mail { tenant: "acme" };
        match mailbox.ready().await?.call(mail).await {
            Ok(response) => println!("mailbox: {response}"),
            Err(error) => match error.downcast_ref::<Error>() {
                Some(error) if error.kind() == ErrorKind::Denied => {
                    let wait = error.decision().and_then(|decision| decision.retry_after());
                    println!("mailbox: {error}, retry after {wait:.1?}");
                }
                _ => return Err(error),
            },
        }
    }
    Ok(())
}
