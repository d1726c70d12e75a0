//! The script of a policy, put together once from the frame and the piece of its algorithm, and
//! the call that runs it.

use redis::{Arg, Cmd, Script as Source};

use super::batch::{Batch, Group};
use super::name::Namer;
use super::road::Call;
use crate::Key;
use crate::algorithm::TokenBucket;

const FRAME: &str = include_str!("../../../lua/frame.lua");
const WHOLE: &str = include_str!("../../../lua/token_bucket.lua");
const FRACTION: &str = include_str!("../../../lua/token_bucket_fraction.lua");

#[derive(Debug)]
pub(super) struct Script {
    source: String,
    sha: String,
    numbers: Vec<u64>,
}

impl Script {
    pub(super) fn new(bucket: &TokenBucket) -> Self {
        let mut numbers = vec![bucket.permit(), bucket.capacity()];
        let piece = if bucket.scale() == 1 {
            WHOLE
        } else {
            numbers.push(bucket.scale());
            FRACTION
        };
        let source = assemble(piece, numbers.len());
        let sha = Source::new(&source).get_hash().to_owned();
        Self { source, sha, numbers }
    }

    /// The calls of a batch by hash, which a server answers with NOSCRIPT if it has not seen the
    /// script: one for all keys, or, on a cluster, where a call can touch one slot only, one for
    /// each.
    pub(super) fn calls(&self, batch: &Batch, namer: &Namer, one_for_each: bool) -> Vec<Call> {
        let groups: Vec<_> = batch.keys().iter().collect();
        let size = if one_for_each { 1 } else { groups.len().max(1) };
        groups.chunks(size).map(|groups| self.by_hash(groups, namer)).collect()
    }

    fn by_hash(&self, groups: &[(&Key, &Group)], namer: &Namer) -> Call {
        let keys = groups.len();
        let mut command = Cmd::with_capacity(3 + self.numbers.len() + 2 * keys, 64 * (keys + 2));
        command.arg("EVALSHA").arg(&self.sha).arg(keys);
        for (key, _) in groups {
            command.arg(namer.name(key));
        }
        for &number in &self.numbers {
            command.arg(number);
        }
        if !groups.iter().all(|(_, group)| group.costs.is_one()) {
            for (_, group) in groups {
                group.costs.write(&mut command);
            }
        }
        Call { slot: groups.first().map_or(0, |(_, group)| group.slot), keys, command }
    }

    /// The same call with the script itself.
    pub(super) fn in_full(&self, by_hash: &Call) -> Call {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for arg in by_hash.command.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        Call { command, ..*by_hash }
    }
}

/// Fills the frame's `--@ part` lines from the piece's parts of the same name, without comments.
fn assemble(piece: &str, numbers: usize) -> String {
    let mut script = String::new();
    for line in FRAME.lines() {
        match line.trim_start().strip_prefix("--@ ") {
            Some(name) => part(piece, name).for_each(|line| push_code(&mut script, line)),
            None => push_code(&mut script, line),
        }
    }
    script.replace("NUMBERS", &numbers.to_string())
}

fn part<'a>(piece: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let is_mark = |line: &&str| line.starts_with("--@ ");
    piece
        .lines()
        .skip_while(move |line| line.strip_prefix("--@ ") != Some(name))
        .skip(1)
        .take_while(move |line| !is_mark(line))
}

fn push_code(script: &mut String, line: &str) {
    let code = line.trim();
    if !code.is_empty() && !code.starts_with("--") {
        script.push_str(code);
        script.push('\n');
    }
}
