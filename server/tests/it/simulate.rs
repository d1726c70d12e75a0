//! Access logs replayed against policies.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::common::Files;

const SETTINGS: &str = "policies: { api: { second: 2/s burst 5 }, day: { day: 100/day calendar } }";

fn program(files: &Files, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetlimit-server"));
    command
        .current_dir(files.path(""))
        .args(["simulate", "--config", "settings.yaml", "--log", "access.log"])
        .args(args);
    command
}

fn simulate(files: &Files, args: &[&str]) -> Output {
    program(files, args).output().unwrap()
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
fn what_only_the_service_needs_may_be_missing() {
    // Its token is in the environment.
    let settings = format!("listen: {{ admin: '0.0.0.0:6070' }}\n{SETTINGS}");
    let log = line("192.0.2.1", 0, 10);
    let files = Files::new(&[("settings.yaml", &settings), ("access.log", &log)]);
    assert_eq!(json_of(&simulate(&files, &["--json"]))["lines"], 1);
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
            "policy": "api",
            "results": [{
                "file": "settings.yaml", "quotas": ["second 2/s burst 5"],
                "admitted": 10, "denied": 3, "denied_percent": 300.0 / 13.0, "denied_keys": 1,
            }],
            "most_requests": [
                { "key": "192.0.2.1", "requests": 12, "results": [{ "admitted": 9, "denied": 3 }] },
                { "key": "192.0.2.2", "requests": 1, "results": [{ "admitted": 1, "denied": 0 }] },
            ],
            "most_denied": [
                { "key": "192.0.2.1", "requests": 12, "results": [{ "admitted": 9, "denied": 3 }] },
            ],
            "minutes": [
                { "start": "2026-11-23T12:00:00Z", "requests": 9,
                  "results": [{ "admitted": 6, "denied": 3 }] },
                { "start": "2026-11-23T12:01:00Z", "requests": 4,
                  "results": [{ "admitted": 4, "denied": 0 }] },
            ],
        }])
    );
    let plot = std::fs::read_to_string(files.path("plot.svg")).unwrap();
    assert!(plot.contains("2026-11-23 12:00: 9 requests\nsettings.yaml: 6 admitted, 3 denied"));

    let expected = "\
14 lines, from 2026-11-23T12:00:00Z to 2026-11-23T12:01:01Z
lines skipped: 1; the first error: line 14: it is neither in the common or combined format nor a JSON object
2 keys

  policy  admitted  denied  % denied  keys denied
  api           10       3     23.08            1
  day           13       0      0.00            0

api: second 2/s burst 5

  keys with the most requests  requests  admitted  denied  % denied
  192.0.2.1                          12         9       3     25.00

  keys denied most             requests  admitted  denied  % denied
  192.0.2.1                          12         9       3     25.00

  minutes                      requests  admitted  denied  % denied
  2026-11-23 12:00                    9         6       3     33.33
  2026-11-23 12:01                    4         4       0      0.00

day: day 100/day calendar

  keys with the most requests  requests  admitted  denied  % denied
  192.0.2.1                          12        12       0      0.00

  minutes                      requests  admitted  denied  % denied
  2026-11-23 12:00                    9         9       0      0.00
  2026-11-23 12:01                    4         4       0      0.00
";
    assert_eq!(String::from_utf8(simulate(&files, &["--top", "1"]).stdout).unwrap(), expected);
    let one = String::from_utf8(simulate(&files, &["--minutes", "1"]).stdout).unwrap();
    assert!(one.contains("busiest minutes") && !one.contains("2026-11-23 12:01"), "{one}");
}

#[test]
fn a_reader_that_closes_the_pipe_early_is_not_an_error() {
    let log = line("192.0.2.1", 0, 10);
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    for format in [&[][..], &["--json"]] {
        let (reader, closed_pipe) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program(&files, format);
        let output = command.stdout(closed_pipe).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    }
}

