//! Parses the reply of the script.

use redis::Value;

use super::server_error;
use crate::algorithm::{Debt, TokenBucket};
use crate::{Error, ErrorKind};

/// Returns for each key the debt that its checks found, or the error of that key. The reply is not
/// trusted.
pub(super) fn parse(
    reply: Value,
    keys: usize,
    bucket: &TokenBucket,
) -> Result<Vec<Result<Debt, Error>>, Error> {
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
        // The script repaired a corrupt value: the checks found an empty bucket.
        Value::Int(-1) => Ok(Ok(bucket.capacity())),
        Value::Int(debt) => match u64::try_from(debt) {
            Ok(debt) if debt <= bucket.capacity() => Ok(Ok(debt)),
            _ => Err(unexpected()),
        },
        Value::BulkString(text) => {
            Ok(Err(server_error::to_key_error(server_error::message(&text))))
        }
        _ => Err(unexpected()),
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;

    #[test]
    fn a_malformed_reply_is_an_error_and_not_a_panic() {
        let bucket = TokenBucket::new("", &Quota::per_second(1)).unwrap();
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
            assert!(parse(found.clone(), 1, &bucket).is_err(), "{found:?}");
            let pair = Value::Array(vec![int(0), found]);
            assert!(parse(pair.clone(), 2, &bucket).is_err(), "{pair:?}");
        }
        for other in [int(0), Value::Array(vec![int(0)]), Value::Array(vec![int(0); 3])] {
            assert!(parse(other.clone(), 2, &bucket).is_err(), "{other:?}");
        }
    }

    #[test]
    fn an_error_affects_only_its_key_whatever_bytes_it_contains() {
        let bucket = TokenBucket::new("", &Quota::per_second(1)).unwrap();
        let error = Value::BulkString(b"WRONGTYPE \xff".into());
        let pair = Value::Array(vec![error.clone(), Value::Int(0)]);
        for found in [parse(error, 1, &bucket).unwrap(), parse(pair, 2, &bucket).unwrap()] {
            assert_eq!(found[0].as_ref().unwrap_err().to_string(), "WRONGTYPE \u{fffd}");
            assert!(found[1..].iter().all(|found| *found.as_ref().unwrap() == 0));
        }
    }
}
