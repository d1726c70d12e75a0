//! What is wrong with a configuration is listed as a whole, with the place.

use crate::common::{Files, check};

#[track_caller]
fn assert_errors(settings: &str, domains: &[(&str, &str)], expected: &[&str]) {
    let mut files = vec![("settings.yaml", settings)];
    files.extend(domains);
    let files = Files::new(&files);
    let output = check(&files.path("settings.yaml"));
    let text = String::from_utf8(output.stderr).unwrap();
    let directory = files.path("").display().to_string();
    let lines: Vec<_> = text.lines().map(|line| line.replace(&directory, "")).collect();
    assert!(!output.status.success());
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "\n{line}\ninstead of\n{expected}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
}

#[track_caller]
fn assert_domain_error(domain: &str, expected: &str) {
    assert_errors("domains: [d.yaml]", &[("d.yaml", domain)], &[expected]);
}

#[test]
fn all_errors_of_all_files_are_listed_with_line_and_column() {
    assert_errors(
        "
policies:
  search:
    second: 10/s brst 20
    day: 1000/dya
  bad name:
    q: 1/s
auth: { policy: serch }
domains: [a.yaml, b.yaml]
",
        &[
            (
                "a.yaml",
                "
domain: a
descriptors:
  - key: user
    rate_limit: { unit: fortnight, requests_per_unit: 1 }
  - key: user
    policy: none
",
            ),
            ("b.yaml", "domain: a\ndescriptors: [{ key: x, ratelimit: {} }]\n"),
        ],
        &[
            "settings.yaml:4:13: ",
            "settings.yaml:5:10: ",
            "settings.yaml:6:3: invalid policy name",
            "a.yaml:5:25: invalid unit `fortnight`",
            "a.yaml:7:13: there is no policy `none` in the settings",
            "a.yaml:6:10: there is another descriptor `user`",
            "b.yaml:2:25: unknown field `ratelimit`",
            "settings.yaml:8:17: there is no policy `serch`",
        ],
    );
}

#[test]
fn errors_in_domains_name_the_field_and_the_line() {
    let with = |fields: &str| format!("domain: d\ndescriptors:\n  - {{ key: foo, {fields} }}\n");
    for (fields, expected) in [
        ("rate_limit: { unit: foo, requests_per_unit: 5 }", "d.yaml:3:37: invalid unit `foo`"),
        ("rate_limit: { requests_per_unit: 5 }", "d.yaml:3:29: `unit` is missing"),
        ("rate_limit: { unit: day }", "d.yaml:3:29: `requests_per_unit` is missing"),
        ("rate_limit: { unlimited: true, unit: day }", "d.yaml:3:29: an unlimited descriptor"),
        (
            "rate_limit: { unit: day, requests_per_unit: 5, name: a, replaces: [{ name: a }] }",
            "d.yaml:3:92: a limit cannot replace itself",
        ),
        (
            "rate_limit: { unit: day, requests_per_unit: 5, replaces: [{ name: '' }] }",
            "d.yaml:3:83: the name is empty",
        ),
        (
            "value: x, share_threshold: true",
            "d.yaml:3:44: `share_threshold` needs a value with `*`",
        ),
        (
            "policy: a, rate_limit: { unlimited: true }",
            "d.yaml:3:25: a descriptor has either `rate_limit` or `policy`",
        ),
    ] {
        assert_domain_error(&with(fields), expected);
    }
    assert_domain_error("descriptors: []", "d.yaml:1:1: missing field `domain`");
    assert_domain_error("domain: ''", "d.yaml:1:9: the domain is empty");
    assert_domain_error(
        "domain: d\ndescriptors: [{ value: x }]",
        "d.yaml:2:17: missing field `key`",
    );
    assert_domain_error("domain: d\ndescriptors: [{ key: '' }]", "d.yaml:2:22: the key is empty");
    assert_domain_error("domain: d\ndescriptors: [a, b]", "d.yaml:2:15: ");
    assert_domain_error("0.25: d", "d.yaml:1:1: unknown field `0.25`");
    assert_domain_error("'''\n", "d.yaml:");
}

#[test]
fn unknown_fields_are_errors_that_name_them() {
    for (domain, field) in [
        ("domain: d\ndescriptors: [{ key: a, ratelimit: {} }]", "ratelimit"),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { requestsperunit: 5 } }]",
            "requestsperunit",
        ),
        ("domain: d\ndescriptors: [{ key: a, metadata: {} }]", "metadata"),
        ("domain: d\ndescriptors: [{ key: a, rate_limit: { shadow_mode: true } }]", "shadow_mode"),
    ] {
        let files = Files::new(&[("s.yaml", "domains: [d.yaml]"), ("d.yaml", domain)]);
        let output = check(&files.path("s.yaml"));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(field) && text.contains("d.yaml:2:"), "{text}");
    }
}

#[test]
fn a_directory_is_read_as_a_whole() {
    let files = Files::new(&[
        ("settings.yaml", "domains: [limits]"),
        ("limits/a.yaml", "domain: a\ndescriptors: [{ key: k, rate_limit: { unlimited: true } }]"),
        ("limits/b.yml", "domain: b\ndescriptors: [{ key: k, policy: p }]"),
        ("limits/notes.txt", "not yaml: ["),
    ]);
    let output = check(&files.path("settings.yaml"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("b.yml:2:33: there is no policy `p`"), "{text}");
    files.write("limits/b.yml", "domain: a");
    let output = check(&files.path("settings.yaml"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("b.yml:1:9: another file has the domain `a` too"), "{text}");
}

#[test]
fn settings_that_contradict_each_other_are_rejected() {
    assert_errors(
        "
store: { redis: 'redis://a', cluster: ['redis://b'] }
checks: { timeout: 0s }
listen: { admin: '0.0.0.0:6070' }
limits: { descriptors: 0 }
",
        &[],
        &[
            "settings.yaml: store: give only one of",
            "settings.yaml: checks.timeout",
            "settings.yaml: admin.token is missing",
            "settings.yaml: there are neither `policies` nor `domains`",
            "settings.yaml: limits: with a `request_timeout`",
        ],
    );
}

#[test]
fn a_policy_cannot_have_the_name_of_a_descriptors_limit() {
    assert_errors(
        "policies: { d.user: { q: 1/s } }\ndomains: [d.yaml]",
        &[(
            "d.yaml",
            "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }]",
        )],
        &["settings.yaml: policy `d.user` has the name"],
    );
}

#[test]
fn the_documented_settings_are_valid() {
    let docs = include_str!("../../../docs/server.md");
    let mut blocks = docs.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let (settings, domain) = (blocks.next().unwrap(), blocks.next().unwrap());
    let files = Files::new(&[("settings.yaml", settings), ("limits/app.yaml", domain)]);
    let output = check(&files.path("settings.yaml"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
