//! What `docs/operations.md` repeats from elsewhere, and its commands.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::Server;
use crate::known_failures::sources;

fn file(path: &str) -> String {
    fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The cells of the rows that begin with this text.
fn cells(text: &str, first: &str) -> Vec<String> {
    let row = text.lines().find(|line| line.starts_with(&format!("| {first} |")));
    let row = row.unwrap_or_else(|| panic!("no row {first}"));
    row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

#[tokio::test]
async fn the_commands_of_the_operations_page_work_as_it_says() {
    let server = Server::start().await;
    let page = file("docs/operations.md");
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let run = |block: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", block]).env("REDIS_URL", server.url()).stderr(Stdio::inherit());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{block}");
        String::from_utf8(output.stdout).unwrap()
    };
    let outputs: Vec<String> = blocks.map(run).collect();
    let [policy, probe] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(policy, "OK\nOK\n");
    let expiry: u64 = probe.trim().parse().unwrap_or_else(|_| panic!("{probe}"));
    // The seconds are rounded down.
    assert!((58_000..=60_000).contains(&expiry), "{expiry}");
}

#[test]
fn the_bytes_per_key_are_those_that_were_measured() {
    let (page, performance) = (file("docs/operations.md"), file("docs/performance.md"));
    let number = |text: &String| -> u64 { text.parse().unwrap() };
    let lengths = ["16", "32", "64", "100"];
    let totals = lengths.map(|length| number(&cells(&performance, length)[2]));
    let usage = |policy| number(cells(&performance, policy).last().unwrap());
    let smallest = usage("token bucket, 1,000 per second");
    for (row, policy) in [
        ("one token bucket with a [short](#short-rates) rate", "token bucket, 1,000 per second"),
        ("one token bucket with another rate", "token bucket, 999 per second"),
        ("three token buckets", "three token buckets"),
        ("fixed window", "fixed window"),
        ("sliding window of 12 segments", "sliding window, 12 segments"),
        ("sliding window of 60 segments", "sliding window, 60 segments"),
    ] {
        let expected = totals.map(|total| total + usage(policy) - smallest);
        let found: Vec<u64> = cells(&page, row)[1..].iter().map(number).collect();
        assert_eq!(found, expected, "{row}");
    }
}

#[test]
fn the_tested_servers_and_the_named_tests_exist() {
    let (page, script) = (file("docs/operations.md"), file("scripts/test-servers.sh"));
    let (_, tested) = page.split_once("\n**Tested**: ").unwrap();
    let (tested, _) = tested.split_once("\n\n").unwrap();
    let (_, servers) = script.split_once("servers=(redis").unwrap();
    let (servers, _) = servers.split_once(')').unwrap();
    let is_number = |c: &char| c.is_ascii_digit() || *c == '.';
    let numbers = |text: &str| -> Vec<String> {
        let words = text.split([' ', '-']).map(|word| word.chars().filter(is_number).collect());
        words.filter(|number: &String| number.len() == 3).collect()
    };
    assert_eq!(numbers(tested), numbers(servers));
    assert_eq!(numbers(servers).len(), 5);

    let sources = sources(&["src", "tests"]);
    let is_test = |code: &&str| {
        code.matches('_').count() > 4 && code.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let tests: Vec<&str> = page.split('`').filter(is_test).collect();
    assert_eq!(tests.len(), 2, "{tests:?}");
    for test in tests {
        assert!(sources.contains(&format!("fn {test}(")), "there is no test {test}");
    }
}
