//! Spans and events of the feature `tracing`.

use fleetlimit::{Limiter, MemoryStore, Policy, Quota, RedisStore};
use tracing::Level;

use crate::common::Server;
use crate::log::Log;

fn policy() -> Policy {
    Policy::new("api").quota("hourly", Quota::per_hour(1))
}

fn decisions(log: &Log) -> Vec<String> {
    log.events().into_iter().filter(|event| event.contains("rate limit decision")).collect()
}

#[tokio::test]
async fn a_decision_is_an_event_inside_the_span_of_its_check() {
    let server = Server::start().await;
    let limiter = Limiter::new(RedisStore::open(server.url()).unwrap(), policy()).unwrap();
    let (log, _guard) = Log::capture_up_to(Level::DEBUG);
    for _ in 0..2 {
        let _ = limiter.check("secret").await.unwrap();
    }
    let events = decisions(&log);
    let [allowed, denied] = &events[..] else { panic!("{events:?}") };
    for event in [allowed, denied] {
        assert!(event.contains("DEBUG rate_limit_check{policy=\"api\"}: fleetlimit: "), "{event}");
        assert!(event.contains(r#"policy="api" quota="hourly""#), "{event}");
        assert!(!event.contains("secret"), "a key is in the log: {event}");
    }
    assert!(allowed.contains(r#"outcome="allowed" source="store" remaining=0"#), "{allowed}");
    assert!(denied.contains(r#"outcome="denied" source="store" remaining=0 retry_after_ms="#));
}

#[tokio::test]
async fn a_decision_in_memory_has_an_event_and_no_span() {
    let limiter = Limiter::new(MemoryStore::new(), policy()).unwrap();
    let (log, _guard) = Log::capture_up_to(Level::DEBUG);
    let _ = limiter.check("key").await.unwrap();
    let events = decisions(&log);
    assert!(matches!(&events[..], [event] if !event.contains("rate_limit_check")), "{events:?}");
}
