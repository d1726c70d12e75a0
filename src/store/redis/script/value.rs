//! Decodes a value in Redis into entries with the identities of the reader's quotas. A value has one of two
//! forms: `short` for a single token bucket with a common rate, and `packed`, with an entry for each quota, for all
//! others. A value of which everything has ended counts as none, although its key may exist for a while: otherwise
//! decisions would depend on when the server deletes it.

use smallvec::{SmallVec, smallvec};

use super::double::integer;
use super::fragment::{self, Fragment};
use super::packed::{self, PackedEntry};
use super::short;
use crate::algorithm::{FullAt, Limits, QuotaEntry, QuotaId, QuotaState, Standing};
use crate::store::unnamed::{self, UNNAMED};

/// The content of a value.
#[derive(Debug, Default, PartialEq)]
struct Decoded {
    entries: SmallVec<[QuotaEntry; 1]>,
    /// The times at which the buckets of these identities were empty, or will be, if the value says so in
    /// a valid form: see `lua/doubt.lua`.
    empty_at: SmallVec<[(QuotaId, Option<FullAt>); 1]>,
    /// True if it was written later than now: the clock has stepped back. The state is as if it had been
    /// written now.
    is_from_the_future: bool,
}

/// The levels of a key at `now` (microseconds). `None` if no revision can have left the value.
pub(super) fn standing(value: &[u8], limits: &Limits, now: u64) -> Option<Standing> {
    let decoded = decode(value, limits, now)?;
    let mut standing = limits.standing(&decoded.entries, now);
    for (index, (quota, empty_at)) in decoded.empty_at.iter().enumerate() {
        // The first of an identity counts, as in the script.
        let is_first = decoded.empty_at[..index].iter().all(|(other, _)| other != quota);
        if let Some(empty_at) = empty_at.filter(|_| is_first) {
            limits.cap(&mut standing, *quota, empty_at, now);
        }
    }
    // Then the script stores the levels as its own, whether or not it charges.
    if decoded.is_from_the_future {
        limits.adopt(&mut standing);
    }
    Some(standing)
}

/// Decodes a value for a policy with these quotas, at `now`. `None` if no revision can have left it.
fn decode(value: &[u8], limits: &Limits, now: u64) -> Option<Decoded> {
    match short::parse(value) {
        Some(bucket) => {
            let Some((_, quota)) = unnamed::owner(limits, bucket.rate) else {
                return Some(Decoded::default());
            };
            let state = QuotaState::TokenBucket(bucket);
            let is_possible = !state.is_too_far(now);
            is_possible.then(|| Decoded {
                entries: smallvec![QuotaEntry { quota, state }],
                empty_at: smallvec![(quota, Some(FullAt { micros: now, ticks: 0 }))],
                is_from_the_future: false,
            })
        }
        None => decode_packed(value, limits, now),
    }
}

fn decode_packed(value: &[u8], limits: &Limits, now: u64) -> Option<Decoded> {
    let (written, packed) = packed::entries(value)?;
    let back = integer(written)?.saturating_sub(now);
    let mut decoded = Decoded { is_from_the_future: back > 0, ..Decoded::default() };
    for PackedEntry { quota, tag, numbers, cells } in packed {
        if tag == fragment::EMPTY_TAG {
            let at = fragment::empty_at(cells, now.saturating_add(back));
            let earlier = |at: FullAt| FullAt { micros: at.micros.saturating_sub(back), ..at };
            decoded.empty_at.push((quota, at.map(earlier)));
            continue;
        }
        let state = fragment::state(tag, &numbers, cells).map(|state| state.earlier(back, now));
        match state.filter(|state| !state.is_too_far(now)) {
            Some(state) => decoded.entries.push(QuotaEntry { quota, state }),
            None if is_read(limits, quota, tag) => return None,
            // It has another algorithm, which this version may not know.
            None => {}
        }
    }
    if let Some(owner) = unnamed::identify(&mut decoded.entries, limits) {
        decoded.empty_at.retain(|(quota, _)| *quota != owner);
        let unnamed = decoded.empty_at.iter_mut().filter(|(quota, _)| *quota == UNNAMED);
        unnamed.for_each(|(quota, _)| *quota = owner);
    }
    Some(decoded)
}

/// Returns true if a quota of the policy reads an entry.
fn is_read(limits: &Limits, quota: QuotaId, tag: u8) -> bool {
    let is_unnamed = quota == UNNAMED;
    limits.iter().any(|(id, limit)| {
        Fragment::of(limit).tag == tag && (id == quota || is_unnamed && tag == fragment::BUCKET_TAG)
    })
}

#[cfg(test)]
mod tests {
    use super::super::double::pack;
    use super::*;
    use crate::{Policy, Quota};

    fn limits(names: &[&'static str]) -> Limits {
        let quota = Quota::per_second(10);
        let add = |policy: Policy, name: &&'static str| policy.quota(*name, quota);
        Limits::new(&names.iter().fold(Policy::new("test"), add), 0).unwrap()
    }

    /// A value of buckets that are full at this time.
    fn packed(names: &[&'static str], full_at: f64) -> Vec<u8> {
        let mut value = packed::header(&limits(names));
        value.extend(pack(&[0.0]));
        names.iter().for_each(|_| value.extend(pack(&[full_at])));
        value
    }

    #[test]
    fn a_packed_value_is_read_by_name() {
        let (value, now) = (packed(&["a", "b"], 9e6), 8_900_000);
        let read = |value: &[u8], names| standing(value, &limits(names), now).unwrap();
        let short = b"9001000015";
        assert_eq!(read(&value, &["b"]), read(short, &["b"]));
        assert_eq!(read(&value, &["c"]), limits(&["c"]).standing(&[], now));
    }

    #[test]
    fn a_malformed_value_is_none_and_not_a_panic() {
        let value = packed(&["a", "b"], 9e6);
        let limits = limits(&["a"]);
        assert!(decode(&value, &limits, 0).is_some());
        for end in 0..value.len() {
            assert_eq!(decode(&value[..end], &limits, 0), None, "{end}");
        }
        assert_eq!(decode(&[&value[..], &[0]].concat(), &limits, 0), None);
        for (index, _) in value.iter().enumerate() {
            for byte in [0, 1, 127, 128, 255] {
                let mut value = value.clone();
                value[index] = byte;
                let _ = decode(&value, &limits, 0);
            }
        }
    }

    #[test]
    fn an_impossible_entry_matters_only_to_the_quota_that_reads_it() {
        for full_at in [f64::NAN, -1.0, 0.5, f64::INFINITY, 1e300, (1u64 << 53) as f64] {
            let value = packed(&["a", "c"], full_at);
            assert_eq!(decode(&value, &limits(&["a"]), 0), None, "{full_at}");
            assert!(decode(&value, &limits(&["b"]), 0).is_some(), "{full_at}");
        }
    }
}
