//! Policies in configuration files.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::algorithm::policy_errors;
use crate::{ConfigError, Policy, PolicySet, Quota};

/// A map from the names of policies to maps from the names of quotas to their text.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for PolicySet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.iter().count()))?;
        for policy in self.iter() {
            map.serialize_entry(policy.name(), &Quotas(policy))?;
        }
        map.end()
    }
}

struct Quotas<'a>(&'a Policy);

impl Serialize for Quotas<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.quotas())
    }
}

/// Takes the place of a quota that is none, so that the rest of its policy is checked.
const STAND_IN: Quota = Quota::per_second(1);

/// As [`PolicySet`] says.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for PolicySet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let policies = match deserializer.deserialize_map(ValueVisitor)? {
            Value::Map(policies) => policies,
            other => return Err(D::Error::custom(format!("{other} is not a map of policies"))),
        };
        let (mut set, mut errors) = (Self::new(), Vec::new());
        for (name, value) in policies {
            if set.get(&name).is_some() {
                errors.push(format!("policy `{name}` is there twice"));
            }
            let mut policy = Policy::new(name.clone());
            match value {
                Value::Map(quotas) => {
                    for (quota_name, value) in quotas {
                        let quota = value.quota().unwrap_or_else(|error| {
                            errors.push(format!("policy `{name}`: quota `{quota_name}`: {error}"));
                            STAND_IN
                        });
                        policy = policy.quota(quota_name, quota);
                    }
                }
                other => {
                    errors.push(format!(
                        "policy `{name}`: {other} is not a map of quotas: give each quota a name"
                    ));
                    policy = policy.quota(Quota::DEFAULT_NAME, STAND_IN);
                }
            }
            errors.extend(policy_errors(&policy));
            set = set.policy(policy);
        }
        ConfigError::all_or_nothing(errors).map_err(D::Error::custom)?;
        Ok(set)
    }
}

/// A value of any type, so that one of the wrong type does not hide the errors of the others.
enum Value {
    Text(String),
    /// The entries of a map, in the order of the file if its parser keeps that.
    Map(Vec<(String, Value)>),
    /// The name of another type, for errors.
    Other(String),
}

impl Value {
    fn other<E>(found: impl fmt::Display) -> Result<Self, E> {
        Ok(Self::Other(found.to_string()))
    }

