//! IP addresses as text, as in RFC 5952 and the standard library.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The text of an address, or of a network with its prefix length.
///
/// Formatted by hand, because resolvers do it for every request, and the standard library takes
/// three times as long.
pub(crate) struct AddressText {
    /// The text, which has at most 39 bytes of address and 4 of prefix length.
    bytes: [u8; 43],
    len: usize,
}

/// The digits of each number, the first one in the lowest byte, and their count.
static DECIMAL: [(u32, u8); 256] = {
    let mut decimal = [(0, 0); 256];
    let mut number = 0;
    while number < decimal.len() {
        let (hundreds, tens, ones) = (number / 100, number / 10 % 10, number % 10);
        let (hundreds, tens, ones) = (hundreds as u8 + b'0', tens as u8 + b'0', ones as u8 + b'0');
        decimal[number] = match number {
            0..10 => (u32::from_le_bytes([ones, 0, 0, 0]), 1),
            10..100 => (u32::from_le_bytes([tens, ones, 0, 0]), 2),
            _ => (u32::from_le_bytes([hundreds, tens, ones, 0]), 3),
        };
        number += 1;
    }
    decimal
};

impl AddressText {
    pub(crate) fn v4(address: Ipv4Addr, bits: u8) -> Self {
        let (short, len) = short_v4(address);
        let mut bytes = [0; 43];
        bytes[..short.len()].copy_from_slice(&short);
        let mut text = Self { bytes, len };
        text.prefix(bits, 32);
        text
    }

    pub(crate) fn v6(address: Ipv6Addr, bits: u8) -> Self {
        let mut text = Self { bytes: [0; 43], len: 0 };
        let segments = address.segments();
        let (start, end) = longest_zeros(segments);
        for (index, segment) in segments.into_iter().enumerate() {
            if index == start {
                text.push(b':');
                text.push(b':');
            }
            if (start..end).contains(&index) {
                continue;
            }
            if index > 0 && index != end {
                text.push(b':');
            }
            text.hex(segment);
        }
        text.prefix(bits, 128);
        text
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn prefix(&mut self, bits: u8, all: u8) {
        if bits < all {
            self.push(b'/');
            self.decimal(bits);
        }
    }

    fn hex(&mut self, number: u16) {
        let digits = 4 - (number.leading_zeros() / 4).min(3);
        for digit in (0..digits).rev() {
            self.push(b"0123456789abcdef"[usize::from(number >> (4 * digit) & 0xf)]);
        }
    }

    fn decimal(&mut self, number: u8) {
        let (digits, count) = DECIMAL[usize::from(number)];
        for digit in &digits.to_le_bytes()[..usize::from(count)] {
            self.push(*digit);
        }
    }

    fn push(&mut self, byte: u8) {
        if let Some(free) = self.bytes.get_mut(self.len) {
            *free = byte;
            self.len += 1;
        }
    }
}

/// Returns the text of an address and its length. There are zeros after it.
///
/// Gathered in registers, because bytes that are stored one by one are slow to load together; and in
/// halves, which do not wait for each other.
#[inline]
pub(crate) fn short_v4(address: Ipv4Addr) -> ([u8; 16], usize) {
    let [first, second, third, fourth] = address.octets();
    let (left, left_len) = two_numbers(first, second);
    let (right, right_len) = two_numbers(third, fourth);
    let left = u128::from(left) | u128::from(b'.') << (8 * left_len);
    let text = left | u128::from(right) << (8 * (left_len + 1));
    (text.to_le_bytes(), left_len + 1 + right_len)
}

// Two numbers with a dot between them, the first digit in the lowest byte, and how many bytes they
// are.
#[inline]
fn two_numbers(first: u8, second: u8) -> (u64, usize) {
    let (first, first_len) = DECIMAL[usize::from(first)];
    let (second, second_len) = DECIMAL[usize::from(second)];
    let first = u64::from(first) | u64::from(b'.') << (8 * first_len);
    let both = first | u64::from(second) << (8 * (first_len + 1));
    (both, usize::from(first_len + 1 + second_len))
}

// The longest run of at least two zeros, the first one if there are several. Without one, an empty
// run past the end.
fn longest_zeros(segments: [u16; 8]) -> (usize, usize) {
    let mut longest = (8, 8);
    let mut start = 0;
    for (index, segment) in segments.into_iter().enumerate() {
        if segment != 0 {
            start = index + 1;
        } else if index + 1 - start > (longest.1 - longest.0).max(1) {
            longest = (start, index + 1);
        }
    }
    longest
}
