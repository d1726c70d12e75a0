//! Parses the reply of a script, which is what the checks found, not what was decided: usually what each key
//! held, and the time.
//!
//! The process computes the levels of a key from them with the specification, as the memory store does, and
//! replays the checks, which gives the same verdicts. So the script need not format numbers, which is a large
//! part of what a script costs, a reply carries everything that another revision has written, and a cached
//! denial can keep the state itself. The reply is not trusted: a value that no quota can have left denies.
//!
//! The reply is one string, because a table of one takes the server longer to send, and one of many takes the
//! client a fifth more instructions per check. Values of the short form and the marks for missing and corrupt
//! ones contain no comma, so a comma separates them; the rest needs a table. For a single key, as in all calls
//! on a cluster, the reply is usually a number: the level in ticks, which is enough for the verdicts, and for
//! the state of a cached denial, relative to any time. So neither side makes a string, which both notice by
//! several percent. The value comes back whole if its rate is another one, because the wait after a denial is
//! at that rate; if checks may wait, because their places in the queue are times; and if checks are charged
//! later. A value that only the script takes for a number, such as `+17`, which no version writes, counts as
//! that number in such a call, and denies in others.

use redis::Value;
use smallvec::{SmallVec, smallvec};

use super::digits::leading_number;
use super::value;
use crate::algorithm::{Limits, MAX_TICKS, Standing};
use crate::store::redis::server_error;
use crate::{Error, ErrorKind};

/// The value or the level that the checks of a key found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The time at which the checks were decided, in microseconds of the server's clock; or 0 if only the
    /// level is known, which is then the same at any time.
    pub(crate) now: u64,
    pub(crate) stored: Stored,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Nothing,
    /// The level of a single token bucket, in ticks.
    Level(u64),
    /// The value of a key, which fits without an allocation if it has the short form.
    Value(SmallVec<[u8; 24]>),
    /// A corrupt value: the checks find no permits.
    Corrupt,
}

impl Found {
    /// Returns the levels of the quotas. `None` if the value is corrupt.
    pub(crate) fn standing(&self, limits: &Limits) -> Option<Standing> {
        match self.stored {
            Stored::Nothing => Some(limits.standing(&[], self.now)),
            // A value that the script takes for valid and this does not is corrupt too.
            Stored::Value(ref value) => value::standing(value, limits, self.now),
            Stored::Level(level) => limits.standing_of_bucket(level),
            Stored::Corrupt => None,
        }
    }
}

/// The findings of the checks of each key, or its error. A call of a cluster has a single key.
pub(super) type Results = SmallVec<[Result<Found, Error>; 1]>;

/// Parses the reply to a call with this many keys. It is not trusted.
pub(crate) fn parse(reply: Value, keys: usize) -> Result<Results, Error> {
    match reply {
        Value::Int(level) if keys == 1 => {
            let level = u64::try_from(level).ok().filter(|level| *level <= MAX_TICKS);
            let stored = Stored::Level(level.ok_or_else(unexpected)?);
            Ok(smallvec![Ok(Found { now: 0, stored })])
        }
        Value::BulkString(text) if keys > 1 => {
            let (now, values) = clock(&text).ok_or_else(unexpected)?;
            let values = values.split(|&byte| byte == b',').take(keys + 1);
            let mut all = Results::with_capacity(keys + 1);
            all.extend(values.map(|value| found(value, now)));
            if all.len() == keys { Ok(all) } else { Err(unexpected()) }
        }
        Value::Array(mut values) if keys > 1 => {
            let Some(Value::BulkString(text)) = values.pop() else { return Err(unexpected()) };
            let Some((now, b"")) = clock(&text) else { return Err(unexpected()) };
            if values.len() != keys {
                return Err(unexpected());
            }
            let mut all = Results::with_capacity(keys);
            for value in values {
                let Value::BulkString(text) = value else { return Err(unexpected()) };
                all.push(found(&text, now));
            }
            Ok(all)
        }
        Value::BulkString(text) if keys == 1 => Ok(smallvec![match server_error::of_key(&text) {
            Some(error) => Err(server_error::to_key_error(error)),
            None => {
                let (now, value) = clock(&text).ok_or_else(unexpected)?;
                found(value, now)
            }
        }]),
        _ => Err(unexpected()),
    }
}

/// Reads what one key held.
fn found(value: &[u8], now: u64) -> Result<Found, Error> {
    if let Some(error) = server_error::of_key(value) {
        return Err(server_error::to_key_error(error));
    }
    let stored = match value {
        b"" => Stored::Nothing,
        b"-" => Stored::Corrupt,
        value => Stored::Value(SmallVec::from_slice(value)),
    };
    Ok(Found { now, stored })
}