    fn quota(&self) -> Result<Quota, String> {
        match self {
            Self::Text(text) => text.parse::<Quota>().map_err(|error| error.to_string()),
            other => {
                Err(format!("{other} is not a quota: write it as text, such as \"10/s burst 20\""))
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Map(_) => f.write_str("a map"),
            Self::Other(found) => f.write_str(found),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of policies, each a map of quotas as text, such as \"10/s burst 20\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Value::other("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Value::other("null")
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Value::other("null")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Value::other(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Value::other(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Value::other(value)
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        Value::other(value)
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        Value::other(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Value::other(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_errors(json: &str, expected: &[&str]) {
        let error = serde_json::from_str::<PolicySet>(json).unwrap_err().to_string();
        let lines: Vec<_> = error.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{error}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line} instead of {expected}");
        }
    }

    #[test]
    fn policies_are_read_and_written_in_the_order_of_the_file() {
        let text = r#"{"search":{"second":"10/s burst 20","day":"1000/day calendar"},"api":{"a":"5/s queue 30s"}}"#;
        let set: PolicySet = serde_json::from_str(text).unwrap();
        let quotas: Vec<_> = set.get("search").unwrap().quotas().collect();
        assert_eq!(quotas[0], ("second", &Quota::per_second(10).burst(20)));
        assert_eq!(quotas[1].0, "day");
        assert_eq!(serde_json::to_string(&set).unwrap(), text);
    }

    #[test]
    fn toml_and_yaml_say_the_same_as_json() {
        let json =
            r#"{"search":{"second":"10/s","day":"5/day sliding 4"},"api":{"q":"3/h fixed"}}"#;
        let yaml = "search:\n  second: 10/s\n  day: 5/day sliding 4\napi: { q: 3/h fixed }\n";
        let toml = "[search]\nsecond = '10/s'\nday = '5/day sliding 4'\n[api]\nq = '3/h fixed'\n";
        let sets: [PolicySet; 2] =
            [toml::from_str(toml).unwrap(), serde_saphyr::from_str(yaml).unwrap()];
        for set in sets {
            assert_eq!(serde_json::to_string(&set).unwrap(), json);
        }
    }

    #[test]
    fn all_errors_of_a_file_are_listed() {
        let text = r#"
            [search]
            second = "10/fortnight"
            day = 1000
            [login]
            failures = "0/15min fixed"
            [empty]
            ["bad name"]
            a = "1/s"
        "#;
        let error = toml::from_str::<PolicySet>(text).unwrap_err().to_string();
        for says in [
            "policy `search`: quota `second`: invalid quota \"10/fortnight\": expected one of the units",
            "policy `search`: quota `day`: 1000 is not a quota: write it as text",
            "policy `login`: quota `failures`: 0 permits per window",
            "policy `empty` has 0 quotas",
            "invalid policy name \"bad name\"",
        ] {
            assert!(error.contains(says), "{says} in {error}");
        }
        assert!(serde_json::from_str::<PolicySet>("[1]").is_err());
    }

    #[test]
    fn an_unreadable_quota_does_not_hide_the_other_errors_of_its_policy() {
        assert_errors(
            r#"{"search": {"a": "10/fortnight", "b": "0/day", "c d": 7, "a": "1/s"}}"#,
            &[
                "policy `search`: quota `a`: invalid quota \"10/fortnight\"",
                "policy `search`: quota `c d`: 7 is not a quota: write it as text",
                "policy `search`: invalid quota name \"c d\"",
                "quota `a` of policy `search`: another has the same name",
                "policy `search`: quota `b`: 0 permits",
            ],
        );
    }

    #[test]
    fn a_quota_of_the_wrong_type_does_not_hide_the_other_errors_of_the_file() {
        assert_errors(
            r#"{
                "a": {"list": [1, {"x": [2]}], "map": {"q": "1/s"}, "null": null, "bool": true},
                "b": {"float": 1.5, "negative": -1, "zero": "0/day"}
            }"#,
            &[
                "policy `a`: quota `list`: a list is not a quota: write it as text",
                "policy `a`: quota `map`: a map is not a quota",
                "policy `a`: quota `null`: null is not a quota",
                "policy `a`: quota `bool`: true is not a quota",
                "policy `b`: quota `float`: 1.5 is not a quota",
                "policy `b`: quota `negative`: -1 is not a quota",
                "policy `b`: quota `zero`: 0 permits",
            ],
        );
    }

    #[test]
    fn a_policy_of_the_wrong_type_does_not_hide_the_other_errors_of_the_file() {
        assert_errors(
            r#"{"a b": "1/s", "c": null, "d": [], "e": {"q": "0/day"}}"#,
            &[
                "policy `a b`: \"1/s\" is not a map of quotas: give each quota a name",
                "invalid policy name \"a b\"",
                "policy `c`: null is not a map of quotas",
                "policy `d`: a list is not a map of quotas",
                "policy `e`: quota `q`: 0 permits",
            ],
        );
    }

    #[test]
    fn a_policy_that_is_there_twice_has_the_errors_of_both() {
        assert_errors(
            r#"{"a": {"q": "0/day"}, "a": {"q": "0/s"}}"#,
            &[
                "policy `a`: quota `q`: 0 permits",
                "policy `a` is there twice",
                "policy `a`: quota `q`: 0 permits",
            ],
        );
    }

    #[test]
    fn what_only_toml_has_does_not_hide_the_other_errors_of_the_file() {
        let text = r#"
            day = "1/day"
            [search]
            date = 2024-01-01
            huge = 99999999999999999999
            zero = "0/day"
            [search.table]
            [[list]]
            q = "1/s"
        "#;
        let error = toml::from_str::<PolicySet>(text).unwrap_err().to_string();
        for says in [
            "policy `day`: \"1/day\" is not a map of quotas",
            "policy `search`: quota `date`: a map is not a quota",
            "policy `search`: quota `huge`: 99999999999999999999 is not a quota",
            "policy `search`: quota `table`: a map is not a quota",
            "policy `search`: quota `zero`: 0 permits",
            "policy `list`: a list is not a map of quotas",
        ] {
            assert!(error.contains(says), "{says} in {error}");
        }
    }
}