#[test]
fn two_configurations_are_compared_side_by_side() {
    let log: String = (0..12).map(|n| line("192.0.2.1", n / 6 * 60, 10)).collect();
    let files = Files::new(&[
        ("settings.yaml", SETTINGS),
        ("<other>.yaml", "policies: { api: { second: 2/s burst 3 }, hour: { hour: 9/h } }"),
        ("access.log", &log),
    ]);
    let args = ["--compare", "<other>.yaml", "--svg", "plot.svg"];
    let report = json_of(&simulate(&files, &[&args[..], &["--json"]].concat()));
    assert_eq!(report["files"], json!(["settings.yaml", "<other>.yaml"]));
    let [api, day, hour] = report["policies"].as_array().unwrap().as_slice() else {
        panic!("{report}")
    };
    assert_eq!(api["results"][0]["denied"], 2);
    assert_eq!(api["results"][1]["denied"], 6);
    assert_eq!(
        api["difference"],
        json!({ "admitted": -4, "denied": 4, "denied_percent": 50.0 - 100.0 / 6.0, "denied_keys": 0 })
    );
    let both = json!([{ "admitted": 5, "denied": 1 }, { "admitted": 3, "denied": 3 }]);
    assert_eq!(api["minutes"][1]["results"], both);
    assert_eq!(api["most_requests"][0]["results"][1], json!({ "admitted": 6, "denied": 6 }));
    for (policy, file) in [(day, "settings.yaml"), (hour, "<other>.yaml")] {
        assert_eq!(policy["results"].as_array().unwrap().len(), 1);
        assert_eq!(policy["results"][0]["file"], file);
        assert!(policy.get("difference").is_none(), "{policy}");
    }

    let table = String::from_utf8(simulate(&files, &args).stdout).unwrap();
    let expected = "\
12 lines, from 2026-11-23T12:00:00Z to 2026-11-23T12:01:00Z
1 key
A is settings.yaml, B is <other>.yaml

  policy  admitted A  admitted B  denied A  denied B  % denied A  % denied B  keys denied A  keys denied B  denied B - A
  api             10           6         2         6       16.67       50.00              1              1            +4
  day             12           -         0         -        0.00           -              0              -             -
  hour             -           9         -         3           -       25.00              -              1             -

api A: second 2/s burst 5
api B: second 2/s burst 3

  keys with the most requests  requests  admitted A  admitted B  denied A  denied B  denied B - A
  192.0.2.1                          12          10           6         2         6            +4
";
    assert_eq!(&table[..expected.len()], expected);
    assert!(table.contains("hour B: hour 9/h\n"), "{table}");

    let plot = std::fs::read_to_string(files.path("plot.svg")).unwrap();
    let tooltip = "2026-11-23 12:01: 6 requests\nsettings.yaml: 5 admitted, 1 denied\n\
                   &lt;other>.yaml: 3 admitted, 3 denied<";
    assert!(plot.contains(tooltip), "{plot}");
    // What is admitted and what is denied: of both files for the first policy, then of one.
    assert_eq!(plot.matches("<path class=\"a\"").count(), 4);
    assert_eq!(plot.matches("<path class=\"b\"").count(), 4);
    assert_eq!(plot.matches("<path class=\"requests\"").count(), 3);
}

#[test]
fn a_long_log_and_a_long_key_keep_the_table_and_the_plot_small() {
    let long = format!("x\u{1b}[31m{}", "y".repeat(200));
    let mut log = String::new();
    for minute in 0..3_000 {
        let time = 1_800_000_000 + 60 * minute;
        log += &json!({ "ts": time, "user": long }).to_string();
        log.push('\n');
    }
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    let args = ["--policy", "api", "--key", "{user}", "--svg", "plot.svg"];
    let table = String::from_utf8(simulate(&files, &args).stdout).unwrap();
    assert!(table.lines().count() < 30, "{table}");
    assert!(table.lines().all(|line| line.chars().count() < 110), "{table}");
    assert!(table.contains(r"x\u{1b}[31myyy") && table.contains("y…"), "{table}");
    let plot = std::fs::read_to_string(files.path("plot.svg")).unwrap();
    assert!(plot.matches("<rect").count() <= 400, "{}", plot.len());
    assert!(plot.contains("requests per 8 minutes"), "{plot}");
}

