//! The script of a policy, assembled once from the frame and the fragment of its algorithm, and the
//! calls that run it.

use redis::{Arg, Cmd, Script as Source};

use super::batch::Group;
use super::key_encoder::KeyEncoder;
use super::topology::Call;
use crate::algorithm::TokenBucket;

const FRAME: &str = include_str!("../../../lua/frame.lua");
const INTEGER_RATE: &str = include_str!("../../../lua/token_bucket.lua");
const FRACTIONAL_RATE: &str = include_str!("../../../lua/token_bucket_fraction.lua");

#[derive(Debug)]
pub(super) struct Script {
    source: String,
    sha: String,
    params: Vec<u64>,
}

impl Script {
    pub(super) fn new(bucket: &TokenBucket) -> Self {
        let mut params = vec![bucket.permit(), bucket.capacity()];
        let fragment = if bucket.scale() == 1 {
            INTEGER_RATE
        } else {
            params.push(bucket.scale());
            FRACTIONAL_RATE
        };
        let source = assemble(fragment, params.len());
        let sha = Source::new(&source).get_hash().to_owned();
        Self { source, sha, params }
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }

    /// The calls for the groups of a batch, with the hash of the script. A server that does not know
    /// the script replies NOSCRIPT. One call has all keys, except on a cluster, where a call can
    /// touch only one slot.
    pub(super) fn calls(
        &self,
        groups: &[Group<'_>],
        encoder: &KeyEncoder,
        one_per_key: bool,
    ) -> Vec<Call> {
        let size = if one_per_key { 1 } else { groups.len().max(1) };
        groups.chunks(size).map(|groups| self.evalsha(groups, encoder)).collect()
    }

    fn evalsha(&self, groups: &[Group<'_>], encoder: &KeyEncoder) -> Call {
        let keys = groups.len();
        let mut command = Cmd::with_capacity(3 + self.params.len() + 2 * keys, 64 * (keys + 2));
        command.arg("EVALSHA").arg(&self.sha).arg(keys);
        for (_, key, _) in groups {
            command.arg(encoder.name(key));
        }
        for &number in &self.params {
            command.arg(number);
        }
        if !groups.iter().all(|(_, _, group)| group.costs.is_one()) {
            for (_, _, group) in groups {
                group.costs.write(&mut command);
            }
        }
        Call {
            slot: groups.first().map_or(0, |(_, _, group)| group.slot),
            groups: groups.iter().map(|(index, ..)| *index).collect(),
            command,
        }
    }

    /// The same call with the source of the script.
    pub(super) fn eval(&self, evalsha: &Call) -> Call {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for arg in evalsha.command.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        Call { slot: evalsha.slot, groups: evalsha.groups.clone(), command }
    }
}

/// Replaces each marker (`--@ name`) of the frame by the fragment's section of that name, and
/// removes comments.
fn assemble(fragment: &str, params: usize) -> String {
    let mut script = String::new();
    for line in FRAME.lines() {
        match line.trim_start().strip_prefix("--@ ") {
            Some(name) => section(fragment, name).for_each(|line| push_code(&mut script, line)),
            None => push_code(&mut script, line),
        }
    }
    script.replace("PARAMS", &params.to_string())
}

/// The lines between the marker of this name and the next one.
fn section<'a>(fragment: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let is_marker = |line: &&str| line.starts_with("--@ ");
    fragment
        .lines()
        .skip_while(move |line| line.strip_prefix("--@ ") != Some(name))
        .skip(1)
        .take_while(move |line| !is_marker(line))
}

fn push_code(script: &mut String, line: &str) {
    let code = line.trim();
    if !code.is_empty() && !code.starts_with("--") {
        script.push_str(code);
        script.push('\n');
    }
}
