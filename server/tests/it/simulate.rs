//! Access logs replayed against policies.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::common::Files;

const SETTINGS: &str = "policies: { api: { second: 2/s burst 5 }, day: { day: 100/day calendar } }";

fn simulate(files: &Files, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate-server"))
        .current_dir(files.path(""))
        .args(["simulate", "--config", "settings.yaml", "--log", "access.log"])
        .args(args)
        .output()
        .unwrap()
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A line of the combined format, so many seconds after noon.
fn line(ip: &str, second: u32, bytes: u32) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{ip} - - [23/Nov/2026:12:{minute:02}:{second:02} +0000] \"GET /a/b HTTP/1.1\" 200 {bytes} \
         \"-\" \"curl/8\"\n"
    )
}

#[test]
fn a_policy_admits_what_it_would_have_admitted() {
    let mut log = String::new();
    for _ in 0..8 {
        log += &line("192.0.2.1", 0, 10);
    }
    log += &line("192.0.2.2", 1, 10);
    for _ in 0..4 {
        log += &line("192.0.2.1", 61, 10);
    }
    log += "nonsense\n";
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    let report = json_of(&simulate(&files, &["--json", "--policy", "api", "--svg", "plot.svg"]));
    assert_eq!((&report["lines"], &report["skipped"]), (&json!(14), &json!(1)));
    assert!(report["first_error"].as_str().unwrap().starts_with("line 14: "), "{report}");
    assert_eq!(
        report["policies"],
        json!([{
            "file": "settings.yaml", "policy": "api", "quotas": ["second 2/s burst 5"],
            "admitted": 10, "denied": 3, "denied_percent": 300.0 / 13.0, "denied_keys": 1,
            "most_denied": [{ "key": "192.0.2.1", "denied": 3 }],
            "minutes": [
                { "start": "2026-11-23T12:00:00Z", "admitted": 6, "denied": 3 },
                { "start": "2026-11-23T12:01:00Z", "admitted": 4, "denied": 0 },
            ],
        }])
    );
    let plot = std::fs::read_to_string(files.path("plot.svg")).unwrap();
    assert!(plot.contains("2026-11-23T12:00:00Z: 3 denied"), "{plot}");

    let table = String::from_utf8(simulate(&files, &[]).stdout).unwrap();
    for part in ["14 lines", "1 lines were skipped", "api: second 2/s burst 5", "day: day 100/day"]
    {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn keys_and_costs_are_patterns_and_two_files_are_compared() {
    let log = line("192.0.2.1", 0, 60) + &line("192.0.2.2", 0, 60) + &line("192.0.2.3", 9, 7);
    let files = Files::new(&[
        ("settings.yaml", SETTINGS),
        ("other.yaml", "policies: { day: { day: 200/day calendar } }"),
        ("access.log", &log),
    ]);
    let args = ["--json", "--policy", "day", "--key", "{1}", "--cost", "{bytes}"];
    let report = json_of(&simulate(&files, &[&args[..], &["--compare", "other.yaml"]].concat()));
    let policies = report["policies"].as_array().unwrap();
    let found: Vec<_> =
        policies.iter().map(|policy| (&policy["file"], &policy["denied"])).collect();
    assert_eq!(found, [(&json!("settings.yaml"), &json!(1)), (&json!("other.yaml"), &json!(0))]);
    assert_eq!(policies[0]["most_denied"], json!([{ "key": "a", "denied": 1 }]));
}

#[test]
fn json_lines_have_any_field_as_key() {
    let log =
        r#"{"ts":1800000000,"remote_ip":"192.0.2.1","tenant":{"id":"acme"}}"#.to_owned() + "\n";
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log.repeat(6))]);
    let report = json_of(&simulate(&files, &["--json", "--policy", "api", "--key", "{tenant.id}"]));
    assert_eq!(report["policies"][0]["most_denied"], json!([{ "key": "acme", "denied": 1 }]));
}

#[test]
fn what_cannot_be_simulated_is_explained() {
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", "a\nb\n")]);
    for (args, says) in [
        (&[][..], "none of 2 lines could be used: line 1: "),
        (&["--policy", "apo"], "there is no policy `apo`"),
        (&["--key", "{ip"], "`{` without `}`"),
        (&["--config", "none.yaml"], "cannot be used multiple times"),
        (&["--compare", "none.yaml"], "none.yaml: "),
    ] {
        let output = simulate(&files, args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(says), "{args:?}: {text}");
    }
}
