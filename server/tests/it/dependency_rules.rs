//! Dependencies point downwards: no module of the server, no file in one of its folders, and no file of
//! `fleetlimit-simulate` depends on one that depends on it. `mod.rs` stands for its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules, each with the names that it uses.
type Modules = BTreeMap<String, BTreeSet<String>>;

/// Returns the code of a file, or of all files below a folder, without comments and tests.
fn code(path: &Path) -> String {
    if path.is_dir() {
        return paths(path).iter().map(|path| code(path)).collect();
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap().lines();
    code.filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns the modules of a folder. They name each other after `prefix`.
fn modules(folder: &Path, prefix: &str) -> Modules {
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let paths = paths(folder);
    let modules =
        paths.iter().filter(|path| !["main", "lib", "mod", "tests"].contains(&&*name(path)));
    let used = |path: &Path| {
        let code = code(path);
        let parts = code.split(prefix).skip(1);
        let names = parts.map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'));
        names.filter_map(|mut names| names.next().map(str::to_owned)).collect()
    };
    modules.map(|path| (name(path), used(path))).collect()
}

/// Returns what is left without the modules that use nothing, or only those that have been removed before.
fn circles(mut modules: Modules) -> Modules {
    loop {
        let names: BTreeSet<_> = modules.keys().cloned().collect();
        for (name, used) in &mut modules {
            used.retain(|used| used != name && names.contains(used));
        }
        modules.retain(|_, used| !used.is_empty());
        if modules.len() == names.len() {
            return modules;
        }
    }
}

#[test]
fn no_module_depends_on_one_that_depends_on_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (server, simulate) = (root.join("src"), root.join("../simulate/src"));
    let mut folders = vec![(server.clone(), "crate::"), (simulate, "crate::")];
    let of_server = paths(&server).into_iter().filter(|path| path.is_dir());
    folders.extend(of_server.map(|folder| (folder, "super::")));
    let mut uses = 0;
    for (folder, prefix) in folders {
        let modules = modules(&folder, prefix);
        uses += modules.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(circles(modules), Modules::new(), "in {}", folder.display());
    }
    assert!(uses > 100, "only {uses} are found");
}