#[test]
fn keys_and_costs_are_patterns() {
    let log = line("192.0.2.1", 0, 60) + &line("192.0.2.2", 0, 60) + &line("192.0.2.3", 9, 7);
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    let args = ["--json", "--policy", "day", "--key", "{1}", "--cost", "{bytes}"];
    let report = json_of(&simulate(&files, &args));
    assert_eq!(report["policies"][0]["most_denied"][0]["key"], "a");
    assert_eq!(report["policies"][0]["results"][0]["denied"], 1);
}

#[test]
fn json_lines_have_any_field_as_key() {
    let log =
        r#"{"ts":1800000000,"remote_ip":"192.0.2.1","tenant":{"id":"acme"}}"#.to_owned() + "\n";
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log.repeat(6))]);
    let report = json_of(&simulate(&files, &["--json", "--policy", "api", "--key", "{tenant.id}"]));
    let results = json!([{ "admitted": 5, "denied": 1 }]);
    assert_eq!(
        report["policies"][0]["most_denied"],
        json!([{ "key": "acme", "requests": 6, "results": results }])
    );
}

#[test]
fn what_cannot_be_simulated_is_explained() {
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", "a\nb\n")]);
    for (args, says) in [
        (
            &[][..],
            "none of 2 lines could be used: line 1: it is neither in the common or combined format nor",
        ),
        (&["--policy", "apo"], "no settings file has a policy `apo`"),
        (&["--key", "{ip"], "`{` without `}`"),
        (&["--compare", "none.yaml"], "none.yaml: "),
    ] {
        let output = simulate(&files, args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(says), "{args:?}: {text}");
    }
}

#[test]
fn a_field_that_no_line_has_is_an_error_that_lists_those_that_it_has() {
    let combined = line("192.0.2.1", 0, 10);
    let common = combined.replace(" \"-\" \"curl/8\"", "");
    let json = r#"{"ts":1800000000,"remote_ip":"192.0.2.1","remote_user":"","tenant":{"id":null}}"#;
    let of_common = "{ip}, {method}, {path}, {1}, {status}, {bytes}";
    for (log, pattern, says, has) in [
        (&*combined, "{foo}", "there is no field {foo}", &*format!("{of_common}, {{agent}}")),
        (&*combined, "{user}", "the field {user} is empty", &*format!("{of_common}, {{agent}}")),
        (
            &*combined,
            "{referer}",
            "the field {referer} is empty",
            &*format!("{of_common}, {{agent}}"),
        ),
        (&*common, "{agent}", "there is no field {agent}", of_common),
        (&*common, "{ip} {7}", "there is no field {7}", of_common),
        (json, "{tenant.id}", "there is no field {tenant.id}", "{ip}, {remote_ip}, {ts}"),
        (json, "{user}", "the field {user} is empty", "{ip}, {remote_ip}, {ts}"),
    ] {
        let log = format!("{}\n", log.trim()).repeat(2);
        let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
        for option in ["--key", "--cost"] {
            let output = simulate(&files, &[option, pattern]);
            let text = String::from_utf8(output.stderr).unwrap();
            let expected = format!("line 1: {says}. Line 1 has {has}\n");
            assert!(!output.status.success() && text.ends_with(&expected), "{option}: {text}");
        }
    }
}

