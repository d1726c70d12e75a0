//! The packed form of values: see `lua/packed.lua`.

use smallvec::SmallVec;

use super::double::{Doubles, doubles, pack};
use super::fragment::{self, Fragment};
use crate::algorithm::{Limits, QuotaId};
use crate::store::unnamed::UNNAMED;

const FORM: u8 = 1;
/// The form, the number of entries, and the logarithm of the granule.
const START: usize = 3;
/// The identity and the tag of an entry, and the sizes of its numbers and its cells.
const HEAD: usize = 8;

/// The entry of a quota in a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PackedEntry<'a> {
    pub(super) quota: QuotaId,
    pub(super) tag: u8,
    pub(super) numbers: Doubles,
    pub(super) cells: &'a [u8],
}

/// Everything before the time and the cells of a value that has only these quotas.
pub(crate) fn header(limits: &Limits) -> Vec<u8> {
    let mut header = vec![FORM, limits.len() as u8, granule_exponent(limits)];
    for (id, limit) in limits.iter() {
        let id = if limits.only_bucket().is_some() { UNNAMED } else { id };
        let fragment = Fragment::of(limit);
        let numbers = &fragment::numbers(limit)[..fragment.stored];
        header.extend(id.to_u32().to_be_bytes());
        header.push(fragment.tag);
        header.push(8 * numbers.len() as u8);
        header.extend((fragment::cell_bytes(limit) as u16).to_be_bytes());
        header.extend(pack(numbers));
    }
    header
}

/// The numbers of the quotas, the granule, and the identities of the quotas.
pub(super) fn numbers(limits: &Limits) -> Vec<u8> {
    let granule = (1_000_000u64 << granule_exponent(limits)) as f64;
    let numbers = limits.iter().flat_map(|(_, limit)| fragment::numbers(limit));
    let mut packed = pack(&numbers.chain([granule]).collect::<SmallVec<[f64; 16]>>());
    packed.extend(limits.iter().flat_map(|(id, _)| id.to_u32().to_be_bytes()));
    packed
}

/// The position of the identity of a quota in [`numbers`]. Positions in Lua start at 1.
pub(super) fn identity_position(numbers: usize, quota: usize) -> usize {
    8 * (numbers + 1) + 4 * quota + 1
}

/// The position of the size of the cells of a quota in [`header`]. Positions in Lua start at 1.
pub(super) fn size_position(quotas: &[&Fragment], quota: usize) -> usize {
    let before = quotas.iter().take(quota).map(|fragment| HEAD + 8 * fragment.stored);
    START + before.sum::<usize>() + HEAD - 2 + 1
}

/// The time at which a value in this form was written, and its entries. `None` if it is malformed.
pub(super) fn entries(value: &[u8]) -> Option<(f64, SmallVec<[PackedEntry<'_>; 4]>)> {
    let (&[FORM, count, _], mut rest) = value.split_first_chunk::<START>()? else { return None };
    let mut entries = SmallVec::<[PackedEntry<'_>; 4]>::new();
    let mut sizes = SmallVec::<[usize; 4]>::new();
    for _ in 0..count {
        let (&[a, b, c, d, tag, size, high, low], after) = rest.split_first_chunk::<HEAD>()?;
        let (numbers, after) = after.split_at_checked(size.into())?;
        let quota = QuotaId::from_u32(u32::from_be_bytes([a, b, c, d]));
        let numbers = doubles(numbers)?;
        entries.push(PackedEntry { quota, tag, numbers, cells: &[] });
        sizes.push(u16::from_be_bytes([high, low]).into());
        rest = after;
    }
    let (written, mut rest) = rest.split_first_chunk::<8>()?;
    for (entry, size) in entries.iter_mut().zip(sizes) {
        (entry.cells, rest) = rest.split_at_checked(size)?;
    }
    rest.is_empty().then_some((f64::from_be_bytes(*written), entries))
}

/// The granule is at most 1/16 of the time in which the slowest quota becomes unused.
fn granule_exponent(limits: &Limits) -> u8 {
    let slowest = limits.iter().map(|(_, limit)| limit.longest()).max();
    let granules = slowest.unwrap_or(0) / 16_000_000;
    granules.checked_ilog2().unwrap_or(0) as u8
}
