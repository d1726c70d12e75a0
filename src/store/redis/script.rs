//! The scripts, assembled once from the frame and the fragments of an algorithm.

use std::sync::LazyLock;

use super::value;
use crate::algorithm::{Limits, MAX_TICKS};

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
    /// The scripts that decide about these quotas, and their arguments.
    pub(super) fn of(limits: &Limits) -> (&'static Self, Params) {
        let bucket = limits.bucket();
        let (permit, capacity) = (bucket.rate().permit(), bucket.capacity());
        let (scripts, rate) = match value::three_digits(bucket.rate()) {
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
