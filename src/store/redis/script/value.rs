//! What a value in Redis says about the quotas of a policy.

use smallvec::{SmallVec, smallvec};

use super::double::integer;
use super::fragment::{self, Fragment};
use super::packed;
use super::short;
use crate::algorithm::{Entry, FullAt, Limits, QuotaId, QuotaState, Standing, State};

/// What a value says.
#[derive(Debug, PartialEq)]
struct Parsed {
    state: State,
    /// When the buckets of these identities were empty, or will be, if the value says so in a valid form: see
    /// `lua/doubt.lua`.
    empty_at: SmallVec<[(QuotaId, Option<FullAt>); 1]>,
    /// Whether it was written later than now: the clock has stepped back. The state is as if it had been
    /// written now.
    is_from_the_future: bool,
}

/// The levels of a key at `now` (microseconds). `None` if no revision can have left the value.
pub(super) fn standing(value: &[u8], limits: &Limits, now: u64) -> Option<Standing> {
    let Parsed { state, empty_at, is_from_the_future } = parse(value, limits, now)?;
    let mut standing = limits.standing(Some(&state), now);
    limits.cap(&mut standing, &state, &empty_at, now);
    // Then the script stores the levels as its own, whether or not it charges.
    if is_from_the_future {
        limits.adopt(&mut standing);
    }
    Some(standing)
}

/// The state at `now`. `None` if no revision can have left it.
fn parse(value: &[u8], limits: &Limits, now: u64) -> Option<Parsed> {
    let is_possible = |state: &QuotaState| !state.is_too_far(now);
    if let Some(bucket) = short::parse(value) {
        let state = QuotaState::TokenBucket(bucket);
        let matters = || is_read(limits, QuotaId::LONE, fragment::BUCKET_TAG);
        let (state, is_possible) = (State::Lone(bucket), is_possible(&state) || !matters());
        let empty_at = smallvec![(QuotaId::LONE, Some(FullAt { micros: now, ticks: 0 }))];
        return is_possible.then_some(Parsed { state, empty_at, is_from_the_future: false });
    }
    let (written, packed) = packed::entries(value)?;
    let back = integer(written)?.saturating_sub(now);
    let (mut entries, mut empty_at) = (SmallVec::<[Entry; 4]>::new(), SmallVec::new());
    for packed::Entry { quota, tag, numbers, cells } in packed {
        if tag == fragment::EMPTY_TAG {
            let at = fragment::empty_at(cells, now.saturating_add(back));
            let earlier = |at: FullAt| FullAt { micros: at.micros.saturating_sub(back), ..at };
            empty_at.push((quota, at.map(earlier)));
            continue;
        }
        let state = fragment::state(tag, &numbers, cells).map(|state| state.earlier(back, now));
        match state.filter(is_possible) {
            Some(state) => entries.push(Entry { quota, state }),
            None if is_read(limits, quota, tag) => return None,
            // It has another algorithm, which this version may not know.
            None => {}
        }
    }
    let state = match entries.as_slice() {
        &[Entry { quota: QuotaId::LONE, state: QuotaState::TokenBucket(bucket) }] => {
            State::Lone(bucket)
        }
        _ => State::Several(entries.into_boxed_slice()),
    };
    Some(Parsed { state, empty_at, is_from_the_future: back > 0 })
}

/// Whether a quota of the policy reads an entry.
fn is_read(limits: &Limits, quota: QuotaId, tag: u8) -> bool {
    let is_lone = quota == QuotaId::LONE;
    limits.iter().any(|(id, limit)| {
        Fragment::of(limit).tag == tag && (id == quota || is_lone && tag == fragment::BUCKET_TAG)
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
        let state = parse(&packed(&["a", "b"], 9e6), &limits(&["b"]), 8_900_000).unwrap().state;
        let State::Several(entries) = &state else { panic!("{state:?}") };
        assert_eq!(entries.len(), 2);
        let now = 8_900_000;
        let of = |names| limits(names).standing(Some(&state), now);
        let lone = parse(b"9001000015", &limits(&["b"]), now).unwrap().state;
        assert_eq!(of(&["b"]), limits(&["b"]).standing(Some(&lone), now));
        assert_eq!(of(&["c"]), limits(&["c"]).standing(None, now));
    }

    #[test]
    fn a_malformed_value_is_none_and_not_a_panic() {
        let value = packed(&["a", "b"], 9e6);
        let limits = limits(&["a"]);
        assert!(parse(&value, &limits, 0).is_some());
        for end in 0..value.len() {
            assert_eq!(parse(&value[..end], &limits, 0), None, "{end}");
        }
        assert_eq!(parse(&[&value[..], &[0]].concat(), &limits, 0), None);
        for (index, _) in value.iter().enumerate() {
            for byte in [0, 1, 127, 128, 255] {
                let mut value = value.clone();
                value[index] = byte;
                let _ = parse(&value, &limits, 0);
            }
        }
    }

    #[test]
    fn an_impossible_entry_matters_only_to_the_quota_that_reads_it() {
        for full_at in [f64::NAN, -1.0, 0.5, f64::INFINITY, 1e300, (1u64 << 53) as f64] {
            let value = packed(&["a", "c"], full_at);
            assert_eq!(parse(&value, &limits(&["a"]), 0), None, "{full_at}");
            assert!(parse(&value, &limits(&["b"]), 0).is_some(), "{full_at}");
        }
    }
}
