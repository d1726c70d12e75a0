//! What is wrong with a configuration is listed as a whole, with the place.

use std::process::Output;

use crate::common::{Files, check, check_env, program};

#[track_caller]
fn assert_errors(settings: &str, domains: &[(&str, &str)], expected: &[&str]) {
    let mut files = vec![("settings.yaml", settings)];
    files.extend(domains);
    let files = Files::new(&files);
    let output = check(&files.path("settings.yaml"));
    let directory = files.path("").display().to_string();
    assert_lines(&output, |line| line.replace(&directory, ""), expected);
}

#[track_caller]
fn assert_lines(output: &Output, shorten: impl Fn(&str) -> String, expected: &[&str]) {
    let text = str::from_utf8(&output.stderr).unwrap();
    let lines: Vec<_> = text.lines().map(shorten).collect();
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
            "settings.yaml:8:17: auth.policy: there is no policy `serch`",
            "a.yaml:5:25: invalid unit `fortnight`",
            "a.yaml:6:10: there is another descriptor `user`",
            "a.yaml:7:13: there is no policy `none` in the settings",
            "b.yaml:1:9: another file or resource has the domain `a` too",
            "b.yaml:2:25: unknown field `ratelimit`",
        ],
    );
}

#[test]
fn an_error_hides_no_other_in_any_section_of_the_settings() {
    assert_errors(
        "listen: { http: nonsense, htpp: 1 }
store:
  cluster: ['redis://ok:1', nonsense, 'redis://:s3cret@x y']
checks:
  timeout: 5 parsecs
  failure_mode: ajar
  cache_denials: 1s
  cache_denials: 2s
resource_limits: { streams: 0, request_bytes: 0, descriptor: 1 }
shutdown: { delay: soon, timeout: x }
tls: { certificate: none.pem, key: none.key }
admin: { token: '' }
auth: { key_header: a b, policy: search, trusted_proxies: [10.0.0.0/40, 0.0.0.0/0], gateways: ['::/0'] }
policies:
  search:
    second: 10/s brst 20
    day: [1]
    hour: 5/day
  other: 5
  search: { q: 1/s }
allow: [10.0.0/8, fine, { a: 1 }]
deny: 7
shutdwn: {}
domains: [a.yaml, none.yaml, empty]
",
        &[("a.yaml", "domain: ''"), ("empty/.hidden", "")],
        &[
            "settings.yaml:1:17: invalid socket address",
            "settings.yaml:1:27: unknown field `htpp`",
            "settings.yaml:3:29: invalid Redis URL",
            "settings.yaml:3:39: invalid Redis URL",
            "settings.yaml:5:3: invalid value: string \"5 parsecs\"",
            "settings.yaml:6:17: unknown variant `ajar`",
            "settings.yaml:8:3: duplicate field `cache_denials`",
            "settings.yaml:9:20: invalid value: integer `0`",
            "settings.yaml:9:32: resource_limits.request_bytes: must be more than 0",
            "settings.yaml:9:50: unknown field `descriptor`",
            "settings.yaml:10:13: invalid value: string \"soon\"",
            "settings.yaml:10:26: invalid value: string \"x\"",
            "settings.yaml:11:8: none.pem: No such file",
            "settings.yaml:11:31: tls.key: No such file",
            "settings.yaml:12:10: admin.token must have at least 16 bytes",
            "settings.yaml:13:21: `a b` is not the name of a header",
            "settings.yaml:13:42: auth.trusted_proxies: `0.0.0.0/0` lets",
            "settings.yaml:13:60: `10.0.0.0/40` is neither",
            "settings.yaml:13:85: auth.gateways: `::/0` lets",
            "settings.yaml:16:13: invalid quota \"10/s brst 20\"",
            "settings.yaml:17:10: expected string scalar",
            "settings.yaml:19:10: expected a mapping: quotas are given by name",
            "settings.yaml:20:3: there is another policy `search`",
            "settings.yaml:21:9: `10.0.0/8` is neither",
            "settings.yaml:21:25: expected string scalar",
            "settings.yaml:22:7: expected sequence start",
            "settings.yaml:23:1: unknown field `shutdwn`",
            "settings.yaml:24:19: none.yaml: No such file",
            "settings.yaml:24:30: empty: no file ends with",
            "a.yaml:1:9: the domain is empty",
        ],
    );
}

