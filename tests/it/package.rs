//! The packages that are published have what their pages show and link, and nothing that only a clone needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::links::resolved;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The published packages and their directories.
const PACKAGES: [(&str, &str); 4] = [
    ("fleetlimit", ""),
    ("fleetlimit-plot", "plot/"),
    ("fleetlimit-simulate", "simulate/"),
    ("fleetlimit-server", "server/"),
];

/// Written by Cargo.
const GENERATED: [&str; 4] =
    [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml", "Cargo.toml.orig"];

/// Returns the files of a package, except those that Cargo writes, as paths in the repository.
fn files(package: &str, directory: &str) -> BTreeSet<String> {
    let arguments = ["package", "--list", "--locked", "--offline", "--allow-dirty", "--package"];
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(arguments).arg(package).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).unwrap();
    let files = list.lines().filter(|name| !GENERATED.contains(name));
    files.map(|name| format!("{directory}{name}")).collect()
}

fn published() -> BTreeSet<String> {
    PACKAGES.iter().flat_map(|(package, directory)| files(package, directory)).collect()
}

/// Returns the files of the repository that a page, or the docs in a source, link or show.
fn targets(page: &str, text: &str) -> Vec<String> {
    let until_end = |text: &str| {
        let end = text.find([')', ' ', '"', '>', '`', '#']).unwrap_or(text.len());
        text[..end].to_owned()
    };
    let after = |line: &str, start: &str| {
        line.match_indices(start)
            .map(|(at, _)| until_end(&line[at + start.len()..]))
            .collect::<Vec<_>>()
    };
    let mut targets = Vec::new();
    for line in text.lines() {
        targets.extend(after(line, "https://docs.rs/crate/fleetlimit/latest/source/"));
        if !page.ends_with(".md") {
            continue;
        }
        let mut links = after(line, "](");
        links.extend(after(line, "src=\""));
        if let Some((_, target)) = line.split_once("]: ").filter(|_| line.starts_with('[')) {
            links.push(until_end(target));
        }
        let links = links.iter().filter(|link| !link.is_empty() && !link.contains(':'));
        let path = |link: &String| resolved(page, link);
        targets.extend(links.map(|link| path(link).unwrap_or_else(|| panic!("{page} has {link}"))));
    }
    targets
}

#[test]
fn no_page_of_a_package_shows_or_links_a_file_that_is_not_published() {
    let published = published();
    let is_published = |target: &String| {
        published.contains(target)
            || published.iter().any(|name| name.starts_with(&format!("{target}/")))
    };
    let (mut count, mut missing) = (0, Vec::new());
    for page in &published {
        let Ok(text) = fs::read_to_string(Path::new(ROOT).join(page)) else { continue };
        for target in targets(page, &text) {
            count += 1;
            if !is_published(&target) {
                missing.push(format!("{page} has {target}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(count > 30, "{count}");
}

#[test]
fn a_package_has_no_tests_and_benchmarks_and_no_file_of_its_docs_is_unused() {
    let published = published();
    let places: BTreeSet<_> =
        published.iter().map(|name| name.split_once('/').map_or("", |(place, _)| place)).collect();
    let expected = ["", "docs", "examples", "lua", "plot", "server", "simulate", "src"];
    assert_eq!(places, BTreeSet::from(expected));
    for (_, directory) in PACKAGES {
        for place in ["tests", "benches", "target"] {
            let place = format!("{directory}{place}/");
            assert!(!published.iter().any(|name| name.starts_with(&place)), "{place}");
        }
        for name in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            assert!(published.contains(&format!("{directory}{name}")), "{directory}{name}");
        }
    }
    let texts: Vec<_> = published
        .iter()
        .map(|name| {
            let bytes = fs::read(Path::new(ROOT).join(name)).unwrap();
            (name, String::from_utf8_lossy(&bytes).into_owned())
        })
        .collect();
    for page in published.iter().filter(|name| name.starts_with("docs/")) {
        let name = page.rsplit('/').next().unwrap();
        let is_named = texts.iter().any(|(other, text)| *other != page && text.contains(name));
        assert!(is_named, "nothing names {page}");
    }
}

/// Without a version, the dependency would be published with any. `fleetlimit::internal` and the API of the parts of
/// the server may change in any version, so the server needs exactly its own.
#[test]
fn the_packages_depend_on_the_versions_that_they_are_published_with() {
    let manifest = |directory: &str| -> toml::Table {
        let path = Path::new(ROOT).join(directory).join("Cargo.toml");
        fs::read_to_string(path).unwrap().parse().unwrap()
    };
    let version =
        |manifest: &toml::Table| manifest["package"]["version"].as_str().unwrap().to_owned();
    let own = version(&manifest(""));
    for (package, directory) in PACKAGES {
        let manifest = manifest(directory);
        assert_eq!(version(&manifest), own, "{package}");
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        for (name, dependency) in dependencies.into_iter().flatten() {
            if !PACKAGES.iter().any(|(package, _)| package == name) {
                continue;
            }
            let required = dependency["version"].as_str().unwrap();
            let is_exact = required.starts_with('=');
            assert_eq!(required.trim_start_matches('='), own, "{package} needs {name}");
            assert!(is_exact || (package, name.as_str()) == ("fleetlimit-simulate", "fleetlimit"));
        }
    }
}

#[test]
fn the_readme_has_each_feature_and_the_oldest_rust_of_the_manifests() {
    let read = |path: &str| fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let readme = read("README.md");
    let (_, table) = readme.split_once("\n## Features\n").unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let documented: BTreeSet<_> =
        rows.map(|(name, rest)| (name, rest.starts_with("yes"))).collect();
    let features = manifest["features"].as_table().unwrap();
    let defaults = features["default"].as_array().unwrap();
    let is_default = |name: &str| defaults.iter().any(|default| default.as_str() == Some(name));
    let names = features.keys().map(String::as_str).filter(|name| *name != "default");
    assert_eq!(documented, names.map(|name| (name, is_default(name))).collect());
    for directory in ["", "server/"] {
        let manifest: toml::Table = read(&format!("{directory}Cargo.toml")).parse().unwrap();
        let oldest = manifest["package"]["rust-version"].as_str().unwrap();
        let is_named =
            readme.contains(&format!("Rust {oldest}")) || readme.contains(&format!("and {oldest}"));
        assert!(is_named, "{directory} needs Rust {oldest}");
    }
}
