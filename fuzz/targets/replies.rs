//! Replies of a server that is not trusted: no bytes make a process panic, or a key have more permits than its policy.

#![no_main]

mod policies;

use arbitrary::Arbitrary;
use fleetlimit::internal::fuzzing;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Reply<'a> {
    /// Any bytes instead of a reply in the protocol of Redis.
    Bytes(&'a [u8]),
    Number(i64),
    /// What several keys hold, at a time, as the scripts reply.
    Values {
        seconds: u32,
        micros: u32,
        values: Vec<&'a [u8]>,
        is_table: bool,
    },
}

impl Reply<'_> {
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Number(number) => format!(":{number}\r\n").into_bytes(),
            Self::Values { seconds, micros, values, is_table } => {
                let now = format!("{seconds} {micros} ").into_bytes();
                if !is_table {
                    return text(&[now, values.join(&b',')].concat());
                }
                let mut table = format!("*{}\r\n", values.len() + 1).into_bytes();
                values.into_iter().for_each(|value| table.extend(text(value)));
                table.extend(text(&now));
                table
            }
        }
    }
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fuzz_target!(|input: (u8, u8, Reply<'_>)| {
    let (policy, keys, reply) = input;
    fuzzing::replies(&policies::policy(policy), usize::from(keys % 4) + 1, &reply.into_bytes());
});