#[test]
fn an_error_hides_no_other_in_a_domain() {
    assert_errors(
        "domains: [a.yaml]",
        &[(
            "a.yaml",
            "domain: a
descriptors:
  - key: [x]
    vlue: y
    rate_limit: { unit: day, foo: 1, requests_per_unit: -1 }
  - kye: x
  - key: user
    shadow_mode: perhaps
    rate_limit: { unit: fortnight, name: [] }
    descriptors:
      - { key: b, rate_limit: { unit: day } }
      - { key: c, rate_limit: { unlimited: true, replaces: [{ nam: x }] } }
  - just text
bar: 1
",
        )],
        &[
            "a.yaml:3:10: expected string scalar",
            "a.yaml:4:5: unknown field `vlue`",
            "a.yaml:5:30: unknown field `foo`",
            "a.yaml:5:57: invalid u32",
            "a.yaml:6:5: unknown field `kye`",
            "a.yaml:6:5: missing field `key`",
            "a.yaml:8:18: invalid boolean",
            "a.yaml:9:25: invalid unit `fortnight`",
            "a.yaml:9:42: ",
            "a.yaml:11:31: `requests_per_unit` is missing",
            "a.yaml:12:63: unknown field `nam`",
            "a.yaml:12:63: missing field `name`",
            "a.yaml:13:5: expected mapping start",
            "a.yaml:14:1: unknown field `bar`",
        ],
    );
}

#[test]
fn what_precedes_an_error_of_the_syntax_is_listed_with_it() {
    for (line, errors) in [
        ("checks: { bar: [ }", &["unknown field `bar`", "mismatched bracket"][..]),
        ("allow: [ }", &["mismatched bracket"]),
    ] {
        let settings = format!("resource_limits: {{ foo: 1 }}\n{line}\npolicies: {{ a: {{}} }}");
        let files = Files::new(&[("settings.yaml", &settings)]);
        let output = check(&files.path("settings.yaml"));
        let message = |line: &str| line.splitn(4, ':').nth(3).unwrap().trim_start().to_owned();
        let expected = [&["unknown field `foo`"], errors].concat();
        assert_lines(&output, message, &expected);
    }
}

#[test]
fn what_follows_from_an_error_is_not_an_error_of_its_own() {
    let policies = "policies: { p: { q: 1/s } }";
    for (settings, expected) in [
        ("policies: [a]", "settings.yaml:1:11: expected mapping start"),
        ("policies: { a: { q: [1] } }", "settings.yaml:1:21: expected string scalar"),
        ("policies: { a: { q: 1/x } }", "settings.yaml:1:21: invalid quota"),
        (
            &format!("store: {{ sentinel: {{ urls: [nonsense], service: m }} }}\n{policies}"),
            "settings.yaml:1:29: invalid Redis URL",
        ),
        (
            &format!("store: {{ sentinel: {{ urls: 7, service: m }} }}\n{policies}"),
            "settings.yaml:1:28: expected sequence start",
        ),
        (
            &format!("tls: {{ certificate: [a], key: none.key }}\n{policies}"),
            "settings.yaml:1:21: expected string scalar",
        ),
        ("policies: { p: [1] }\nauth: { policy: p }", "settings.yaml:1:16: expected a mapping: "),
        (
            &format!("admin: {{ token: [x] }}\nlisten: {{ admin: '0.0.0.0:0' }}\n{policies}"),
            "settings.yaml:1:17: expected string scalar",
        ),
    ] {
        assert_errors(settings, &[], &[expected]);
    }
    let domain = "domain: d\ndescriptors: [{ key: a, policy: p }]";
    let settings = "policies: { p: [1] }\ndomains: [d.yaml]";
    let expected = "settings.yaml:1:16: expected a mapping: ";
    assert_errors(settings, &[("d.yaml", domain)], &[expected]);
    let domain = "domain: d\ndescriptors: [{ key: a, rate_limit: 5, metadata: { a: b } }]";
    let expected = "d.yaml:2:37: expected mapping start";
    assert_errors("domains: [d.yaml]", &[("d.yaml", domain)], &[expected]);
}

#[test]
fn a_large_file_full_of_errors_does_not_take_forever() {
    let entry = "  - { key: k, ratelimit: {}, vlue: 1 }\n";
    let domain = format!("domain: d\ndescriptors:\n{}", entry.repeat(50_000));
    let files = Files::new(&[("settings.yaml", "domains: [d.yaml]"), ("d.yaml", &domain)]);
    let output = check(&files.path("settings.yaml"));
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[1].contains("d.yaml:3:30: unknown field `vlue`"), "{}", lines[1]);
    let last = lines[lines.len() - 1];
    assert!(last.ends_with("there may be more errors after these"), "{last}");
    assert!(lines.len() < 200, "{}", lines.len());
}

