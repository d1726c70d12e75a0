//! Assembles a script from `lua/frame.lua`, which says what is filled in where.

use super::fragment::Fragment;
use super::packed;
use crate::algorithm::MAX_TICKS;

const FRAME: &str = include_str!("../../../lua/frame.lua");
const DECIDE: &str = include_str!("../../../lua/decide.lua");
const OTHER: &str = include_str!("../../../lua/other.lua");
/// Starts a line that names a section. A section whose name ends with `@` is there once for each quota.
const MARKER: &str = "--@ ";
/// The number of arguments per policy.
pub(super) const PARAMS: usize = 2;

/// `files` have sections besides those of all scripts.
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
    let join = |text: &dyn Fn(&Fragment) -> String, separator| {
        let of_quota = |n: usize| of_quota(&text(quotas[n]), quotas, n);
        (0..quotas.len()).map(of_quota).collect::<Vec<_>>().join(separator)
    };
    let line = |fragment: &Fragment, name| {
        let default = || section(DECIDE, name)?.next();
        fragment.line(name).or_else(default).unwrap_or_default().to_owned()
    };
    let lines = |name, separator| join(&|fragment| line(fragment, name), separator);
    let each = |text: &str, separator| join(&|_| text.to_owned(), separator);
    let first_cell = |fragment: &Fragment| fragment.names("cells@").next().unwrap_or("").to_owned();
    let doubles = |names: &str| "d".repeat(names.split(", ").count());
    let (numbers, cells) = (lines("numbers@", ", "), lines("cells@", ", "));
    vec![
        ("LEVELS", each("level@", ", ")),
        // And the granule.
        ("NUMBER_FORMAT", format!(">{}d", doubles(&numbers))),
        ("CELL_FORMAT", format!(">{}", doubles(&cells))),
        ("CELL_BYTES", (8 * doubles(&cells).len()).to_string()),
        ("NUMBERS", numbers),
        ("CELLS", cells),
        ("VALID", lines("valid@", " and ")),
        ("ABOVE", lines("above@", " or ")),
        (
            "TILL",
            match quotas {
                [quota] => of_quota(&first_cell(quota), quotas, 0),
                _ => format!("math.max({})", join(&first_cell, ", ")),
            },
        ),
        ("FITS", lines("fits@", " and ")),
        ("COSTS", each("cost@", ", ")),
        ("ANY_COST", each("cost@ > 0", " or ")),
        ("PATTERN", format!("(%d+){}", ":(%d+)".repeat(quotas.len()))),
        ("QUOTAS", quotas.len().to_string()),
        ("PARAMS", PARAMS.to_string()),
        ("MAX_TICKS", MAX_TICKS.to_string()),
    ]
}

/// Fills in what belongs to a quota.
fn of_quota(line: &str, quotas: &[&Fragment], quota: usize) -> String {
    let fragment = quotas[quota];
    let numbers = quotas.iter().map(|fragment| fragment.names("numbers@").count()).sum();
    line.replace("PRICE", fragment.line("price@").unwrap_or_default())
        .replace("IDENTITY", &packed::identity_position(numbers, quota).to_string())
        .replace("TAG", &fragment.tag.to_string())
        .replace('@', &(quota + 1).to_string())
}

/// The lines after the marker of this name, until the next one that is not indented.
pub(super) fn section<'a, 'b>(
    file: &'a str,
    name: &'b str,
) -> Option<impl Iterator<Item = &'a str> + use<'a, 'b>> {
    let mut lines = file.lines();
    lines.find(|line| line.strip_prefix(MARKER) == Some(name))?;
    Some(lines.take_while(|line| !line.starts_with(MARKER)))
}
