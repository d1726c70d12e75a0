//! The layers of the design: which names each directory of the source must not contain. Unit tests
//! may contain any name.

use std::fs;
use std::path::{Path, PathBuf};

const REDIS: &[&str] = &["redis::", "deadpool", "RedisStore"];
const HTTP: &[&str] = &["http::", "axum", "tonic", "tower_"];
const MIDDLEWARE: &[&str] = &["KeyResolver", "RateLimit", "Resolution", "resolve::", "layer::"];

/// Returns the code of each file below a directory of the source, without comments and tests.
fn code(directory: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(directory);
    let (mut directories, mut files) = (vec![root], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let code = code_of(&path);
                files.push((path, code));
            }
        }
    }
    assert!(!files.is_empty());
    files
}

fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap().lines();
    let code = code.filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

fn assert_absent(directory: &str, names: &[&[&str]], except: impl Fn(&Path) -> bool) {
    for (path, code) in code(directory) {
        for name in names.iter().copied().flatten().filter(|_| !except(&path)) {
            assert!(!code.contains(name), "{} contains `{name}`", path.display());
        }
    }
}

#[test]
fn the_middleware_does_not_name_redis() {
    assert_absent("layer", &[REDIS], |_| false);
    assert_absent("resolve", &[REDIS], |_| false);
}

#[test]
fn the_limiter_names_neither_http_nor_redis() {
    assert_absent("limiter", &[REDIS, HTTP, MIDDLEWARE], |_| false);
}

#[test]
fn only_the_redis_store_names_redis_and_no_store_names_the_limiter_or_the_middleware() {
    let is_redis = |path: &Path| path.components().any(|part| part.as_os_str() == "redis");
    let is_index = |path: &Path| path.ends_with("store/mod.rs");
    assert_absent("store", &[REDIS], |path| is_redis(path) || is_index(path));
    assert_absent("store", &[HTTP, MIDDLEWARE, &["Limiter", "FailureMode"]], |_| false);
}

#[test]
fn the_algorithms_do_no_io_and_read_no_clock() {
    let impure = &["tokio", "std::time::Instant", "Instant::", "SystemTime", "async ", "store::"];
    assert_absent("algorithm", &[REDIS, HTTP, MIDDLEWARE, impure], |_| false);
}

/// The folders of the Redis store, each with those that it must not name: itself and those before it.
#[test]
fn the_folders_of_the_redis_store_depend_downwards_only() {
    let above: [(&str, &[&str]); 5] = [
        ("fleet", &[]),
        ("queue", &["fleet"]),
        ("cluster", &["fleet", "queue"]),
        ("connection", &["fleet", "queue", "cluster", "script"]),
        ("script", &["fleet", "queue", "cluster", "connection"]),
    ];
    let all: Vec<_> = above.iter().map(|(folder, _)| *folder).collect();
    for (folder, above) in above {
        for (path, code) in code(&format!("store/redis/{folder}")) {
            assert!(!code.contains("store::redis::{"), "{}: one import a folder", path.display());
            for name in redis_modules(&code) {
                assert!(!above.contains(&name), "{} depends on {name}", path.display());
                assert!(name != "RedisStore", "{} depends on the store", path.display());
            }
        }
    }
    for (path, code) in code("store/redis") {
        let is_beside = path.parent().is_some_and(|parent| parent.ends_with("store/redis"));
        let top = ["mod.rs", "redis_store.rs", "backend.rs", "pool.rs", "store_url.rs"];
        let is_top = top.iter().any(|file| path.ends_with(file));
        if is_beside && !is_top {
            let folders = redis_modules(&code).filter(|name| all.contains(name)).count();
            assert_eq!(folders, 0, "{} depends on a folder", path.display());
        }
    }
}

/// Returns the names that code uses from the Redis store.
fn redis_modules(code: &str) -> impl Iterator<Item = &str> {
    let names = code.split("store::redis::").skip(1);
    names.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
}
#[test]
fn the_value_types_name_nothing_that_uses_them() {
    let above: &[&str] =
        &["algorithm::", "store::", "limiter::", "Limiter", "MemoryStore", "tokio"];
    let files = [
        "address",
        "calendar",
        "canonical",
        "charge",
        "costs",
        "decision",
        "error",
        "key",
        "policy",
        "policy_set",
        "quota",
        "quota_serde",
        "quota_text",
        "verdict",
    ];
    for file in files {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file).with_extension("rs");
        let code = code_of(&path);
        for name in [above, HTTP, MIDDLEWARE].into_iter().flatten() {
            assert!(!code.contains(name), "{file} contains `{name}`");
        }
    }
}
