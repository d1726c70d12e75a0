//! Requests of Envoy's protocol: what is counted before decoding is what decoding finds, and texts of any bytes decode.

#![no_main]

#[path = "../../server/src/grpc/codec.rs"]
mod codec;
#[allow(dead_code)]
#[path = "../../server/src/grpc/wire.rs"]
mod wire;

use std::cell::RefCell;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| {
    let counts = wire::PartCounts::of(message);
    let found = RefCell::new(Vec::new());
    wire::has_entry(message, |key, value| {
        found.borrow_mut().push((key.to_owned(), value.to_owned()));
        false
    });
    let Ok(request) = codec::decode(Bytes::copy_from_slice(message)) else { return };
    assert_eq!(counts.descriptors, request.descriptors.len());
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len());
    assert_eq!(counts.entries, entries.clone().sum::<usize>());
    assert_eq!(counts.most_entries, entries.max().unwrap_or(0));
    let all = request.descriptors.into_iter().flat_map(|descriptor| descriptor.entries);
    assert_eq!(found.into_inner(), all.map(|entry| (entry.key, entry.value)).collect::<Vec<_>>());
});
