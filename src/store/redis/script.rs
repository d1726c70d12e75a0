//! The script of a policy, assembled once from the frame and the fragments of its algorithm, and
//! the calls that run it.

use redis::{Arg, Cmd, Script as Source};

use super::batch::Group;
use super::key_encoder::KeyEncoder;
use super::topology::Call;
use crate::algorithm::{MAX_TICKS, Rate, TokenBucket};

const FRAME: &str = include_str!("../../../lua/frame.lua");
/// For rates that fit in three digits, and for all others.
const SHORT_RATE: &str = include_str!("../../../lua/token_bucket.lua");
const TEXT_RATE: &str = include_str!("../../../lua/token_bucket_text.lua");
/// Part of both.
const OTHER_RATE: &str = include_str!("../../../lua/token_bucket_other.lua");
/// Starts a line that names a section.
const MARKER: &str = "--@ ";

#[derive(Debug)]
pub(super) struct Script {
    source: String,
    sha: String,
    params: [String; 2],
}

impl Script {
    pub(super) fn new(bucket: &TokenBucket) -> Self {
        let (permit, capacity) = (bucket.rate().permit(), bucket.capacity());
        let (fragment, rate) = match three_digits(bucket.rate()) {
            Some(digits) => (SHORT_RATE, format!("{permit}{digits}")),
            None => (TEXT_RATE, format!(":{permit}:{}", bucket.rate().scale())),
        };
        let params = [rate, capacity.to_string()];
        let source = assemble(&[fragment, OTHER_RATE], params.len());
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
        for param in &self.params {
            command.arg(param);
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

/// The rate as the script writes it in three digits, if it fits: the first two digits of the
/// microseconds in which a permit refills, and the number of zeros after them. `00` stands for 864,
/// so that quotas per day fit, which has 86,400,000,000.
fn three_digits(rate: Rate) -> Option<String> {
    let (mut digits, mut zeros) = (rate.permit(), 0);
    while zeros < 9 && digits % 10 == 0 {
        digits /= 10;
        zeros += 1;
    }
    match digits {
        _ if rate.scale() > 1 => None,
        864 => Some(format!("00{zeros}")),
        1..=99 => Some(format!("{digits:02}{zeros}")),
        _ => None,
    }
}

/// Replaces each marker (`--@ name`) of the frame by the sections of that name in the fragments,
/// and removes comments.
fn assemble(fragments: &[&str], params: usize) -> String {
    let mut script = String::new();
    FRAME.lines().for_each(|line| push_code(&mut script, line, fragments));
    script.replace("PARAMS", &params.to_string()).replace("MAX_TICKS", &MAX_TICKS.to_string())
}

fn push_code(script: &mut String, line: &str, fragments: &[&str]) {
    let line = line.trim();
    if let Some(name) = line.strip_prefix(MARKER) {
        let lines = fragments.iter().flat_map(|fragment| section(fragment, name));
        lines.for_each(|line| push_code(script, line, fragments));
    } else if !line.is_empty() && !line.starts_with("--") {
        script.push_str(line);
        script.push('\n');
    }
}

/// The lines after the marker of this name, until the next one that is not indented.
fn section<'a>(fragment: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    fragment
        .lines()
        .skip_while(move |line| line.strip_prefix(MARKER) != Some(name))
        .skip(1)
        .take_while(|line| !line.starts_with(MARKER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_rates_fit_in_three_digits_and_no_two_share_them() {
        let digits = |permit, scale| three_digits(Rate::new(permit, scale).unwrap());
        for (micros, expected) in [
            (1, "010"),
            (10, "011"),
            (99, "990"),
            (100_000, "015"),
            (36_000_000, "366"),
            (3_600_000_000, "368"),
            (1_000_000_000, "019"),
            (10_000_000_000, "109"),
            (99_000_000_000, "999"),
            (86_400_000_000, "008"),
            (864, "000"),
        ] {
            assert_eq!(digits(micros, 1).as_deref(), Some(expected), "{micros}");
            assert_eq!(digits(micros, 7), None, "{micros}");
        }
        for micros in [101, 15_625, 8_641, 100_000_000_000, 8_640_000_000_000, 1 << 52] {
            assert_eq!(digits(micros, 1), None, "{micros}");
        }
    }
}
