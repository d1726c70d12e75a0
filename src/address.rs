//! IP addresses as text, as in RFC 5952 and the standard library.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The text of an address, or of a network with its prefix length.
///
/// Formatted by hand, because resolvers do it for every request, and the standard library takes
/// three times as long.
pub(crate) struct AddressText {
    /// Room for 39 bytes of address and 4 of prefix length, and for two unused digits.
    bytes: [u8; 45],
    len: usize,
}

/// The digits of each number, and how many they are.
static DECIMAL: [([u8; 3], u8); 256] = {
    let mut decimal = [([0; 3], 0); 256];
    let mut number = 0;
    while number < decimal.len() {
        let (hundreds, tens, ones) = (number / 100, number / 10 % 10, number % 10);
        let (hundreds, tens, ones) = (hundreds as u8 + b'0', tens as u8 + b'0', ones as u8 + b'0');
        decimal[number] = match number {
            0..10 => ([ones, 0, 0], 1),
            10..100 => ([tens, ones, 0], 2),
            _ => ([hundreds, tens, ones], 3),
        };
        number += 1;
    }
    decimal
};

impl AddressText {
    pub(crate) fn v4(address: Ipv4Addr, bits: u8) -> Self {
        let mut text = Self { bytes: [0; 45], len: 0 };
        for (index, octet) in address.octets().into_iter().enumerate() {
            if index > 0 {
                text.push(b'.');
            }
            text.decimal(octet);
        }
        text.prefix(bits, 32);
        text
    }

    pub(crate) fn v6(address: Ipv6Addr, bits: u8) -> Self {
        let mut text = Self { bytes: [0; 45], len: 0 };
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
        let (digits, len) = DECIMAL[usize::from(number)];
        // Three at a time, which needs no branches.
        if let Some(free) = self.bytes.get_mut(self.len..self.len + digits.len()) {
            free.copy_from_slice(&digits);
            self.len += usize::from(len);
        }
    }

    fn push(&mut self, byte: u8) {
        if let Some(free) = self.bytes.get_mut(self.len) {
            *free = byte;
            self.len += 1;
        }
    }
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
