//! Assembles a script: the frame, which is the same for all policies and says what is filled in where, the
//! form of the arguments, the form of the value, and a fragment for the algorithm of each quota.
//!
//! The result is straight-line code, once for each combination of algorithms. A general script that selected
//! the algorithm by name was measured 30% slower. The numbers of the quotas are arguments of the call. As
//! constants in the script they would save 6% of a single check, but every server would keep a script for
//! every quota that was ever used.

use super::fragment::Fragment;
use super::packed;
use super::section::{MARKER, section};
use crate::algorithm::MAX_TICKS;

const FRAME: &str = include_str!("../../../../lua/frame.lua");
const DECIDE: &str = include_str!("../../../../lua/decide.lua");
const OTHER: &str = include_str!("../../../../lua/other.lua");
/// The number of arguments per policy.
const PARAMS: usize = 2;

/// The numbers and identities of a policy, as arguments of a script.
pub(super) type Params = [Vec<u8>; PARAMS];

/// Assembles the script for these quotas. `files` have sections besides those of all scripts.
pub(super) fn assemble(files: &[&str], quotas: &[&'static Fragment]) -> String {
    let files = [files, &[DECIDE, OTHER]].concat();
    let mut assembly = Assembly { files, quotas, words: words(quotas), script: String::new() };
    FRAME.lines().for_each(|line| assembly.push(line, None));
    assembly.script
}

struct Assembly<'a> {
    files: Vec<&'a str>,
    quotas: &'a [&'static Fragment],
    words: Vec<(&'static str, String)>,
    script: String,
}

impl Assembly<'_> {
    /// Adds a line without comments. A marker is replaced by the sections that it names.
    fn push(&mut self, line: &str, quota: Option<usize>) {
        let line = line.trim();
        match line.strip_prefix(MARKER) {
            Some(name) if name.ends_with('@') && quota.is_none() => {
                (0..self.quotas.len()).for_each(|quota| self.push_sections(name, Some(quota)));
            }
            Some(name) => self.push_sections(name, quota),
            None if line.is_empty() || line.starts_with("--") => {}
            None => {
                let line = match quota {
                    Some(quota) => of_quota(line, self.quotas, quota),
                    None => line.to_owned(),
                };
                let fill_in =
                    |line: String, (word, code): &(&str, String)| line.replace(word, code);
                self.script.push_str(&self.words.iter().fold(line, fill_in));
                self.script.push('\n');
            }
        }
    }

    fn push_sections(&mut self, name: &str, quota: Option<usize>) {
        let of_quota = quota.and_then(|quota| self.quotas[quota].section(name));
        let lines: Vec<_> = match of_quota {
            Some(lines) => lines.collect(),
            None => self.files.iter().filter_map(|file| section(file, name)).flatten().collect(),
        };
        lines.into_iter().for_each(|line| self.push(line, quota));
    }
}

