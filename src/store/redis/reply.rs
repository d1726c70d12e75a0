//! Parses the reply of a script.

use redis::Value;

use super::server_error;
use crate::algorithm::{Debt, MAX_TICKS, Rate, TokenBucket};
use crate::{Error, ErrorKind};

/// What the checks of a key found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A debt in ticks of the bucket's own rate.
    Ticks(u64),
    /// A debt that another revision of the quota left.
    OtherRevision(Debt),
    /// A corrupt value, which the script replaced by an empty bucket.
    Corrupt,
}

impl Found {
    pub(super) fn debt(self, bucket: &TokenBucket) -> Debt {
        match self {
            Self::Ticks(ticks) => Debt { ticks, rate: bucket.rate() },
            Self::OtherRevision(debt) => debt,
            Self::Corrupt => bucket.empty(),
        }
    }
}

/// Returns for each key what its checks found, or the error of that key. The reply is not trusted.
pub(super) fn parse(reply: Value, keys: usize) -> Result<Vec<Result<Found, Error>>, Error> {
    let unexpected =
        || Error::new(ErrorKind::Server, "unexpected reply: not one that the script makes");
    let values = match reply {
        Value::Array(values) if keys > 1 => values,
        // The reply for a single key is not in an array.
        value => vec![value],
    };
    if values.len() != keys {
        return Err(unexpected());
    }
    let found = values.into_iter().map(|value| match value {
        Value::Int(-1) => Ok(Ok(Found::Corrupt)),
        Value::Int(ticks) => match u64::try_from(ticks) {
            Ok(ticks) if ticks <= MAX_TICKS => Ok(Ok(Found::Ticks(ticks))),
            _ => Err(unexpected()),
        },
        Value::BulkString(text) => {
            let text = server_error::message(&text);
            let found = other_revision(&text).map(Found::OtherRevision);
            Ok(found.ok_or_else(|| server_error::to_key_error(text)))
        }
        _ => Err(unexpected()),
    });
    found.collect()
}

/// The debt that another revision of the quota left, as "debt:permit:scale". `None` for an error
/// message.
fn other_revision(text: &str) -> Option<Debt> {
    let mut numbers = text.split(':').map(|number| number.parse().ok());
    let (ticks, permit, scale) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let rate = Rate::new(permit, scale)?;
    if numbers.next().is_none() && ticks <= MAX_TICKS { Some(Debt { ticks, rate }) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_reply_is_an_error_and_not_a_panic() {
        let int = Value::Int;
        for found in [
            Value::Nil,
            Value::Okay,
            Value::Array(vec![]),
            Value::Array(vec![int(0)]),
            int(-2),
            int(i64::MAX),
            int(i64::MIN),
        ] {
            assert!(parse(found.clone(), 1).is_err(), "{found:?}");
            let pair = Value::Array(vec![int(0), found]);
            assert!(parse(pair.clone(), 2).is_err(), "{pair:?}");
        }
        for other in [int(0), Value::Array(vec![int(0)]), Value::Array(vec![int(0); 3])] {
            assert!(parse(other.clone(), 2).is_err(), "{other:?}");
        }
    }

    #[test]
    fn an_error_affects_only_its_key_whatever_bytes_it_contains() {
        let error = Value::BulkString(b"WRONGTYPE \xff".into());
        let pair = Value::Array(vec![error.clone(), Value::Int(0)]);
        for found in [parse(error, 1).unwrap(), parse(pair, 2).unwrap()] {
            assert_eq!(found[0].as_ref().unwrap_err().to_string(), "WRONGTYPE \u{fffd}");
            assert!(found[1..].iter().all(|found| found.as_ref().unwrap() == &Found::Ticks(0)));
        }
    }

    #[test]
    fn only_numbers_that_a_quota_can_have_are_a_debt_of_another_revision() {
        let read = |text: &str| {
            let reply = Value::BulkString(text.into());
            parse(reply, 1).unwrap().pop().unwrap()
        };
        let rate = Rate::new(5, 3).unwrap();
        assert_eq!(read("7:5:3").unwrap(), Found::OtherRevision(Debt { ticks: 7, rate }));
        let too_large = MAX_TICKS + 1;
        for text in [
            "",
            "7",
            "7:5",
            "7:5:3:1",
            "7:0:3",
            "7:5:0",
            "-7:5:3",
            "7:5:x",
            &format!("{too_large}:5:3"),
            &format!("7:{too_large}:3"),
            "7:5:99999999999999999999",
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), text);
        }
    }
}
