//! Quotas in configuration files: their text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::Quota;

/// As text: see [`Quota`].
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads a quota from text: see [`Quota`]. The error says what was expected, and at which character.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Quota;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quota as text, such as \"10/s burst 20\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Quota, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_quota_in_a_file_is_its_text() {
        let quotas: BTreeMap<String, Quota> =
            serde_json::from_str(r#"{"second": "10/s burst 20", "day": "1000/day calendar"}"#)
                .unwrap();
        assert_eq!(quotas["second"], Quota::per_second(10).burst(20));
        assert_eq!(quotas["day"], Quota::per_day(1_000).calendar());
        let text = serde_json::to_string(&quotas).unwrap();
        assert_eq!(text, r#"{"day":"1000/day calendar","second":"10/s burst 20"}"#);
    }

    #[test]
    fn an_error_in_a_file_says_what_is_expected_and_where() {
        for (text, says) in [
            (
                r#""10/fortnight""#,
                "one of the units month, week, day, h, hour, min, minute, s, second, ms, us, ns at column 4",
            ),
            ("10", "a quota as text, such as \"10/s burst 20\""),
        ] {
            let error = serde_json::from_str::<Quota>(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
