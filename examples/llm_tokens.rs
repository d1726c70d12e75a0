//! A budget of tokens per minute for each API key, in front of a language model whose answers are streamed.
//!
//! ```sh
//! cargo run --example llm_tokens
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example llm_tokens
//! ```
//!
//! The cost of an answer is known only when it ends. So a stream takes tokens in slices, before it sends them, and at
//! the end gives back what it has not used. Many streams at once cannot use more than the budget. When it is used up,
//! a stream ends with an event that says so, and a new request gets a 429. A client that disconnects pays for what it
//! got.
//!
//! `LIMIT` changes the budget from `10000/min`, and `PORT` the port from 3000; 0 picks a free one.
//!
//! While Redis is down and requests arrive, the log has this line every five seconds:
//!
//! ```text
//! WARN fleetlimit: rate limit enforced locally, by this instance's share event="failure_mode_decides" policy="llm" server="127.0.0.1:6379" reason="Redis unreachable: Connection refused (os error 111)" count=1
//! ```

use std::convert::Infallible;
use std::env;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::Query;
use axum::http::HeaderName;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use axum::{Extension, Router};
use fleetlimit::resolve::Header;
use fleetlimit::{AnyStore, Decision, Error, Hold, Limiter, Policy, Quota, RateLimitLayer};
use futures_util::stream::{Stream, unfold};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// The number of tokens that a stream takes at a time. Larger slices need fewer calls, but reserve more tokens.
const SLICE: u64 = 256;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The most streams of a key at a time.
const STREAMS: u64 = 100;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let url = env::var("REDIS_URL").unwrap_or("memory:".into());
    let store = AnyStore::open(&url).context("invalid REDIS_URL")?;
    let limit = env::var("LIMIT").unwrap_or("10000/min".into());
    let tokens: Quota = limit.parse().context("invalid LIMIT")?;
    // With a concurrent quota, the handler finds the hold of its request in the extensions.
    let policy =
        Policy::new("llm").quota("streams", Quota::concurrent(STREAMS)).quota("tokens", tokens);
    let limiter = Limiter::new(store, policy)?;
    // A request takes a slice before the model is called, and one permit of `streams` until its response has ended.
    let layer = RateLimitLayer::new(limiter, Header::new(API_KEY)).cost(|_| SLICE);
    let app = Router::new().route("/chat", get(chat)).layer(layer);

    let port = env::var("PORT").unwrap_or("3000".into()).parse().context("invalid PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
    println!(
        "GET http://{address}/chat streams an answer. Each key has a budget of {limit} tokens.

An answer of 1000 tokens:
  curl -sN -H 'x-api-key: mine' 'http://{address}/chat?tokens=1000' | tail -n 5
20 of them at once, counted by how they end:
  seq 20 | xargs -P 20 -I _ curl -sN -H 'x-api-key: mine' 'http://{address}/chat?tokens=1000' | grep ^event | sort | uniq -c",
        address = listener.local_addr()?,
    );
    axum::serve(listener, app).await?;
    Ok(())
}

#[derive(serde::Deserialize)]
struct Prompt {
    /// The length of the answer, which a real model chooses.
    tokens: u64,
}

async fn chat(
    Query(prompt): Query<Prompt>,
    Extension(hold): Extension<Arc<Hold>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let answer = Answer {
        model: Model { left: prompt.tokens },
        budget: Budget { hold, taken: SLICE, used: 0 },
        has_ended: false,
    };
    let events = unfold(answer, async |mut answer| Some((Ok(answer.next().await?), answer)));
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// An answer that is streamed, with an event for each token, and one for its end.
struct Answer {
    model: Model,
    budget: Budget,
    has_ended: bool,
}

impl Answer {
    async fn next(&mut self) -> Option<Event> {
        if self.has_ended {
            return None;
        }
        let event = match self.budget.take().await {
            Ok(Taken::Token) => match self.model.next_token().await {
                Some(token) => return Some(Event::default().data(token)),
                None => {
                    self.budget.used -= 1;
                    Event::default().event("done").data(self.budget.used.to_string())
                }
            },
            Ok(Taken::Denied(decision)) => {
                let wait = decision.retry_after().map_or(0, |wait| wait.as_secs() + 1);
                let data = format!(r#"{{"type":"rate_limit_exceeded","retry_after":{wait}}}"#);
                Event::default().event("error").data(data)
            }
            Err(_) => Event::default().event("error").data(r#"{"type":"unavailable"}"#),
        };
        self.has_ended = true;
        Some(event)
    }
}

/// What a stream has taken of the budget of its key.
struct Budget {
    hold: Arc<Hold>,
    taken: u64,
    used: u64,
}

enum Taken {
    Token,
    Denied(Decision),
}

impl Budget {
    /// Takes a token, if necessary with the next slice.
    async fn take(&mut self) -> Result<Taken, Error> {
        if self.used == self.taken {
            let mut slice = SLICE;
            let mut decision = self.hold.extend(slice).await?;
            if decision.is_denied() && decision.remaining() > 0 {
                // The rest of the budget is less than a slice.
                slice = decision.remaining().min(SLICE);
                decision = self.hold.extend(slice).await?;
            }
            if decision.is_denied() {
                return Ok(Taken::Denied(decision));
            }
            self.taken += slice;
        }
        self.used += 1;
        Ok(Taken::Token)
    }
}

/// Settles the hold, even if the client disconnects.
impl Drop for Budget {
    fn drop(&mut self) {
        self.hold.settle(self.used);
    }
}

/// A stand-in for a language model.
struct Model {
    left: u64,
}

impl Model {
    async fn next_token(&mut self) -> Option<&'static str> {
        self.left = self.left.checked_sub(1)?;
        sleep(Duration::from_millis(1)).await;
        Some("token")
    }
}