/// The words in capital letters, and the code that they stand for.
fn words(quotas: &[&'static Fragment]) -> Vec<(&'static str, String)> {
    let each = |text: &dyn Fn(&Fragment) -> Option<&'static str>| -> Vec<String> {
        let of_quota = |(n, fragment)| Some(of_quota(text(fragment)?, quotas, n));
        quotas.iter().copied().enumerate().filter_map(of_quota).collect()
    };
    let lines = |name: &str, separator| {
        let default = || section(DECIDE, name)?.next();
        each(&|fragment| fragment.line(name).or_else(default)).join(separator)
    };
    let same = |text, separator| each(&|_| Some(text)).join(separator);
    let locals = each(&|fragment| fragment.line("locals@"));
    let locals: String = locals.iter().map(|names| format!(", {names}")).collect();
    let first_cells = each(&|fragment| fragment.names("cells@").next());
    let numbers = lines("numbers@", ", ");
    let number_count = numbers.split(", ").count();
    let (cells, own_cells) = (Cells::new(quotas, true), Cells::new(quotas, false));
    vec![
        // And the granule.
        ("NUMBER_FORMAT", format!(">{}", "d".repeat(number_count + 1))),
        ("NUMBERS", numbers),
        (
            "CHANGED",
            match lines("ring@", ", ").rsplit(", ").next() {
                Some(ring) if own_cells.names != cells.names => {
                    let all = "pack(cell_format, now, CELLS)";
                    format!("{ring} and {all} or pack(own_format, now, OWN_CELLS)")
                }
                _ => "pack(cell_format, now, CELLS)".to_owned(),
            },
        ),
        ("OWN_FORMAT", own_cells.format),
        ("OWN_CELLS", own_cells.names),
        ("CELL_FORMAT", cells.format),
        ("CELL_BYTES", cells.bytes),
        ("CELLS", cells.names),
        ("LEVELS", [same("level@", ", "), locals].concat()),
        ("VALID", lines("valid@", " and ")),
        ("ABOVE", lines("above@", " or ")),
        ("FITS", lines("fits@", " and ")),
        (
            "TILL",
            match first_cells.as_slice() {
                [cell] => cell.clone(),
                cells => format!("math.max({})", cells.join(", ")),
            },
        ),
        ("FIRST_NAME", packed::identity_position(number_count, 0).to_string()),
        ("UNNAMED", if quotas.len() == 1 { "0" } else { "nil" }.to_owned()),
        ("COSTS", same("cost@", ", ")),
        ("ANY_COST", same("cost@ > 0", " or ")),
        ("PATTERN", format!("([~!<+*=#-]*)(%d+){};?(%d*)", ":(-?%d+)".repeat(quotas.len()))),
        ("QUOTAS", quotas.len().to_string()),
        ("PARAMS", PARAMS.to_string()),
        ("MAX_TICKS", MAX_TICKS.to_string()),
    ]
}

/// The variables of all cells, and Lua expressions for their format and their size.
struct Cells {
    names: String,
    format: String,
    bytes: String,
}

impl Cells {
    /// A ring at the end is read and written only if it is needed.
    fn new(quotas: &[&'static Fragment], has_last_ring: bool) -> Self {
        // The time comes first.
        let (mut format, mut bytes) = (vec!["'>d'".to_owned()], vec!["8".to_owned()]);
        let mut names = Vec::new();
        for (n, fragment) in quotas.iter().enumerate() {
            let count = fragment.names("cells@").count();
            names.extend(fragment.line("cells@").map(|cells| of_quota(cells, quotas, n)));
            format.push(format!("'{}'", "d".repeat(count)));
            bytes.push((8 * count).to_string());
            if let (Some(ring), Some(size)) = (fragment.line("ring@"), fragment.line("ring_bytes@"))
                && (has_last_ring || n + 1 < quotas.len())
            {
                let size = of_quota(size, quotas, n);
                names.push(of_quota(ring, quotas, n));
                format.push(format!("format('c%d', {size})"));
                bytes.push(size);
            }
        }
        // Adjacent strings are one.
        let format = format.join(" .. ").replace("' .. '", "");
        Self { names: names.join(", "), format, bytes: bytes.join(" + ") }
    }
}

/// Fills in what belongs to a quota.
fn of_quota(line: &str, quotas: &[&Fragment], quota: usize) -> String {
    let fragment = quotas[quota];
    let numbers = quotas.iter().map(|fragment| fragment.names("numbers@").count()).sum();
    let expressions =
        [("WAITING", "waiting@"), ("END", "end@"), ("SCALE", "scale@"), ("RATE", "rate@")];
    let used = expressions.into_iter().filter(|(word, _)| line.contains(word));
    let line = used.fold(line.to_owned(), |line, (word, name)| {
        let of_quota = fragment.line(name).or_else(|| section(DECIDE, name)?.next());
        line.replace(word, of_quota.unwrap_or_default())
    });
    line.replace("PRICE", fragment.line("price@").unwrap_or_default())
        .replace("IDENTITY", &packed::identity_position(numbers, quota).to_string())
        .replace("SIZE_AT", &packed::size_position(quotas, quota).to_string())
        .replace("TAG", &fragment.tag.to_string())
        .replace('@', &(quota + 1).to_string())
}
