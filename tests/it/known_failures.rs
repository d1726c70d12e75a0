//! Each known failure of rate limiters has a test.

use std::fs;
use std::path::Path;

/// All Rust files below these directories of the package.
pub(crate) fn sources(directories: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<_> = directories.iter().map(|name| root.join(name)).collect();
    let mut text = String::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}

#[test]
fn each_known_failure_has_a_test() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/known-failures.md");
    let document = fs::read_to_string(path).unwrap();
    let rows: Vec<_> = document.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert_eq!(rows.len(), 32);
    let sources = sources(&["src", "tests", "server/tests"]);
    for row in rows {
        let tests = row.split(" | ").nth(2).unwrap().trim_end_matches(" |");
        for test in tests.split(", ").map(|test| test.trim_matches('`')) {
            assert!(sources.contains(&format!("fn {test}(")), "there is no test {test}");
        }
    }
}
