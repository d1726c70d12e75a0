//! The floors of the house: which part of the source may name what. The tests of a file may name
//! all.

use std::fs;
use std::path::{Path, PathBuf};

const REDIS: &[&str] = &["redis::", "deadpool", "RedisStore"];
const HTTP: &[&str] = &["http::", "axum", "tonic", "tower_"];
const EDGE: &[&str] = &["KeyResolver", "RateLimit", "Resolution", "resolve::", "layer::"];

/// The code of the files below a directory of the source: without comments and tests.
fn code(directory: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(directory);
    let (mut directories, mut files) = (vec![root], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap().lines();
                let code = code.filter(|line| !line.trim_start().starts_with("//"));
                files.push((path, code.collect::<Vec<_>>().join("\n")));
            }
        }
    }
    assert!(!files.is_empty());
    files
}

fn assert_absent(directory: &str, names: &[&[&str]], except: impl Fn(&Path) -> bool) {
    for (path, code) in code(directory) {
        for name in names.iter().copied().flatten().filter(|_| !except(&path)) {
            assert!(!code.contains(name), "{} names {name}", path.display());
        }
    }
}

#[test]
fn the_edge_does_not_know_redis() {
    assert_absent("layer", &[REDIS], |_| false);
    assert_absent("resolve", &[REDIS], |_| false);
}

#[test]
fn the_limiter_knows_neither_http_nor_redis() {
    assert_absent("limiter", &[REDIS, HTTP, EDGE], |_| false);
}

#[test]
fn of_the_stores_only_redis_knows_redis_and_none_knows_who_asks() {
    let is_redis = |path: &Path| path.components().any(|part| part.as_os_str() == "redis");
    let is_index = |path: &Path| path.ends_with("store/mod.rs");
    assert_absent("store", &[REDIS], |path| is_redis(path) || is_index(path));
    assert_absent("store", &[HTTP, EDGE, &["Limiter", "FailureMode"]], |_| false);
}

#[test]
fn the_algorithms_do_no_io_and_read_no_clock() {
    let impure = &["tokio", "std::time::Instant", "Instant::", "SystemTime", "async ", "store::"];
    assert_absent("algorithm", &[REDIS, HTTP, EDGE, impure], |_| false);
}
