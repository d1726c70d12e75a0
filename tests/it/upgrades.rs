//! What is written to Redis, byte for byte: instances of different versions share buckets, as while they are replaced
//! one by one. If this has to change, change `FORMAT` in `script/key_encoder.rs`, which the names end with, so that no
//! version reads what another one means differently. Then `UPDATE_VALUES=1 make integration ARGS=upgrades` writes the
//! file.

use std::env;
use std::fmt::Write;
use std::fs;

use fleetlimit::{Costs, Policy, Quota};

use crate::common::{CLOCK, ClockProxy, NO_EXPIRY, Server};
use crate::exact::uncached;

const START: u64 = 1_763_780_000_123_456;

/// One policy a line, with each algorithm and each form of a value.
const POLICIES: [&[&str]; 14] = [
    &["10/s burst 20"],
    &["7/s burst 20"],
    &["1000/day"],
    &["10/s burst 20 borrow 30"],
    &["5/s burst 5 queue 30s"],
    &["10/min interval"],
    &["100/min fixed"],
    &["1000/day calendar"],
    &["100/min sliding 12"],
    &["100/min sliding approximate"],
    &["10/s burst 20", "1000/day"],
    &["100/min fixed", "7/s burst 20", "100/min sliding 3"],
    &["5 concurrent"],
    &["5 concurrent", "1000/day"],
];

#[tokio::test]
async fn instances_of_other_versions_can_read_what_is_written() {
    let server = Server::start().await;
    let proxy = ClockProxy::start(&server, &[CLOCK, NO_EXPIRY]).await;
    let mut written = String::new();
    for (number, texts) in POLICIES.iter().enumerate() {
        let policy = texts.iter().zip(["first", "second", "third"]);
        let policy = policy.fold(Policy::new("test"), |policy, (text, name)| {
            policy.quota(name, text.parse::<Quota>().unwrap())
        });
        let prefix = format!("values{number}");
        let limiter = uncached(proxy.store(&prefix), policy);
        // A hold of the number 7, for ten seconds, with nothing yet: a process would have a random number, and so would
        // its calls.
        let mut hold = limiter.attach("key", &[7, 10_000_000, 0, 1 << 51, 0]).unwrap();
        writeln!(written, "{}", texts.join(", ")).unwrap();
        // The second check is in another second and another segment.
        for (passed, cost) in [(0, 2), (6_543_210, 1)] {
            proxy.set_time(START + passed).await;
            let decision = match texts[0].ends_with("concurrent") {
                true => hold.extend(Costs::new(cost).with("first", cost)).await,
                false => limiter.check_cost("key", cost).await,
            };
            assert!(decision.unwrap().is_allowed());
            let (value, _) = proxy.stored(&format!("{prefix}:{{key}}:test:t2")).await.unwrap();
            writeln!(written, "    {}", value.escape_ascii()).unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/upgrades.txt");
    if env::var_os("UPDATE_VALUES").is_some() {
        fs::write(path, &written).unwrap();
    }
    assert_eq!(written, fs::read_to_string(path).unwrap());
}
