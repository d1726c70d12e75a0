//! The fields of the settings that hold secrets, and their values.

use serde_json::Value;

use super::lenient::Names;
use crate::secret::RedisUrl;

/// Fields whose value is a secret, or may be one by mistake: the password instead of the file that has it.
const SECRETS: [&str; 10] = [
    "admin.token",
    "holds.secret",
    "http.token",
    "store.redis",
    "store.cluster",
    "store.sentinel.urls",
    "store.sentinel.primary",
    "store.sentinel.password_file",
    "store.password_file",
    "xds.headers",
];
/// Fields for the path of a key, which may have the key itself.
const KEYS: [&str; 3] = ["tls.key", "store.tls.client.key", "xds.tls.client.key"];
/// A shorter text is a part of too many words to be hidden.
const SHORTEST: usize = 4;

/// Returns true if a field holds a secret, is in one that does, or has one in it.
pub(super) fn may_hold(names: &Names) -> bool {
    let path: Vec<_> = names.iter().map_while(Option::as_ref).map(|name| &*name.value).collect();
    SECRETS.iter().chain(&KEYS).any(|secret| {
        let mut pairs = secret.split('.').zip(&path);
        pairs.all(|(name, of_path)| name == *of_path)
    })
}

/// Returns true if messages must not show the path in this field.
pub(super) fn is_path_hidden(setting: &str) -> bool {
    SECRETS.contains(&setting) || KEYS.contains(&setting)
}

/// Returns the secrets in settings, as texts or in other forms. An alias can repeat them in any other field.
pub(super) fn secrets_in(document: &Value) -> Vec<String> {
    let mut secrets = Vec::new();
    for setting in SECRETS {
        let value = setting.split('.').try_fold(document, |value, name| value.get(name));
        value.into_iter().for_each(|value| add_texts(value, &mut secrets));
    }
    // Those that contain others first.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
}

fn add_texts(value: &Value, texts: &mut Vec<String>) {
    let mut add = |text: &str| {
        let url = RedisUrl::try_from(text.to_owned());
        let has_no_secret = url.is_ok_and(|url| url.to_string() == text);
        if text.len() >= SHORTEST && !has_no_secret {
            // As `{:?}` has it, too.
            texts.extend([text.to_owned(), text.escape_debug().to_string()]);
        }
    };
    match value {
        Value::String(text) => add(text),
        Value::Number(number) => add(&number.to_string()),
        Value::Array(values) => values.iter().for_each(|value| add_texts(value, texts)),
        Value::Object(fields) => {
            fields.keys().for_each(|name| add(name));
            fields.values().for_each(|value| add_texts(value, texts));
        }
        Value::Null | Value::Bool(_) => {}
    }
}
