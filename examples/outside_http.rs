//! Rate limits without HTTP: a worker that waits for permits, and a tower service whose callers get
//! an error.
//!
//! ```sh
//! cargo run --example outside_http
//! ```

use std::time::Instant;

use tokio::time::sleep;
use tollgate::{Error, ErrorKind, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

#[derive(Clone, Copy)]
struct Mail {
    tenant: &'static str,
    recipients: u64,
}

/// Waits until the mail may be sent, for any number of workers.
async fn acquire(limiter: &Limiter, mail: Mail) -> Result<(), BoxError> {
    loop {
        let decision = limiter.check_cost(mail.tenant, mail.recipients).await?;
        if decision.is_allowed() {
            return Ok(());
        }
        match decision.retry_after() {
            Some(wait) => sleep(wait).await,
            // No wait is long enough for a mail that costs more than the burst.
            None => return Err("too many recipients for one mail".into()),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let store = MemoryStore::new();
    let outgoing = Policy::new("outgoing").quota("recipients", Quota::per_second(50).burst(10));
    let outgoing = Limiter::new(store.clone(), outgoing)?;
    let start = Instant::now();
    for recipients in [5, 5, 10, 11] {
        match acquire(&outgoing, Mail { tenant: "acme", recipients }).await {
            Ok(()) => println!("{recipients:2} recipients: sent after {:.1?}", start.elapsed()),
            Err(error) => println!("{recipients:2} recipients: {error}"),
        }
    }

    // Any error type that converts from a `tollgate::Error` works, such as `BoxError`.
    let incoming = Policy::new("incoming").quota("mails", Quota::per_minute(2));
    let limiter = Limiter::new(store, incoming)?;
    let mut mailbox = ServiceBuilder::new()
        .layer(RateLimitLayer::with_errors(limiter, |mail: &Mail| mail.tenant))
        .service(service_fn(async |_: Mail| Ok::<_, BoxError>("accepted")));
    for _ in 0..3 {
        let mail = Mail { tenant: "acme", recipients: 1 };
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
