//! The links between the pages of the repository lead somewhere. `package` checks that the package has what its
//! pages link, and `src/guide.rs` the links to its sections.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the pages by their paths: the Markdown files beside README.md, and those below `docs`.
fn pages() -> BTreeMap<String, String> {
    let (mut pages, mut directories) = (BTreeMap::new(), vec!["docs".to_owned()]);
    let mut add = |path: String| {
        let text = fs::read_to_string(Path::new(ROOT).join(&path)).unwrap();
        pages.insert(path, prose(&text));
    };
    for name in names("") {
        if name.ends_with(".md") {
            add(name);
        }
    }
    while let Some(directory) = directories.pop() {
        for name in names(&directory) {
            let path = format!("{directory}/{name}");
            if Path::new(ROOT).join(&path).is_dir() {
                directories.push(path);
            } else if name.ends_with(".md") {
                add(path);
            }
        }
    }
    pages
}

fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(ROOT).join(directory)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the lines of a page outside of blocks of code.
fn prose(text: &str) -> String {
    let (mut is_code, mut prose) = (false, String::new());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// Returns the destinations of a page's links: those in the text, and those of definitions.
fn links(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    inline.chain(definitions(text).into_values()).collect()
}

/// Returns the destinations of lines such as `[label]: destination`, by their labels.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
}

fn is_relative(link: &str) -> bool {
    !link.contains(':')
}

/// Returns the anchors of a page: those of its headings, by the rule of GitHub, and `<a id="...">`.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in text.lines() {
        let Some((_, heading)) = line.split_once("# ").filter(|_| line.starts_with('#')) else {
            let ids = line.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
            anchors.extend(ids.map(String::from));
            continue;
        };
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let slug = heading.trim().to_lowercase().chars().filter(kept).collect::<String>();
        let slug = slug.replace(' ', "-");
        let again = (1..).map(|n| format!("{slug}-{n}"));
        let mut candidates = std::iter::once(slug.clone()).chain(again);
        anchors.extend(candidates.find(|candidate| !anchors.contains(candidate)));
    }
    anchors
}

/// Returns the path of a destination without its anchor. `None` if it is outside of the repository.
pub(crate) fn resolved(page: &str, link: &str) -> Option<String> {
    if link.is_empty() {
        return Some(page.to_owned());
    }
    let mut parts: Vec<_> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()?),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[test]
fn each_relative_link_leads_to_a_file_and_a_heading_that_exist() {
    let (pages, mut count, mut broken) = (pages(), 0, Vec::new());
    for (page, text) in &pages {
        for link in links(text).into_iter().filter(|link| is_relative(link)) {
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = resolved(page, path).filter(|path| Path::new(ROOT).join(path).exists());
            let has_anchor = |path: &String| {
                let text = pages.get(path).map_or("", String::as_str);
                anchor.is_empty() || anchors(text).iter().any(|other| other == anchor)
            };
            if !path.as_ref().is_some_and(has_anchor) {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(count > 50, "{count}");
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

/// The crate docs are the README, on a page where its relative links would lead nowhere. The definitions before
/// it in `lib.rs` take precedence.
#[test]
fn each_relative_link_of_the_readme_has_another_destination_in_the_crate_docs() {
    let pages = pages();
    let readme = &pages["README.md"];
    let source = fs::read_to_string(Path::new(ROOT).join("src/lib.rs")).unwrap();
    let source: Vec<_> = source.lines().filter_map(|line| line.strip_prefix("//! ")).collect();
    let (source, mut wrong) = (source.join("\n"), Vec::new());
    let mut others = definitions(&source);
    for link in readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        if is_relative(link) && !link.starts_with('#') {
            wrong.push(format!("README.md: ({link}) needs a definition, such as [label]: {link}"));
        }
    }
    for (label, link) in definitions(readme) {
        let path = link.split('#').next().unwrap();
        let expected = format!("https://docs.rs/crate/fleetlimit/latest/source/{path}");
        let is_right = match others.remove(label) {
            None => !is_relative(link),
            Some(other) if other.starts_with("crate::guide") => path == "src/guide.rs",
            // Sources on docs.rs have no headings.
            Some(other) => other == expected,
        };
        if !is_right {
            wrong.push(format!("src/lib.rs: [{label}], for {link}"));
        }
    }
    wrong.extend(others.keys().map(|label| format!("src/lib.rs: [{label}] is unused")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