/// The time at the start of a text, and what follows it.
fn clock(text: &[u8]) -> Option<(u64, &[u8])> {
    let (seconds, rest) = leading_number(text)?;
    let (micros, rest) = leading_number(rest.strip_prefix(b" ")?)?;
    let now = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    Some((now, rest.strip_prefix(b" ")?))
}

fn unexpected() -> Error {
    Error::new(ErrorKind::Server, "unexpected reply: not one that the script makes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;

    fn bulk(text: impl AsRef<[u8]>) -> Value {
        Value::BulkString(text.as_ref().into())
    }

    #[test]
    fn a_malformed_reply_is_an_error_and_not_a_panic() {
        let now = || bulk("7 5 ");
        for reply in [
            Value::Nil,
            Value::Okay,
            Value::Int(-1),
            Value::Int(MAX_TICKS as i64 + 1),
            bulk(""),
            bulk("7"),
            bulk("7 5"),
            bulk("7 x "),
            bulk("-7 5 "),
            bulk("7  5 "),
            bulk("7 10000000000000000000 "),
            bulk("99999999999999 5 "),
            bulk("18446744073709 999999999 "),
            bulk("\u{e9} 5 "),
            Value::Array(vec![]),
            Value::Array(vec![now()]),
            Value::Array(vec![bulk(""), now()]),
        ] {
            assert!(parse(reply.clone(), 1).is_err(), "{reply:?}");
            assert!(parse(reply.clone(), 2).is_err(), "{reply:?}");
        }
        assert!(parse(Value::Int(0), 2).is_err());
        for text in ["7 5 ", "7 5 1", "7 5 1,2,3", "7 5,1,2"] {
            assert!(parse(bulk(text), 2).is_err(), "{text:?}");
        }
        for values in [
            vec![bulk(""), bulk(""), bulk("")],
            vec![bulk(""), bulk(""), bulk(""), now()],
            vec![bulk(""), Value::Int(0), now()],
            vec![bulk(""), bulk(""), bulk("7 5 1")],
            vec![bulk(""), bulk(""), Value::Int(7)],
        ] {
            assert!(parse(Value::Array(values.clone()), 2).is_err(), "{values:?}");
        }
    }

    #[test]
    fn a_key_has_the_same_result_alone_and_among_others() {
        for (text, stored) in [
            ("", Stored::Nothing),
            ("-", Stored::Corrupt),
            ("9000000015", Stored::Value(b"9000000015".as_slice().into())),
        ] {
            let found = Found { now: 7_000_005, stored };
            let alone = parse(bulk(format!("7 5 {text}")), 1).unwrap();
            let pair = parse(bulk(format!("7 5 {text},{text}")), 2).unwrap();
            let table = Value::Array(vec![bulk(text), bulk(text), bulk("7 5 ")]);
            for result in alone.into_iter().chain(pair).chain(parse(table, 2).unwrap()) {
                assert_eq!(result.unwrap(), found.clone());
            }
        }
    }

    #[test]
    fn a_level_says_the_same_as_a_value_and_the_time() {
        let limits = |policy| Limits::new(&policy, 0).unwrap();
        let (bucket, permit) = (limits(Quota::per_second(10).burst(100).into()), 100_000);
        for level in [0, 1, permit - 1, permit, 99 * permit + 1, 100 * permit] {
            let now = 7_000_005;
            let value = format!("{}015", now + level + 1_000);
            let found = |reply| parse(reply, 1).unwrap().remove(0).unwrap();
            let alone = found(Value::Int(level as i64)).standing(&bucket);
            assert_eq!(alone, found(bulk(format!("7 5 {value}"))).standing(&bucket), "{level}");
            assert!(alone.is_some());
        }
        // Their scripts never reply so. A tick of the second is a third of a microsecond.
        for other in [Quota::per_second(10).fixed_window(), Quota::per_second(3)] {
            let found = parse(Value::Int(0), 1).unwrap().remove(0).unwrap();
            assert_eq!(found.standing(&limits(other.into())), None);
        }
    }

    #[test]
    fn an_error_affects_only_its_key_whatever_bytes_it_contains() {
        let error = bulk(b"!WRONGTYPE \xff");
        let pair = Value::Array(vec![error.clone(), bulk(""), bulk("7 5 ")]);
        for found in [parse(error, 1).unwrap(), parse(pair, 2).unwrap()] {
            assert_eq!(found[0].as_ref().unwrap_err().to_string(), "WRONGTYPE \u{fffd}");
            let is_full = |found: &Result<Found, _>| match found {
                Ok(found) => found.stored == Stored::Nothing,
                Err(_) => false,
            };
            assert!(found[1..].iter().all(is_full));
        }
    }
}
