//! What envoyproxy/ratelimit's examples and the tests of its configuration show, in other words.

use fleetlimit::PolicySet;

use super::*;

/// The domain `d` with these descriptors.
fn domains(descriptors: &str) -> Domains {
    let file = serde_saphyr::from_str(&format!("domain: d\ndescriptors:\n{descriptors}")).unwrap();
    let (mut domains, mut errors) = (Domains::default(), Errors::default());
    let known = Known { policies: Some(&PolicySet::new()), all_fields: true };
    domains.add(Path::new("d.yaml"), file, known, &mut errors);
    assert_eq!(errors.to_string(), "");
    domains
}

/// A descriptor of a request, written as `key=value, key=value`.
fn find<'a>(domains: &'a Domains, descriptor: &'a str) -> Option<Match<'a>> {
    let entries = descriptor.split(", ").map(|entry| entry.split_once('=').unwrap());
    domains.find("d", entries)
}

fn limit(found: &Match<'_>) -> String {
    match found.rule.limit {
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::PerUnit { permits, unit, .. } => format!("{permits}/{}", unit.name()),
        Limit::Policy(ref name) => name.clone(),
    }
}

#[test]
fn the_most_specific_descriptor_of_the_same_depth_applies() {
    let domains = domains(
        "
  - { key: table, value: orders, rate_limit: { unit: second, requests_per_unit: 40 } }
  - { key: table, value: default, rate_limit: { unit: second, requests_per_unit: 4 } }
  - key: kind
    value: advert
    descriptors:
      - { key: phone, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: phone, rate_limit: { unit: day, requests_per_unit: 90 } }
  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 8 } }
  - { key: remote_address, value: 192.0.2.9, rate_limit: { unit: second, requests_per_unit: 0 } }
  - { key: remote_address, value: 192.0.2.1 }
  - key: source_cluster
    value: edge
    rate_limit: { unit: Hour, requests_per_unit: 70 }
    descriptors:
      - { key: destination_cluster, rate_limit: { unit: MINUTE, requests_per_unit: 6 } }
      - key: destination_cluster
        value: cart
        rate_limit: { unit: minute, requests_per_unit: 2 }
      - { key: destination_cluster, value: wiki, rate_limit: { unlimited: true } }
  - { key: generic_key, value: slow_path, rate_limit: { unit: week, requests_per_unit: 5 } }
  - { key: header_match, value: beta-users, rate_limit: { unit: month, requests_per_unit: 5 } }
  - { key: number, value: 7, rate_limit: { unit: year, requests_per_unit: 5 } }
",
    );
    for (descriptor, expected) in [
        ("table=orders", Some("40/second")),
        ("table=default", Some("4/second")),
        // `default` is a value like any other.
        ("table=users", None),
        ("kind=advert", None),
        ("kind=advert, phone=1", Some("3/day")),
        ("kind=invoice, phone=1", None),
        ("phone=1", Some("90/day")),
        ("phone=1, kind=advert", None),
        ("remote_address=192.0.2.7", Some("8/second")),
        ("remote_address=192.0.2.9", Some("0/second")),
        ("remote_address=192.0.2.1", None),
        ("source_cluster=edge", Some("70/hour")),
        ("source_cluster=edge, destination_cluster=x", Some("6/minute")),
        ("source_cluster=edge, destination_cluster=cart", Some("2/minute")),
        ("source_cluster=edge, destination_cluster=wiki", Some("unlimited")),
        ("source_cluster=edge, destination_cluster=cart, x=y", None),
        ("source_cluster=Edge", None),
        ("generic_key=slow_path", Some("5/week")),
        ("header_match=beta-users", Some("5/month")),
        ("number=7", Some("5/year")),
    ] {
        let found = find(&domains, descriptor);
        assert_eq!(found.as_ref().map(limit).as_deref(), expected, "{descriptor}");
    }
    assert!(domains.find("D", [("phone", "1")].into_iter()).is_none(), "domains are exact");
}

