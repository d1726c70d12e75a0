//! Reads the bytes of a request without decoding it: an entry of two bytes takes 48 once it is decoded, and more as a
//! part of a check.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::codec::text;

/// The numbers of the fields of a request, of a descriptor, and of an entry.
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;
const KEY: u32 = 1;
const VALUE: u32 = 2;

/// The memory for an entry in addition to its texts: it is decoded, and its parts are copied into a key.
const ENTRY_BYTES: usize = 128;
/// The memory for a descriptor: the future of its check, and the place of that in a batch.
const DESCRIPTOR_BYTES: usize = 2 * 1_024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartCounts {
    pub(super) descriptors: usize,
    pub(super) entries: usize,
    /// The entries of the descriptor that has the most.
    pub(super) most_entries: usize,
}

impl PartCounts {
    pub(super) fn of(request: &[u8]) -> Self {
        let mut counts = Self::default();
        for descriptor in all(request, DESCRIPTORS) {
            let entries = all(descriptor, ENTRIES).count();
            counts.descriptors += 1;
            counts.entries += entries;
            counts.most_entries = counts.most_entries.max(entries);
        }
        counts
    }

    /// The memory that a request takes from when it is decoded until it is answered, in addition to its own bytes.
    pub(super) fn bytes(self) -> usize {
        self.entries * ENTRY_BYTES + self.descriptors * DESCRIPTOR_BYTES
    }
}

/// Returns true if an entry of any descriptor has a key and a value for which `is` is true.
pub(super) fn has_entry(request: &[u8], is: impl Fn(&str, &str) -> bool) -> bool {
    let mut entries = all(request, DESCRIPTORS).flat_map(|descriptor| all(descriptor, ENTRIES));
    entries.any(|entry| {
        let [key, value] = [KEY, VALUE].map(|tag| text(all(entry, tag).last().unwrap_or_default()));
        is(&key, &value)
    })
}

/// The fields of a message that have this number.
fn all(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter(move |(tag, _)| *tag == number).map(|(_, field)| field)
}

/// The texts and messages in a message, up to where it is malformed. It is read as prost does it, so that both find
/// the same.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            let (tag, wire_type) = decode_key(&mut self.0).ok()?;
            if wire_type == WireType::LengthDelimited {
                let length = decode_varint(&mut self.0).ok()?;
                let (field, rest) = self.0.split_at_checked(length.try_into().ok()?)?;
                self.0 = rest;
                return Some((tag, field));
            }
            skip_field(wire_type, tag, &mut self.0, DecodeContext::default()).ok()?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use bytes::Bytes;

    use super::*;
    use crate::grpc::codec::decode;

    /// A sequence of numbers that looks random.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, most: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % most
        }

        /// A part of a message, which is seldom malformed.
        fn message(&mut self, depth: usize) -> Vec<u8> {
            let mut message = Vec::new();
            for _ in 0..self.below(5) {
                match self.below(if depth == 0 { 7 } else { 12 }) {
                    0 => message.push(self.below(256) as u8),
                    1 => message.extend([0x18, 0x85, self.below(128) as u8]),
                    // A field of four bytes, one of eight, and a group.
                    2 => message.extend([&[0x7d][..], &[self.below(256) as u8; 4]].concat()),
                    3 => message.extend([&[0x79][..], &[self.below(256) as u8; 8]].concat()),
                    4 => {
                        message.push(0x7b);
                        message.extend(self.message(0));
                        message.push(0x7c);
                    }
                    5 => message.extend([0x8a, 0x01, 2, 0xff, 0x12]),
                    6 => {
                        let text = ["", "a", "\u{e9}", "user"][self.below(4)];
                        message.extend([[0x0a, 0x12][self.below(2)], text.len() as u8]);
                        message.extend(text.bytes());
                    }
                    _ => {
                        let inner = self.message(depth - 1);
                        message.push([0x0a, 0x12, 0x12][self.below(3)]);
                        // Sometimes in more bytes than are needed.
                        match self.below(4) {
                            0 => {
                                message.extend([inner.len() as u8 | 0x80, (inner.len() >> 7) as u8])
                            }
                            _ if inner.len() < 128 => message.push(inner.len() as u8),
                            _ => return message,
                        }
                        message.extend(inner);
                    }
                }
            }
            message
        }
    }

    #[test]
    fn whatever_the_bytes_what_is_counted_is_what_is_decoded() {
        let mut numbers = Numbers(7);
        let (mut decoded, mut most) = (0, PartCounts::default());
        for _ in 0..300_000 {
            let message = Bytes::from(numbers.message(3));
            let counts = PartCounts::of(&message);
            let found = RefCell::new(Vec::new());
            has_entry(&message, |key, value| {
                found.borrow_mut().push((key.to_owned(), value.to_owned()));
                false
            });
            let Ok(request) = decode(message.clone()) else { continue };
            decoded += 1;
            let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len());
            let expected = PartCounts {
                descriptors: request.descriptors.len(),
                entries: entries.clone().sum(),
                most_entries: entries.max().unwrap_or_default(),
            };
            assert_eq!(counts, expected, "{message:?}");
            let entries = request.descriptors.into_iter().flat_map(|descriptor| descriptor.entries);
            let entries: Vec<_> = entries.map(|entry| (entry.key, entry.value)).collect();
            assert_eq!(found.into_inner(), entries, "{message:?}");
            most.entries = most.entries.max(counts.entries);
            most.descriptors = most.descriptors.max(counts.descriptors);
        }
        assert!(decoded > 50_000 && most.entries > 4 && most.descriptors > 3, "{decoded} {most:?}");
    }
}
