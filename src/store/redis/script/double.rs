//! The numbers of values and of parameters: big-endian doubles, which Lua reads exactly up to 2^53.

use smallvec::SmallVec;

use crate::algorithm::MAX_TICKS;

/// A few numbers: integers from -2^53 to 2^53.
pub(super) type Doubles = SmallVec<[f64; 4]>;

/// The bytes of these numbers.
pub(crate) fn pack(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// The doubles in these bytes. `None` if the last one is incomplete.
pub(super) fn doubles(bytes: &[u8]) -> Option<Doubles> {
    let (doubles, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| doubles.iter().map(|bytes| f64::from_be_bytes(*bytes)).collect())
}

/// The integer that a number is, if it is one that occurs in a value.
pub(super) fn integer(number: f64) -> Option<u64> {
    let is_exact = number >= 0.0 && number <= (2 * MAX_TICKS) as f64 && number % 1.0 == 0.0;
    is_exact.then_some(number as u64)
}