#[test]
fn each_value_has_its_own_limit_unless_it_shares_that_of_its_wildcard() {
    let domains = domains(
        "
  - { key: doc, value: doc/*, share_threshold: true, rate_limit: &r { unit: day, requests_per_unit: 9 } }
  - { key: own, value: own/*, rate_limit: *r }
  - { key: off, value: off/*, share_threshold: false, rate_limit: *r }
  - { key: off, value: exact, share_threshold: false, rate_limit: *r }
  - { key: api, value: /v*/list, share_threshold: true, rate_limit: *r }
  - { key: rpc, value: a*b*c, share_threshold: true, rate_limit: *r }
  - key: in
    value: a
    descriptors:
      - { key: doc, value: deep/*, share_threshold: true, rate_limit: *r }
  - key: doc
    value: top/*
    share_threshold: true
    descriptors:
      - { key: doc, value: deep/*, share_threshold: true, rate_limit: *r }
  - key: mixed
    value: m/*
    share_threshold: true
    descriptors:
      - key: file
        value: f/*
        descriptors:
          - { key: kind, rate_limit: *r }
",
    );
    for (descriptor, key) in [
        ("doc=doc/1", Some("doc/*")),
        ("doc=doc/", Some("doc/*")),
        ("doc=other/1", None),
        ("own=own/1", Some("own/1")),
        ("off=off/1", Some("off/1")),
        ("off=exact", Some("exact")),
        ("api=/v1/list", Some("/v*/list")),
        ("api=/v/list", Some("/v*/list")),
        ("api=/v1/item", None),
        ("rpc=a1b2c", Some("a*b*c")),
        ("rpc=abc", Some("a*b*c")),
        ("rpc=a1c", None),
        ("in=a, doc=deep/1", Some("a|deep/*")),
        ("in=b, doc=deep/1", None),
        ("doc=top/1, doc=deep/2", Some("top/*|deep/*")),
        ("doc=top/1", None),
        ("mixed=m/1, file=f/2, kind=x", Some("m/*|f/2|x")),
    ] {
        let found = find(&domains, descriptor).map(|found| found.key);
        let found = found.map(|key| String::from_utf8(key.as_bytes().to_vec()).unwrap());
        assert_eq!(found.as_deref(), key, "{descriptor}");
    }
}

#[test]
fn metrics_show_no_value_that_the_configuration_does_not_ask_for() {
    let domains = domains(
        "
  - { key: plain, rate_limit: &r { unit: day, requests_per_unit: 9 } }
  - key: all
    detailed_metric: true
    rate_limit: *r
    descriptors:
      - { key: leaf, rate_limit: *r }
      - { key: detailed, detailed_metric: true, rate_limit: *r }
      - { key: detailed, value: known, detailed_metric: true, rate_limit: *r }
  - key: route
    value_to_metric: true
    descriptors:
      - { key: user, rate_limit: *r }
      - key: method
        value_to_metric: true
        descriptors:
          - { key: user, rate_limit: *r }
          - { key: id, detailed_metric: true, rate_limit: *r }
      - key: method
        value: GET
        descriptors:
          - { key: user, rate_limit: *r }
  - key: outer
    descriptors:
      - key: inner
        value_to_metric: true
        descriptors:
          - { key: user, rate_limit: *r }
  - { key: star, value: s*, value_to_metric: true, rate_limit: *r }
  - { key: mid, value: a*b*, value_to_metric: true, rate_limit: *r }
  - { key: both, value: s*t, share_threshold: true, value_to_metric: true, rate_limit: *r }
  - key: file
    value: f/*
    share_threshold: true
    descriptors:
      - { key: part, detailed_metric: true, rate_limit: *r }
  - key: kept
    value: k*
    descriptors:
      - key: shown
        value_to_metric: true
        descriptors:
          - { key: user, rate_limit: *r }
",
    );
    for (descriptor, label) in [
        ("plain=x", None),
        ("all=x", Some("all_x")),
        ("all=x, leaf=y", None),
        ("all=x, detailed=y", Some("all_x.detailed_y")),
        ("all=x, detailed=known", Some("all_x.detailed_known")),
        ("route=r, user=u", Some("route_r.user")),
        ("route=r, method=PUT, user=u", Some("route_r.method_PUT.user")),
        ("route=r, method=GET, user=u", Some("route_r.method_GET.user")),
        ("route=r, method=PUT, id=7", Some("route_r.method_PUT.id_7")),
        ("route=, method=PUT, user=u", Some("route.method_PUT.user")),
        ("route=, method=, user=u", Some("route.method.user")),
        ("outer=x, inner=y, user=z", Some("outer.inner_y.user")),
        ("star=s1", Some("star_s1")),
        ("mid=a1b2", Some("mid_a1b2")),
        ("both=s1t", Some("both_s*t")),
        ("file=f/1, part=2", Some("file_f/*.part_2")),
        ("kept=k1, shown=s, user=u", Some("kept_k*.shown_s.user")),
    ] {
        let found = find(&domains, descriptor);
        let found = found.unwrap_or_else(|| panic!("no limit for {descriptor}"));
        assert_eq!(found.label.as_deref(), label, "{descriptor}");
    }
}

#[test]
fn modes_and_names_belong_to_one_descriptor_and_not_to_its_neighbours() {
    let domains = domains(
        "
  - { key: a, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 9, name: first } }
  - { key: a, value: x, rate_limit: { unit: day, requests_per_unit: 9 } }
  - { key: b, value: x, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 9 } }
  - key: b
    rate_limit:
      unlimited: true
      replaces: [{ name: first }, { name: second }]
    descriptors:
      - { key: c, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 9 } }
",
    );
    for (descriptor, shadow_mode, quota_mode, name, replaces) in [
        ("a=y", true, false, "first", &[][..]),
        ("a=x", false, false, "", &[]),
        ("b=x", false, true, "", &[]),
        ("b=y", false, false, "", &["first", "second"]),
        ("b=y, c=z", true, false, "", &[]),
    ] {
        let rule = find(&domains, descriptor).unwrap().rule;
        let found = (rule.shadow_mode, rule.quota_mode, rule.name.as_str());
        assert_eq!(found, (shadow_mode, quota_mode, name), "{descriptor}");
        assert_eq!(rule.replaces, replaces, "{descriptor}");
    }
}
