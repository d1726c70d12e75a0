//! `docs/messages.md` explains each line of the log, and each error that the crate and the server return.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The Rust files of the crate and the server, without comments and tests.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut paths, mut sources) = (vec![root.join("src"), root.join("server/src")], Vec::new());
    while let Some(path) = paths.pop() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["tests", "sim"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        sources.push((path, code.lines().filter(is_code).collect::<Vec<_>>().join("\n")));
    }
    assert!(sources.len() > 200);
    sources
}

/// The text after each call of a function or macro, from its arguments on.
fn calls<'a>(code: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let is_whole = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let found = code.match_indices(name).filter(move |(at, _)| is_whole(&code[..*at]));
    found.filter_map(|(at, name)| code[at + name.len()..].strip_prefix('('))
}

/// The string literals among the arguments of a call, as the compiler reads them.
fn literals(arguments: &str) -> Vec<String> {
    let (mut chars, mut depth, mut literals) = (arguments.chars().peekable(), 1, Vec::new());
    while depth > 0
        && let Some(char) = chars.next()
    {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            '"' => {
                let mut literal = String::new();
                while let Some(char) = chars.next_if(|char| *char != '"') {
                    match char {
                        '\\' => match chars.next().unwrap() {
                            '\n' => while chars.next_if(|char| *char == ' ').is_some() {},
                            'n' => literal.push('\n'),
                            other => literal.push(other),
                        },
                        char => literal.push(char),
                    }
                }
                chars.next();
                literals.push(literal);
            }
            _ => {}
        }
    }
    literals
}

fn page() -> String {
    fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/messages.md")).unwrap()
}

/// The texts of events on the page, which follow their level.
fn logged(page: &str) -> impl Iterator<Item = &str> {
    let lines = page.lines().filter(|line| line.starts_with(['W', 'I', 'E']));
    let lines = lines.filter_map(|line| line.split_once(": `"));
    lines.map(|(_, text)| match text.strip_prefix('`') {
        Some(text) => text.split("``").next().unwrap_or(text).trim(),
        None => text.split('`').next().unwrap_or(text),
    })
}

fn has_text(page: &str, text: &str) -> bool {
    text.lines().all(|line| page.contains(line))
}

#[test]
fn each_line_of_the_log_has_a_name_and_the_page_explains_it() {
    let (page, mut names, mut lines, mut texts) = (page(), BTreeSet::new(), 0, String::new());
    for (path, code) in sources() {
        // A literal over several lines.
        texts.extend(code.split("\\\n").map(str::trim_start));
        let of_levels = ["error!", "warn!", "info!", "event!"].map(|name| calls(&code, name));
        for arguments in of_levels.into_iter().flatten() {
            let fields = arguments.trim_start();
            let fields = fields.strip_prefix("target: \"fleetlimit\",").unwrap_or(fields);
            let event = fields.trim_start().strip_prefix("event");
            let is_first = event.is_some_and(|rest| rest.starts_with([' ', ',']));
            assert!(is_first, "{path:?}: `event` is not the first field: {arguments:.100}");
            let text = literals(arguments).pop().unwrap();
            let is_variable = ["{message}", "{MESSAGE}"].contains(&&*text);
            assert!(is_variable || has_text(&page, &text), "{path:?}: the page lacks: {text}");
            lines += 1;
        }
        let values = code.split("event =").skip(1);
        let values = values.map(|value| value.split([',', ';']).next().unwrap());
        names.extend(values.flat_map(literals));
    }
    assert!(lines > 45, "{lines} lines");
    for text in logged(&page) {
        assert!(texts.contains(text), "no longer logged: {text}");
    }
    let sections = page.lines().filter_map(|line| line.strip_prefix("#### `")?.strip_suffix('`'));
    let sections: BTreeSet<_> = sections.map(str::to_owned).collect();
    let differ: Vec<_> = names.symmetric_difference(&sections).collect();
    assert!(differ.is_empty(), "only in the code, or only on the page: {differ:?}");
}

#[test]
fn each_kind_of_error_is_on_the_page() {
    let (page, root) = (page(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let code = fs::read_to_string(root.join("src/error.rs")).unwrap();
    let (_, names) = code.split_once("fn name(self)").unwrap();
    let names = names.split("\n    }").next().unwrap().split("=> \"").skip(1);
    let names: Vec<_> = names.map(|name| name.split('"').next().unwrap()).collect();
    assert_eq!(names.len(), 8);
    for name in names {
        assert!(page.contains(&format!("\n| `{name}` | ")), "{name}");
    }
}

/// Texts that are made elsewhere, such as those of the parser of quotas, are on the page too, but this test does not
/// find them.
#[test]
fn each_error_whose_text_is_in_the_code_is_on_the_page() {
    let functions = [
        "ConfigError::new",
        "Error::new",
        "Error::caused_by",
        "with_message",
        "unavailable",
        "Rejection::bad_request",
        "Rejection::misconfigured",
        "with_advice",
        "Unchecked::new",
        "problem",
        "Status::invalid_argument",
        "Status::internal",
        "Status::unimplemented",
        "Status::out_of_range",
        "Status::unavailable",
        "Status::deadline_exceeded",
        "Status::resource_exhausted",
    ];
    // Raw strings, which `literals` does not read.
    let is_json = |text: &str| text.trim_matches('{').is_empty();
    let (page, mut count, mut missing) = (page(), 0, BTreeSet::new());
    for (path, code) in sources() {
        // Errors of quotas, which `ConfigError`s contain.
        let of_quotas: &[_] = match path.components().any(|part| part.as_os_str() == "algorithm") {
            true => &["Err", "error"],
            false => &[],
        };
        for arguments in functions.iter().chain(of_quotas).flat_map(|name| calls(&code, name)) {
            if let Some(text) = literals(arguments).first().filter(|text| !is_json(text)) {
                count += 1;
                if !has_text(&page, text) {
                    missing.insert(format!("{}: {text}", path.display()));
                }
            }
        }
    }
    assert!(count > 60, "{count}");
    let missing: Vec<_> = missing.into_iter().collect();
    assert!(missing.is_empty(), "the page lacks:\n{}", missing.join("\n"));
}
