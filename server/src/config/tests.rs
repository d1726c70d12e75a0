//! `docs/server/settings.md` has all settings, with their defaults and variables.

use std::collections::{BTreeSet, HashSet};
use std::iter;
use std::path::Path;

use clap::{Args, Command, FromArgMatches};
use serde_json::Value;

use super::document::Document;
use super::overrides::SettingsWriter;
use super::places::Places;
use super::{Errors, Overrides};
use crate::settings::Settings;

const PAGE: &str = include_str!("../../../docs/server/settings.md");

/// The defaults of settings that the library sets, as the page writes them, and the code that sets them.
const OF_THE_LIBRARY: [(&str, &str, &str, &str); 7] = [
    ("store.key_prefix", "`fleetlimit`", STORE, "key_prefix: \"fleetlimit\".into(),"),
    ("store.instances", "`1`", STORE, "instances: 1,"),
    ("store.connections", "`1`", CONNECTIONS, "let count = NonZeroUsize::MIN;"),
    (
        "store.max_connection_age",
        "`5m`",
        CONNECTIONS,
        "MAX_AGE: Duration = Duration::from_secs(300);",
    ),
    ("store.keepalive", "`10s`", CONNECTIONS, "KEEPALIVE: Duration = Duration::from_secs(10);"),
    ("store.max_keys", MAX_KEYS, STORE, "LOCAL_KEYS: NonZeroUsize = NonZeroUsize::new(100_000)"),
    (
        "store.max_keys",
        MAX_KEYS,
        MEMORY,
        "DEFAULT_KEYS: NonZeroUsize = NonZeroUsize::new(1_000_000)",
    ),
];
const MAX_KEYS: &str = "`1000000` in memory, `100000` with Redis";
const STORE: &str = include_str!("../../../src/store/redis/redis_store.rs");
const CONNECTIONS: &str = include_str!("../../../src/store/redis/connection/settings.rs");
const MEMORY: &str = include_str!("../../../src/store/memory.rs");

/// The name, the default and the variables of each setting on the page.
fn rows() -> Vec<[&'static str; 3]> {
    let tables = PAGE.split("| setting | default | variable | |\n").skip(1);
    let rows = tables.flat_map(|table| table.lines().skip(1).take_while(|line| !line.is_empty()));
    let row = |row: &'static str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let ["", setting, default, variables, _, ""] = cells[..] else { panic!("{row}") };
        [setting.trim_matches('`'), default, variables]
    };
    rows.map(row).collect()
}

fn json(settings: &Settings) -> Value {
    serde_json::to_value(settings).unwrap()
}

fn at<'a>(settings: &'a Value, name: &str) -> &'a Value {
    settings.pointer(&format!("/{}", name.replace('.', "/"))).unwrap_or_else(|| panic!("{name}"))
}

fn names(settings: &Value) -> BTreeSet<String> {
    let sections = settings.as_object().unwrap().iter();
    let names = sections.flat_map(|(section, value)| match value.as_object() {
        Some(fields) if !fields.is_empty() => {
            fields.keys().map(|field| format!("{section}.{field}")).collect()
        }
        _ => vec![section.clone()],
    });
    names.collect()
}

#[test]
fn each_setting_is_documented_with_its_default() {
    let defaults = json(&Settings::default());
    let documented = rows().iter().map(|[setting, ..]| (*setting).to_owned()).collect();
    assert_eq!(names(&defaults), documented);
    for [setting, default, _] in rows() {
        let expected = at(&defaults, setting);
        if expected.is_null() {
            let mut of_library = OF_THE_LIBRARY.iter().filter(|(name, ..)| *name == setting);
            let says = of_library.next().map_or("none", |(_, says, ..)| says);
            let says = match setting {
                "resource_limits.connections_per_address" => "half of `connections`",
                _ => says,
            };
            assert_eq!(default, says, "{setting}");
            continue;
        }
        let value = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')).unwrap();
        let depth = setting.matches('.').count();
        let text = format!("{}: {value}{}", setting.replace('.', ": { "), " }".repeat(depth));
        let Document { value, errors, .. } = Document::<Settings>::parse(&text);
        assert!(errors.is_empty(), "{text}: {errors:?}");
        assert_eq!(at(&json(&value.unwrap()), setting), expected, "{text}");
    }
    for (setting, _, source, code) in OF_THE_LIBRARY {
        assert!(source.contains(code), "{setting}: {code}");
    }
}

#[test]
fn each_variable_is_documented_with_the_setting_that_it_overrides() {
    let overrides = Overrides::augment_args(Command::new("overrides"));
    let variable = |arg: &clap::Arg| arg.get_env().unwrap().to_str().unwrap().to_owned();
    let mut undocumented: HashSet<_> = overrides.get_arguments().map(variable).collect();
    let defaults = json(&Settings::default());
    for [setting, _, variables] in rows() {
        let variables: Vec<_> = variables
            .split(", ")
            .map(|name| name.trim_matches('`'))
            .filter(|name| !name.is_empty())
            .collect();
        if variables.is_empty() {
            continue;
        }
        let options = variables.iter().map(|name| {
            undocumented.remove(*name);
            let arg = overrides.get_arguments().find(|arg| variable(arg) == *name);
            arg.unwrap_or_else(|| panic!("there is no variable {name}")).get_long().unwrap()
        });
        let options: Vec<_> = options.collect();
        let overrides_with = |value: &&str| {
            let options = options.iter().map(|option| format!("--{option}={value}"));
            let args = iter::once("overrides".to_owned()).chain(options);
            let matches = overrides.clone().try_get_matches_from(args).unwrap();
            let mut settings = Settings::default();
            let (mut places, mut errors) = (Places::new(Path::new("")), Errors::default());
            let overrides = Overrides::from_arg_matches(&matches).unwrap();
            let (places, errors) = (&mut places, &mut errors);
            let incomplete = &mut HashSet::new();
            overrides.apply(&mut settings, &mut SettingsWriter { places, errors, incomplete });
            at(&json(&settings), setting) != at(&defaults, setting)
        };
        let values = ["127.0.0.1:1", "redis://a", "closed", "7s", "7"];
        assert!(values.iter().any(overrides_with), "{variables:?} do not override {setting}");
    }
    assert!(undocumented.is_empty(), "{undocumented:?}");
}
