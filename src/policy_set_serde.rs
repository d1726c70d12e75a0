//! Policies in configuration files.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::policy_set::all_or_nothing;
use crate::{Policy, PolicySet, Quota};

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

/// As [`PolicySet`] says. The error lists everything that is wrong with the quotas, one per line, if
/// the file has the right structure.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for PolicySet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let policies: Map<Map<Text>> = Map::deserialize(deserializer)?;
        let (mut set, mut errors) = (Self::new(), Vec::new());
        for (policy_name, quotas) in policies.0 {
            if set.get(&policy_name).is_some() {
                errors.push(format!("policy `{policy_name}` is there twice"));
            }
            let (mut policy, before) = (Policy::new(policy_name.clone()), errors.len());
            for (name, text) in quotas.0 {
                match text.0 {
                    Ok(quota) => policy = policy.quota(name, quota),
                    Err(error) => {
                        errors.push(format!("policy `{policy_name}`: quota `{name}`: {error}"));
                    }
                }
            }
            if errors.len() == before {
                set = set.policy(policy);
            }
        }
        errors.extend(set.validate().err().map(|error| error.to_string()));
        all_or_nothing(errors).map_err(D::Error::custom)?;
        Ok(set)
    }
}

/// In the order of the file.
struct Map<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Map<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(std::marker::PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Map<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of policies, each a map of quotas")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map<V>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Map(entries))
            }
        }

        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}

/// A quota, or why it is none. So one error does not hide the others.
struct Text(Result<Quota, String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl TextVisitor {
    fn not_text<T>(found: impl fmt::Display) -> Result<Text, T> {
        Ok(Text(Err(format!(
            "{found} is not a quota: write it as text, such as \"10/s burst 20\""
        ))))
    }
}

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quota as text, such as \"10/s burst 20\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.parse().map_err(|error: crate::ConfigError| error.to_string())))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Text, E> {
        Self::not_text(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Text, E> {
        Self::not_text(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Text, E> {
        Self::not_text(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Text, E> {
        Self::not_text(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let twice = r#"{"a": {"q": "1/s"}, "a": {"q": "2/s"}}"#;
        let error = serde_json::from_str::<PolicySet>(twice).unwrap_err().to_string();
        assert!(error.contains("policy `a` is there twice"), "{error}");
        assert!(serde_json::from_str::<PolicySet>("[1]").is_err());
    }
}