#[test]
fn lines_without_a_field_of_the_key_do_not_share_an_empty_key() {
    let with = |fields: &str| format!("{{\"ts\":1800000000{fields}}}\n");
    let log = with(r#","tenant":"acme""#)
        + &with(r#","tenant":null"#)
        + "{\n"
        + &with("")
        + &with(r#","tenant":"""#)
        + &with(r#","tenant":"beta""#);
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    let args = ["--policy", "api", "--key", "{tenant}"];
    let report = json_of(&simulate(&files, &[&args[..], &["--json"]].concat()));
    assert_eq!((&report["keys"], &report["skipped"]), (&json!(2), &json!(4)));
    assert_eq!(
        report["skipped_by_reason"],
        json!([
            { "reason": "there is no field {tenant}", "lines": 2, "first_line": 2 },
            { "reason": "it is not a JSON object", "lines": 1, "first_line": 3 },
            { "reason": "the field {tenant} is empty", "lines": 1, "first_line": 5 },
        ])
    );
    let table = String::from_utf8(simulate(&files, &args).stdout).unwrap();
    let expected = "
lines skipped: 4; the first error: line 2: there is no field {tenant}
  2 lines: there is no field {tenant}
  1 line: it is not a JSON object
  1 line: the field {tenant} is empty
2 keys
";
    assert!(table.contains(expected), "{table}");
}

#[test]
fn requests_of_the_root_have_an_empty_first_segment() {
    let log = line("192.0.2.1", 0, 10).replace("/a/b", "/") + &line("192.0.2.1", 0, 10);
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    let report = json_of(&simulate(&files, &["--json", "--key", "{1}"]));
    assert_eq!((&report["keys"], &report["skipped"]), (&json!(2), &json!(0)));
}

#[test]
fn a_virtual_host_before_the_address_is_not_the_client() {
    let log = format!("app.example.com:443 {}", line("192.0.2.1", 0, 10))
        + &format!("app.example.com:443 {}", line("2001:db8::1", 0, 10))
        + &format!("192.0.2.9:443 {}", line("192.0.2.1", 0, 10));
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    let output = simulate(&files, &["--json", "--policy", "api"]);
    assert!(output.stderr.is_empty());
    let report = json_of(&output);
    let keys = report["policies"][0]["most_requests"].as_array().unwrap();
    let keys: Vec<_> = keys.iter().map(|key| key["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["192.0.2.1", "2001:db8::/64"]);
}

/// As if a log changed its format at some point.
#[test]
fn clients_that_are_no_addresses_are_counted_however_late_they_come() {
    let log = line("192.0.2.1", 0, 10).repeat(1_000)
        + &line("app.example.com:443", 0, 10)
        + &line("2001:db8::1", 0, 10)
        + &line("x\u{1b}[31m", 0, 10);
    let files = Files::new(&[("settings.yaml", SETTINGS), ("access.log", &log)]);
    let output = simulate(&files, &["--json"]);
    assert_eq!(
        String::from_utf8(output.stderr.clone()).unwrap(),
        "warning: access.log: {ip} is not an address in 2 lines; the first is line 1001, with \
         `app.example.com:443`\n"
    );
    let report = json_of(&output);
    assert_eq!((&report["not_addresses"], &report["skipped"]), (&json!(2), &json!(0)));
    let by_path = simulate(&files, &["--json", "--key", "{path}"]);
    assert!(by_path.stderr.is_empty(), "the address does not matter");
    assert_eq!(json_of(&by_path)["not_addresses"], 0);
}

#[test]
fn the_order_of_the_policies_does_not_differ_between_runs() {
    let values = ["h", "c", "a", "f", "b", "g", "e", "d"];
    let descriptor = |value: &str| {
        format!(
            "  - {{ key: k, value: {value}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n"
        )
    };
    let descriptors: String = values.into_iter().map(descriptor).collect();
    let files = Files::new(&[
        ("settings.yaml", "policies: { z: { q: 1/s }, y: { q: 1/s } }\ndomains: [d.yaml]"),
        ("d.yaml", &format!("domain: d\ndescriptors:\n{descriptors}")),
        ("access.log", &line("192.0.2.1", 0, 10)),
    ]);
    let report = json_of(&simulate(&files, &["--json"]));
    let policies = report["policies"].as_array().unwrap().iter();
    let names: Vec<_> = policies.map(|policy| policy["policy"].as_str().unwrap()).collect();
    let expected =
        ["z", "y", "d.k.a", "d.k.b", "d.k.c", "d.k.d", "d.k.e", "d.k.f", "d.k.g", "d.k.h"];
    assert_eq!(names, expected);
}

#[test]
fn one_is_singular() {
    let files =
        Files::new(&[("settings.yaml", SETTINGS), ("access.log", &line("192.0.2.1", 0, 10))]);
    let table = simulate(&files, &["--svg", "plot.svg"]).stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.starts_with("1 line, from") && table.contains("\n1 key\n"), "{table}");
    let plot = std::fs::read_to_string(files.path("plot.svg")).unwrap();
    assert!(plot.contains("up to 1 request per minute") && plot.contains("00: 1 request\n"));
    files.write("access.log", "a");
    let error = String::from_utf8(simulate(&files, &[]).stderr).unwrap();
    assert!(error.contains("the only line could not be used: line 1: it is neither"), "{error}");
}
