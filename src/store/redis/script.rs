//! The scripts, assembled once from the frame and the fragments of an algorithm.

use std::sync::LazyLock;

use crate::algorithm::{MAX_TICKS, Rate, TokenBucket};

const FRAME: &str = include_str!("../../../lua/frame.lua");
const ONE_POLICY: &str = include_str!("../../../lua/one_policy.lua");
const MANY_POLICIES: &str = include_str!("../../../lua/many_policies.lua");
/// The fragment for rates that fit in three digits, and the one for all other rates.
const SHORT_RATE: &str = include_str!("../../../lua/token_bucket.lua");
const TEXT_RATE: &str = include_str!("../../../lua/token_bucket_text.lua");
/// Included in both.
const OTHER_RATE: &str = include_str!("../../../lua/token_bucket_other.lua");
/// The number of arguments per quota.
const PARAMS: usize = 2;
/// Starts a line that names a section.
const MARKER: &str = "--@ ";

/// The scripts for all policies whose rate has the same form.
#[derive(Debug)]
pub(super) struct Scripts {
    /// For keys of one policy.
    pub(super) one: Script,
    /// For keys of several, which takes the server longer.
    pub(super) many: Script,
}

#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: String,
    pub(super) sha: String,
}

/// What a script needs to know about a quota, as arguments.
pub(super) type Params = [String; PARAMS];

static SHORT: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(SHORT_RATE));
static TEXT: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(TEXT_RATE));

impl Scripts {
    /// The scripts that decide about this bucket, and their arguments.
    pub(super) fn of(bucket: &TokenBucket) -> (&'static Self, Params) {
        let (permit, capacity) = (bucket.rate().permit(), bucket.capacity());
        let (scripts, rate) = match three_digits(bucket.rate()) {
            Some(digits) => (&*SHORT, format!("{permit}{digits}")),
            None => (&*TEXT, format!(":{permit}:{}", bucket.rate().scale())),
        };
        (scripts, [rate, capacity.to_string()])
    }

    fn new(rate: &str) -> Self {
        let script = |policies| Script::new(&[policies, rate, OTHER_RATE]);
        Self { one: script(ONE_POLICY), many: script(MANY_POLICIES) }
    }
}

impl Script {
    fn new(fragments: &[&str]) -> Self {
        let source = assemble(fragments);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
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
fn assemble(fragments: &[&str]) -> String {
    let mut script = String::new();
    FRAME.lines().for_each(|line| push_code(&mut script, line, fragments));
    script.replace("PARAMS", &PARAMS.to_string()).replace("MAX_TICKS", &MAX_TICKS.to_string())
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