#[test]
fn a_key_that_does_not_match_the_certificate_is_found_before_the_start() {
    let issued = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = Files::new(&[
        ("server.pem", &issued().cert.pem()),
        ("server.key", &issued().signing_key.serialize_pem()),
    ]);
    let settings = |certificate: &str, key: &str| {
        let [certificate, key] = [certificate, key].map(|name| files.path(name));
        format!(
            "policies: {{ p: {{ q: 1/s }} }}\ntls: {{ certificate: {certificate:?}, key: {key:?} }}"
        )
    };
    for (certificate, key, expected) in [
        ("server.pem", "server.key", &["settings.yaml:2:1: tls: "][..]),
        (
            "server.key",
            "server.pem",
            &["settings.yaml:2:8: server.key: there is no certificate", "settings.yaml:2:"],
        ),
    ] {
        files.write("settings.yaml", &settings(certificate, key));
        let directory = files.path("").display().to_string();
        let output = check(&files.path("settings.yaml"));
        assert_lines(&output, |line| line.replace(&directory, ""), expected);
    }
}

#[test]
fn servers_that_do_not_fit_together_are_found_before_the_start() {
    assert_errors(
        "store: { cluster: ['redis://a', 'unix:///b'] }\nresource_limits: { foo: 1 }\npolicies: { p: { q: 1/s } }",
        &[],
        &["settings.yaml:1:10: invalid cluster node", "settings.yaml:2:20: unknown field `foo`"],
    );
}

#[test]
fn errors_in_the_environment_name_the_variable() {
    let settings =
        "resource_limits: { foo: 1 }\nauth: { policy: serch }\nstore: { redis: nonsense }\n";
    let output = check_env(&[("FLEETLIMIT_SETTINGS", &format!("{settings}policies: {{}}"))]);
    assert_lines(
        &output,
        str::to_owned,
        &[
            "FLEETLIMIT_SETTINGS: nothing is limited",
            "FLEETLIMIT_SETTINGS:1:20: unknown field `foo`",
            "FLEETLIMIT_SETTINGS:2:17: auth.policy: there is no policy `serch`",
            "FLEETLIMIT_SETTINGS:3:17: invalid Redis URL",
        ],
    );
    let output = check_env(&[
        ("FLEETLIMIT_SETTINGS", "checks: { timeout: 1s }\npolicies: { p: { q: 1/s } }"),
        ("FLEETLIMIT_TIMEOUT", "0s"),
        ("REDIS_CLUSTER", "redis://a,nonsense"),
        // Whether there are sentinels is not known.
        ("REDIS_SENTINEL_SERVICE", "main"),
    ]);
    let expected = ["REDIS_CLUSTER: invalid Redis URL", "FLEETLIMIT_TIMEOUT: checks.timeout"];
    assert_lines(&output, str::to_owned, &expected);
}

#[test]
fn settings_come_from_either_a_file_or_the_environment() {
    let files = Files::new(&[("settings.yaml", "policies: { a: { q: 1/s } }")]);
    let (file, text) = (files.path("settings.yaml"), "policies: { a: { q: 1/s } }");
    let file = file.to_str().unwrap();
    for env in [[("FLEETLIMIT_SETTINGS", text)], [("FLEETLIMIT_CONFIG", file)]] {
        assert_eq!(check_env(&env).stdout, b"1 policy, no errors\n");
    }
    let output = check_env(&[("FLEETLIMIT_SETTINGS", text), ("FLEETLIMIT_CONFIG", file)]);
    let expected =
        format!("FLEETLIMIT_SETTINGS: there is also the settings file {file}: give either");
    assert_lines(&output, str::to_owned, &[&expected]);
    let output = check_with(&["--config", file], &[("FLEETLIMIT_SETTINGS", text)]);
    assert_lines(&output, str::to_owned, &[&expected]);
    assert!(!check_env(&[]).status.success(), "there is nothing to check");
}

fn check_with(args: &[&str], env: &[(&str, &str)]) -> Output {
    program(env).arg("check").args(args).output().unwrap()
}

