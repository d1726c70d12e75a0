//! The defaults in the docs of settings are those of the code.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use fleetlimit::resolve::{Global, PeerIp};
use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer, RedisStore};

/// Returns what the docs of each method of a file say before "by default".
fn documented(file: &str) -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    let source = fs::read_to_string(path).unwrap();
    let (mut docs, mut defaults) = (String::new(), BTreeMap::new());
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            docs.push_str(text);
        } else if let Some(rest) = line.strip_prefix("pub fn ") {
            let name = rest.split(['(', '<']).next().unwrap();
            let sentence = docs.split(". ").next().unwrap();
            let default =
                sentence.split_once(" by default").and_then(|(text, _)| text.rsplit_once(": "));
            if let Some((_, default)) = default {
                defaults.insert(name.to_owned(), default.trim_end_matches(',').to_owned());
            }
            docs.clear();
        } else if !line.starts_with('#') {
            docs.clear();
        }
    }
    defaults
}

/// Asserts that these are all defaults that the docs of a file have, and that a value with them has these fields.
/// A row is a method, its default in the docs, and the field.
fn assert_documented(file: &str, value: &impl Debug, rows: &[(&str, &str, &str)]) {
    let text = format!("{value:?}");
    for (method, _, field) in rows {
        assert!(text.contains(field), "{method}: there is no {field} in {text}");
    }
    let rows = rows.iter().map(|(method, default, _)| (method.to_string(), default.to_string()));
    assert_eq!(documented(file), rows.collect(), "{file}");
}

/// The cells of the rows that start with this, without the markup of code and links.
fn rows(text: &str, start: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix(start));
    let cell = |cell: &str| cell.trim().replace(['`', '[', ']'], "");
    lines.map(|line| line.split(" | ").map(cell).collect()).collect()
}

#[test]
fn the_guide_has_the_defaults_of_the_docs_of_each_setting() {
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide.rs")).unwrap();
    let (_, table) = guide.split_once("//! | setting | default | why |").unwrap();
    let rows = rows(table.split("//!\n").next().unwrap(), "//! | [");
    let mut settings = documented("limiter/builder.rs");
    settings.extend(documented("store/redis/redis_store.rs"));
    assert_eq!(rows.len(), 5);
    for row in rows {
        let default = settings[&row[0]].replace(['`', '[', ']'], "");
        assert!(default.ends_with(&row[1]), "{row:?} is {default}");
    }
}

#[test]
fn the_example_production_has_the_defaults_that_its_head_lists() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/production.rs");
    let source = fs::read_to_string(source).unwrap();
    let rows: Vec<_> =
        rows(&source, "//! | `").into_iter().filter(|row| row[0] != "REDIS_URL").collect();
    assert_eq!(rows.len(), source.matches("setting(\"").count());
    for row in rows {
        let call = format!("setting(\"{}\", \"{}\")", row[0], row[1]);
        assert!(source.contains(&call), "there is no {call}");
    }
}

#[tokio::test]
async fn the_docs_of_each_setting_have_its_default() {
    let builder = Limiter::builder(MemoryStore::new(), Quota::per_second(1));
    assert_documented(
        "limiter/builder.rs",
        &builder,
        &[
            ("cache_denials", "1 second", "cache_denials: 1s,"),
            ("enforce_for_percent", "100.0", "enforced_percent: 100.0,"),
            ("failure_mode", "[`FailureMode::Local`]", "failure_mode: Local,"),
            ("lease", "zero", "lease: 0ns,"),
            ("max_wait", "30 seconds", "max_wait: 30s,"),
            ("max_waiters", "1,024", "max_waiters: 1024,"),
            ("timeout", "50 ms", "timeout: 50ms,"),
        ],
    );
    assert_documented(
        "store/redis/redis_store.rs",
        &RedisStore::open("redis://127.0.0.1").unwrap(),
        &[
            ("connections", "1", "count: 1,"),
            ("hold_for", "10 seconds", "hold_for: 10s "),
            ("instances", "1", "instances: 1,"),
            ("keepalive", "10 seconds", "keepalive: 10s,"),
            ("key_prefix", "`fleetlimit`", "key_prefix: \"fleetlimit\","),
            ("local_keys", "100,000", "local_keys: 100000,"),
            ("max_connection_age", "5 minutes", "max_age: 300s,"),
        ],
    );
    let layer = RateLimitLayer::new(builder.build().unwrap(), Global);
    assert_documented(
        "layer/http_options.rs",
        &layer,
        &[
            ("decision_in", "into the request's extensions", "decision_in: Request"),
            (
                "drain",
                "up to 64 KiB of the body, for up to a second",
                "max_bytes: 65536, longest: 1s ",
            ),
            ("headers", "[`HeaderStyle::Ietf`]", "headers: Ietf,"),
            ("retry_jitter", "30 seconds", "retry_jitter: RetryJitter { longest: 30"),
        ],
    );
    assert_documented(
        "resolve/peer_ip.rs",
        &PeerIp::new(),
        &[("ipv4_prefix", "32", "v4: 32,"), ("ipv6_prefix", "64", "v6: 64 ")],
    );
}
