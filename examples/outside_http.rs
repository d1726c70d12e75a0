//! Limits where there is no HTTP: a worker that waits for its turn, and a tower service whose
//! callers get an error.
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
    recipients: u32,
}

/// Waits until the mail may go out, however many workers there are.
async fn turn(limiter: &Limiter, mail: Mail) -> Result<(), BoxError> {
    loop {
        let decision = limiter.check_cost(mail.tenant, mail.recipients).await?;
        if decision.is_allowed() {
            return Ok(());
        }
        // No wait is long enough for a mail that costs more than the burst.
        if decision.is_over_limit() {
            return Err("too many recipients for one mail".into());
        }
        sleep(decision.retry_after()).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let store = MemoryStore::new();
    let outgoing = Policy::new("outgoing").quota("recipients", Quota::per_second(50).burst(10));
    let outgoing = Limiter::new(store.clone(), outgoing)?;
    let began = Instant::now();
    for recipients in [5, 5, 10, 11] {
        match turn(&outgoing, Mail { tenant: "acme", recipients }).await {
            Ok(()) => println!("{recipients:2} recipients: sent after {:.1?}", began.elapsed()),
            Err(error) => println!("{recipients:2} recipients: {error}"),
        }
    }

    // The error type only has to be made from a `tollgate::Error`, as `BoxError` is.
    let incoming = Policy::new("incoming").quota("mails", Quota::per_minute(2));
    let limiter = Limiter::new(store, incoming)?;
    let mut mailbox = ServiceBuilder::new()
        .layer(RateLimitLayer::new(limiter, |mail: &Mail| mail.tenant).errors())
        .service(service_fn(async |_: Mail| Ok::<_, BoxError>("accepted")));
    for _ in 0..3 {
        let mail = Mail { tenant: "acme", recipients: 1 };
        match mailbox.ready().await?.call(mail).await {
            Ok(answer) => println!("mailbox: {answer}"),
            Err(error) => match error.downcast_ref::<Error>() {
                Some(error) if error.kind() == ErrorKind::Denied => {
                    let wait = error.decision().map(|decision| decision.retry_after());
                    println!("mailbox: {error}, retry after {wait:.1?}");
                }
                _ => return Err(error),
            },
        }
    }
    Ok(())
}