#[test]
fn a_file_to_check_is_given_as_for_the_server_or_alone() {
    let files = Files::new(&[
        ("good.yaml", "policies: { a: { q: 1/s } }"),
        ("bad.yaml", "policies: { a: { q: 1/s } }\nfoo: 1"),
    ]);
    let [good, bad] = ["good.yaml", "bad.yaml"].map(|name| files.path(name).display().to_string());
    let in_env = [("FLEETLIMIT_CONFIG", bad.as_str())];
    for args in [&[good.as_str()][..], &["--config", &good]] {
        for env in [&[][..], &in_env] {
            let output = check_with(args, env);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let output = check_with(&[&good, "--config", &bad], &[]);
    let expected = format!("{good}: there is also the settings file {bad}: give only one");
    assert_lines(&output, str::to_owned, &[&expected]);
}

#[test]
fn errors_of_common_mistakes_say_what_to_write() {
    let quota = "policies: { p: { q: 1/s } }";
    for (settings, expected) in [
        (
            "policies: { search: 10/s }",
            "settings.yaml:1:21: expected a mapping: quotas are given by name, such as `{ second: 10/s }`",
        ),
        (
            &format!("checks: {{ timeout: 50 }}\n{quota}"),
            "settings.yaml:1:11: invalid value: string \"50\", expected a duration, such as 50ms",
        ),
        (
            &format!("shutdown: {{ delay: 5 }}\n{quota}"),
            "settings.yaml:1:13: invalid value: string \"5\", expected a duration, such as 50ms",
        ),
    ] {
        assert_errors(settings, &[], &[expected]);
    }
    let files = Files::new(&[("settings.yaml", "policies: { p: { q: 1.5/s } }")]);
    let error = String::from_utf8(check(&files.path("settings.yaml")).stderr).unwrap();
    let hint = "; numbers are whole: 3/2s is 1.5 per second\n";
    assert!(error.contains("settings.yaml:1:21: ") && error.ends_with(hint), "{error}");
}

/// All fields are there, and those without a meaning are `null`, empty or `false`.
#[test]
fn a_domain_as_a_control_plane_writes_it_is_valid() {
    let domain = "
name: namespace/listener
domain: namespace/listener
descriptors:
  - key: route
    value: route
    rate_limit: null
    descriptors:
      - key: rule-0
        value: \"\"
        rate_limit:
          requests_per_unit: 5
          unit: SECOND
          unlimited: false
          name: \"\"
          replaces: []
        descriptors: []
        shadow_mode: false
        quota_mode: false
        detailed_metric: false
        value_to_metric: false
        share_threshold: false
    shadow_mode: false
    quota_mode: false
    detailed_metric: false
    value_to_metric: false
    share_threshold: false
";
    let files = Files::new(&[("settings.yaml", "domains: [d.yaml]"), ("d.yaml", domain)]);
    let output = check(&files.path("settings.yaml"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let two = format!("{domain}---\n{}", domain.replace("listener", "other"));
    let files = Files::new(&[("settings.yaml", "domains: [d.yaml]"), ("d.yaml", &two)]);
    let output = check(&files.path("settings.yaml"));
    let errors = String::from_utf8(output.stderr).unwrap();
    let says = "there is another document: write each to a file of its own";
    assert!(!output.status.success() && errors.contains(says), "{errors}");
}

/// The name could mean rate limits as well.
#[test]
fn the_ambiguous_name_limits_is_an_error_that_names_both_meanings() {
    assert_errors(
        "policies: { p: { q: 1/s } }\nlimits: { streams: 8 }\nbar: 1",
        &[],
        &[
            "settings.yaml:2:1: unknown field `limits`: bounds of connections and requests are in `resource_limits`, \
             and rate limits in `policies` and `domains`",
            "settings.yaml:3:1: unknown field `bar`, expected one of listen",
        ],
    );
    assert_domain_error(
        "domain: d\nlimits: {}",
        "d.yaml:2:1: unknown field `limits`, expected one of domain",
    );
}

#[test]
fn a_section_that_is_given_twice_has_a_line_and_hides_no_other_error() {
    assert_errors(
        "policies: { p: { q: 1/s } }\nresource_limits: { foo: 1 }\npolicies: { r: { q: 1/s } }\nresource_limits: {}\nbar: 1",
        &[],
        &[
            "settings.yaml:2:20: unknown field `foo`",
            "settings.yaml:3:1: duplicate field `policies`",
            "settings.yaml:4:1: duplicate field `resource_limits`",
            "settings.yaml:5:1: unknown field `bar`",
        ],
    );
    assert_domain_error("domain: d\ndomain: e", "d.yaml:2:1: duplicate field `domain`");
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
        ("metadata: { a: b }", "d.yaml:3:27: `metadata` needs `rate_limit` or `policy`"),
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
    assert_domain_error("domain: d\ndescriptors: [a]", "d.yaml:2:15: ");
    assert_domain_error("domain: d\n0.25: d", "d.yaml:2:1: unknown field `0.25`");
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
        ("domain: d\ndescriptors: [{ key: a, meta_data: {} }]", "meta_data"),
        ("domain: d\ndescriptors: [{ key: a, rate_limit: { metadata: {} } }]", "metadata"),
        ("domain: d\ndescriptors: [{ key: a, rate_limit: { shadow_mode: true } }]", "shadow_mode"),
    ] {
        let files = Files::new(&[("s.yaml", "domains: [d.yaml]"), ("d.yaml", domain)]);
        let output = check(&files.path("s.yaml"));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(field) && text.contains("d.yaml:2:"), "{text}");
    }
}

#[test]
fn values_that_a_field_cannot_have_are_errors_that_name_its_line() {
    for fields in [
        "metadata: text",
        "metadata: [a]",
        "descriptors: { key: b }",
        "descriptors: [[{ key: b }]]",
        "shadow_mode: perhaps",
        "rate_limit: day",
        "rate_limit: { unit: '', requests_per_unit: 1 }",
        "rate_limit: { unit: unknown, requests_per_unit: 1 }",
        "rate_limit: { unit: minutes, requests_per_unit: 1 }",
        "rate_limit: { unlimited: true, unit: foo }",
        "rate_limit: { unlimited: true, replaces: [{ name: }] }",
        "rate_limit: { unlimited: true, replaces: [a] }",
        "rate_limit: { unlimited: true, name: a, replaces: [{ name: b }, { name: a }] }",
        "share_threshold: true",
        "key: again",
    ] {
        let domain = format!("domain: d\ndescriptors:\n  - key: a\n  - {{ key: foo, {fields} }}\n");
        assert_domain_error(&domain, "d.yaml:4:");
    }
    for number in ["-1", "1.5", "4294967296"] {
        let limit = format!("{{ unit: day, requests_per_unit: {number} }}");
        let domain = format!("domain: d\ndescriptors: [{{ key: foo, rate_limit: {limit} }}]\n");
        let files = Files::new(&[("s.yaml", "domains: [d.yaml]"), ("d.yaml", &domain)]);
        let text = String::from_utf8(check(&files.path("s.yaml")).stderr).unwrap();
        // Without the number, it is missing as well.
        assert!(text.contains("d.yaml:2:71: ") && text.lines().count() == 2, "{text}");
    }
    for siblings in [
        "[{ key: a, value: x }, { key: a, value: x }]",
        "[{ key: a, value: x* }, { key: a, value: x* }]",
        "[{ key: a, value: '' }, { key: a }]",
    ] {
        let domain = format!("domain: d\ndescriptors: [{{ key: top, descriptors: {siblings} }}]");
        assert_domain_error(&domain, "d.yaml:2:");
    }
}

#[test]
fn fields_without_a_value_are_those_that_are_left_out() {
    let files = Files::new(&[
        ("settings.yaml", "domains: [limits]"),
        ("limits/a.yaml", "---\ndomain: a\ndescriptors:\n"),
        ("limits/b.yaml", "domain: b"),
        (
            "limits/c.yaml",
            "domain: c\ndescriptors: [{ key: a, value: , rate_limit: , descriptors: , metadata: , \
             shadow_mode: , quota_mode: , detailed_metric: , value_to_metric: , share_threshold: }]",
        ),
        (
            "limits/d.yaml",
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unlimited: true, unit: , name: , \
             replaces: , requests_per_unit: } }]",
        ),
    ]);
    let output = check(&files.path("settings.yaml"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_directory_is_read_as_a_whole() {
    let files = Files::new(&[
        ("settings.yaml", "domains: [limits]"),
        ("limits/a.yaml", "domain: a\ndescriptors: [{ key: k, rate_limit: { unlimited: true } }]"),
        ("limits/team/b.yml", "domain: b\ndescriptors: [{ key: k, policy: p }]"),
        ("limits/.hidden", "not yaml: ["),
        ("limits/a.yaml~", "not yaml: ["),
    ]);
    let output = check(&files.path("settings.yaml"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("b.yml:2:33: there is no policy `p`"), "{text}");
    files.write("limits/team/b.yml", "domain: a");
    let output = check(&files.path("settings.yaml"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("b.yml:1:9: another file or resource has the domain `a` too"), "{text}");
    // It may have limits.
    files.write("limits/legacy", "domain: c");
    let output = check(&files.path("settings.yaml"));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("limits/legacy: only files that end with .yaml or .yml"), "{text}");
}

#[test]
fn a_token_that_no_client_can_send_is_rejected() {
    for token in ["s3cret-0123456789\\n", "s3cret 0123456789", "t\u{f6}ken-0123456789"] {
        let settings = format!("policies: {{ p: {{ q: 1/s }} }}\nadmin: {{ token: \"{token}\" }}");
        let expected = "settings.yaml:2:10: admin.token has a character that a header cannot carry";
        assert_errors(&settings, &[], &[expected]);
    }
}

/// In whatever way it is written, and wherever an alias repeats it. A reload shows and logs the same text.
#[test]
fn a_secret_in_the_wrong_form_or_place_is_not_in_any_error() {
    let policies = "policies: { p: { q: 1/s } }";
    let pem = "-----BEGIN PRIVATE KEY-----\n    s3cret-0123456789\n    -----END PRIVATE KEY-----";
    for settings in [
        "admin: { token:s3cret-0123456789 }",
        "admin: { token=s3cret-0123456789 }",
        "admin: { token s3cret-0123456789 }",
        "admin: { token: [s3cret-0123456789] }",
        "admin: { token: { s3cret-0123456789: x } }",
        "admin: { token: !s3cret-0123456789 }",
        "admin: { token: !s3cret-0123456789 x }",
        "admin: { token: *s3cret-0123456789 }",
        "admin: { token: &s3cret-0123456789 }",
        "admin: { token: s3cret }",
        "admin: s3cret-0123456789",
        "admin: [s3cret-0123456789]",
        "admin: token s3cret-0123456789",
        "token:s3cret-0123456789",
        "token:s3cret-0123456789: 1",
        "policies: { token:s3cret-0123456789 }",
        "policies: { token:s3cret-0123456789: { q: 1/s } }",
        "policies: { p: { q: 'token:s3cret-0123456789' } }",
        "policies: { p: { token:s3cret-0123456789: 1/s } }",
        "auth: { policy: 'token:s3cret-0123456789' }",
        "auth: { key_header: 'token:s3cret-0123456789' }",
        "auth: { trusted_proxies: ['token:s3cret-0123456789'] }",
        "checks: { failure_mode: token:s3cret-0123456789 }",
        "checks: { timeout: token:s3cret-0123456789 }",
        "checks: { timeout: s3cret-0123456789, timeout: 1s }\nadmin: { token: s3cret-0123456789 }",
        "admin: { token: &t s3cret-0123456789 }\nauth: { policy: *t }",
        "admin: { token: &t s3cret-0123456789 }\nauth: { policy: *t }\nresource_limits: { streams: !!int x }",
        "admin: { token: &t s3cret-0123456789 }\nauth: { key_header: *t, policy_header: *t }\nshadow: [*t]",
        "admin: { token: &t s3cret-0123456789 }\nchecks: { timeout: *t, failure_mode: *t }",
        "admin: { token: &t s3cret-0123456789 }\npolicies: { *t : 5, p: { q: *t } }",
        "admin: { token: &t s3cret-0123456789 }\n*t : 5",
        "admin: { token: &t s3cret-0123456789 }\ndomains: [*t]",
        "admin: &a { token: s3cret-0123456789 }\nresource_limits: *a\nauth: *a",
        "admin: &a { token: s3cret-0123456789, x: 1 }\nchecks: { <<: *a }",
        "admin: { token: &t [s3cret-0123456789] }\nshadow: *t",
        "store: s3cret-0123456789",
        "store: { redis: s3cret-0123456789 }",
        "store: { redis: [s3cret-0123456789] }",
        "store: { redis: { s3cret-0123456789: x } }",
        "store: { redis: 'redis://user:123?s3cret-0123456789@host' }",
        "store: { redis:redis://:s3cret-0123456789@host }",
        "store: { cluster: s3cret-0123456789 }",
        "store: { cluster: { s3cret-0123456789: x } }",
        "store: { cluster: [[s3cret-0123456789]] }",
        "store: { cluster: ['redis://s3cret-0123456789:1/@host'] }",
        "store: { redis: &u 'redis://:s3cret-0123456789@h' }\ndomains: [*u]\nshadow: [*u]",
        "store: { sentinel: s3cret-0123456789 }",
        "store: { sentinel: { urls: [s3cret-0123456789], primary: s3cret-0123456789, service: s } }",
        "store: { sentinel: { urls: ['redis://a'], service: s, password_file: s3cret-0123456789 } }",
        "store: { redis: 'redis://a', password_file: s3cret-0123456789 }",
        "store: { redis: 'redis://a', password_file: [s3cret-0123456789] }",
        "store: { redis: 'rediss://a', tls: { client: { certificate: Cargo.toml, key: s3cret-0123456789 } } }",
        "store: { redis: 'redis://a', key_prefix: 'token: s3cret-0123456789' }",
        "store: { redis: 'rediss://a', tls: { name: 'token: s3cret-0123456789' } }",
        "store: { sentinel: { urls: ['redis://a'], service: 'token: s3cret-0123456789', x: 1 } }",
        "store: { redis: 'redis://a', instances: 'token: s3cret-0123456789' }",
        "listen: { grpc: 'token: s3cret-0123456789' }",
        "domains: ['token: s3cret-0123456789', 'redis://:s3cret-0123456789@a']",
        "allow: ['10.0.0.0/token: s3cret-0123456789', { s3cret-0123456789: x }]",
        "tls: { certificate: Cargo.toml, key: s3cret-0123456789 }",
        &format!("tls:\n  certificate: |\n    {pem}\n  key: |\n    {pem}"),
        &format!("tls:\n  certificate: \"{pem}\"\n  key: \"{pem}\""),
        &format!("store:\n  redis: rediss://a\n  tls:\n    ca: |\n     {pem}"),
    ] {
        let file = format!("{settings}\nfoo: 1\n");
        let with_policies = [&file, policies].concat();
        for text in [&file, &with_policies] {
            let files = Files::new(&[("settings.yaml", text)]);
            for output in [
                check(&files.path("settings.yaml")),
                check_env(&[("FLEETLIMIT_SETTINGS", text)]),
                // Mistaken for the other variable.
                check_env(&[("FLEETLIMIT_CONFIG", text)]),
            ] {
                let errors = String::from_utf8(output.stderr).unwrap();
                assert!(!output.status.success() && !errors.is_empty(), "{text}");
                assert!(!errors.contains("s3cret"), "{text}\n{errors}");
            }
        }
    }
    let errors = check_env(&[
        ("FLEETLIMIT_SETTINGS", policies),
        ("FLEETLIMIT_ADMIN_TOKEN", "s3cret"),
        ("FLEETLIMIT_ADMIN_TOKEN:s3cret", "x"),
        ("FLEETLIMIT_TIMEOUT", "token:s3cret"),
        ("REDIS_URL", "redis://user:123?s3cret@host"),
    ]);
    let errors = String::from_utf8(errors.stderr).unwrap();
    assert!(errors.lines().count() == 4 && !errors.contains("s3cret"), "{errors}");
}

#[test]
fn settings_that_contradict_each_other_are_rejected() {
    assert_errors(
        "
store: { redis: 'redis://a', cluster: ['redis://b'] }
checks: { timeout: 0s }
listen: { admin: '0.0.0.0:6070' }
resource_limits: { descriptors: 0, handshake_timeout: 2h, header_bytes: 0, connections: 9223372036854775807 }
auth: { ipv4_prefix: 0, ipv6_prefix: 129, policy: a, policy_header: x-plan }
",
        &[],
        &[
            "settings.yaml: nothing is limited",
            "settings.yaml:2:1: store: give only one of",
            "settings.yaml:3:11: checks.timeout",
            "settings.yaml:4:11: admin.token is missing",
            "settings.yaml:5:20: resource_limits.descriptors: must be more than 0",
            "settings.yaml:5:36: resource_limits.handshake_timeout",
            "settings.yaml:5:59: resource_limits.header_bytes: must be more than 0",
            "settings.yaml:5:76: resource_limits.connections: must be at most",
            "settings.yaml:6:9: auth.ipv4_prefix: must be 1 to 32",
            "settings.yaml:6:25: auth.ipv6_prefix: must be 1 to 128",
            "settings.yaml:6:43: auth.policy: with auth.policy_header, requests without the header are rejected",
            "settings.yaml:6:51: auth.policy: there is no policy `a`",
        ],
    );
}

#[test]
fn a_policy_that_does_not_exist_cannot_be_tried_out() {
    assert_errors(
        "policies: { p: { q: 1/s } }\nshadow: [p, other]",
        &[],
        &["settings.yaml:2:13: shadow: there is no policy `other`"],
    );
}

/// It would stop the server right after its start.
#[test]
fn an_invalid_prefix_of_keys_is_found_by_the_check() {
    assert_errors(
        "policies: { p: { q: 1/s } }\nstore: { redis: 'redis://a', key_prefix: 'my app' }",
        &[],
        &["settings.yaml:2:30: the prefix \"my app\" must be"],
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
        &["settings.yaml:1:13: the name of the policy `d.user`"],
    );
}

#[test]
fn certificates_for_redis_are_found_to_be_wrong_before_the_start() {
    assert_errors(
        "policies: { p: { q: 1/s } }
store:
  redis: 'rediss://a'
  tls: { ca: Cargo.toml, client: { certificate: none.pem, key: none.key } }",
        &[],
        &[
            "settings.yaml:4:10: Cargo.toml: there is no certificate",
            "settings.yaml:4:36: none.pem: No such file",
            "settings.yaml:4:59: store.tls.client.key: No such file",
        ],
    );
    let files = Files::new(&[]);
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    files.write("ca.pem", &issued.cert.pem());
    let ca = files.path("ca.pem");
    assert_errors(
        &format!(
            "policies: {{ p: {{ q: 1/s }} }}\nstore: {{ redis: 'redis://a', tls: {{ ca: {ca:?} }} }}"
        ),
        &[],
        &["settings.yaml:2:10: store.tls: redis://a is not encrypted"],
    );
    assert_errors(
        &format!(
            "policies: {{ p: {{ q: 1/s }} }}
store: {{ redis: 'rediss://a/#insecure', tls: {{ ca: {ca:?} }} }}"
        ),
        &[],
        &["settings.yaml:2:10: store.tls.ca: remove `#insecure`"],
    );
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    files.write("client.key", &other.signing_key.serialize_pem());
    let key = files.path("client.key");
    let client = format!("client: {{ certificate: {ca:?}, key: {key:?} }}");
    assert_errors(
        &format!(
            "policies: {{ p: {{ q: 1/s }} }}
store: {{ redis: 'rediss://a', key_prefix: 'a b', tls: {{ {client} }} }}"
        ),
        &[],
        &["settings.yaml:2:31: the prefix", "settings.yaml:2:57: store.tls.client: "],
    );
    assert_errors(
        "policies: { p: { q: 1/s } }\nstore: { tls: {} }",
        &[],
        &["settings.yaml:2:10: store.tls: without Redis"],
    );
}

#[test]
fn a_password_file_that_cannot_be_used_is_found_before_the_start() {
    for (store, error) in [
        ("redis: 'redis://a', password_file: none", "30: store.password_file: No such file"),
        (
            "redis: 'redis://a', password_file: /dev/null",
            "30: store.password_file: the file is empty",
        ),
        (
            "redis: 'redis://:x@a', password_file: Cargo.toml",
            "10: store.password_file: remove the password from redis://a",
        ),
        ("password_file: Cargo.toml", "10: store.password_file: without Redis"),
        (
            "sentinel: { urls: ['redis://a'], service: s, password_file: none }",
            "55: store.sentinel.password_file: No such file",
        ),
        (
            "sentinel: { urls: ['redis://:x@a'], service: s, password_file: Cargo.toml }",
            "10: store.sentinel.password_file: remove the password from redis://a",
        ),
    ] {
        assert_errors(
            &format!("policies: {{ p: {{ q: 1/s }} }}\nstore: {{ {store} }}"),
            &[],
            &[&format!("settings.yaml:2:{error}")],
        );
    }
}

#[test]
fn settings_of_connections_that_make_no_sense_are_found_before_the_start() {
    for (store, error) in [
        ("max_connection_age: 0s, redis: 'redis://a'", "store.max_connection_age: must be more"),
        ("keepalive: 0s, redis: 'redis://a'", "store.keepalive: must be more"),
        ("redis: 'redis://a', tls: { name: a }", "store.tls: redis://a is not encrypted"),
        (
            "sentinel: { urls: ['redis://a'], service: s }, tls: { name: a }",
            "store.tls: set `store.sentinel.primary` to a rediss:// URL",
        ),
        (
            "sentinel: { urls: ['rediss://a'], service: s, primary: 'redis://b' }, tls: { name: a }",
            "store.tls: redis://b is not encrypted",
        ),
        ("max_connection_age: 1h", "store.max_connection_age: without Redis"),
        ("keepalive: 1s", "store.keepalive: without Redis"),
        ("key_prefix: a", "store.key_prefix: without Redis"),
        ("connections: 2", "store.connections: without Redis"),
        ("one_key_per_call: true", "store.one_key_per_call: without Redis"),
        ("instances: 2", "store.instances: without Redis"),
        ("redis: 'rediss://a', tls: { name: 'a:6379' }", "invalid TLS name"),
    ] {
        assert_errors(
            &format!("policies: {{ p: {{ q: 1/s }} }}\nstore: {{ {store} }}"),
            &[],
            &[&format!("settings.yaml:2:10: {error}")],
        );
    }
}

#[test]
fn sentinels_need_not_be_encrypted_as_their_primary_is() {
    let files = Files::new(&[]);
    for sentinels in ["'redis://a', 'rediss://b'", "'rediss://b', 'redis://a'"] {
        let sentinel = format!("{{ urls: [{sentinels}], service: s, primary: 'rediss://c' }}");
        let store = format!("store: {{ sentinel: {sentinel}, tls: {{ name: d }} }}");
        files.write("settings.yaml", &format!("policies: {{ p: {{ q: 1/s }} }}\n{store}"));
        let output = check(&files.path("settings.yaml"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
