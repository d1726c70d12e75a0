//! The script's reply.

use redis::Value;

use crate::algorithm::{Debt, TokenBucket};
use crate::{Error, ErrorKind};

/// The debt that the checks of each key met, or the key's own error. Nothing in the reply is
/// trusted.
pub(super) fn parse(
    reply: Value,
    keys: usize,
    bucket: &TokenBucket,
) -> Result<Vec<Result<Debt, Error>>, Error> {
    let unexpected =
        || Error::new(ErrorKind::Store, "the server's reply is not one that the script makes");
    let Value::Array(values) = reply else { return Err(unexpected()) };
    if values.len() != keys + 1 {
        return Err(unexpected());
    }
    let found = values.into_iter().skip(1).map(|value| match value {
        // A value that no run of the policy could have left: the checks met an empty bucket.
        Value::Int(-1) => Ok(Ok(bucket.capacity())),
        Value::Int(debt) => match u64::try_from(debt) {
            Ok(debt) if debt <= bucket.capacity() => Ok(Ok(debt)),
            _ => Err(unexpected()),
        },
        Value::BulkString(text) => {
            Ok(Err(Error::new(ErrorKind::Store, String::from_utf8_lossy(&text).into_owned())))
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
    fn a_hostile_reply_is_an_error_and_no_panic() {
        let bucket = TokenBucket::new("", &Quota::per_second(1)).unwrap();
        let int = Value::Int;
        for reply in [
            Value::Nil,
            Value::Okay,
            Value::Array(vec![]),
            Value::Array(vec![int(1)]),
            Value::Array(vec![int(1), int(0), int(0)]),
            Value::Array(vec![int(1), int(-2)]),
            Value::Array(vec![int(1), int(i64::MAX)]),
            Value::Array(vec![int(1), int(i64::MIN)]),
            Value::Array(vec![int(1), Value::Nil]),
            Value::Array(vec![int(1), Value::Array(vec![])]),
        ] {
            assert!(parse(reply.clone(), 1, &bucket).is_err(), "{reply:?}");
        }
        let reply = Value::Array(vec![int(1), Value::BulkString(b"WRONGTYPE \xff".into())]);
        let found = parse(reply, 1, &bucket).unwrap();
        assert_eq!(found[0].as_ref().unwrap_err().to_string(), "WRONGTYPE \u{fffd}");
    }
}
