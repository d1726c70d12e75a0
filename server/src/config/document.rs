//! A YAML document, and everything that is wrong with it.

use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{DefaultMessageFormatter, Error, Location, MessageFormatter, Options};

use super::lenient::{Lenient, Names, Pass};
use super::secrets;
use crate::secret::{excerpt, excerpt_of_field};

/// Some expect this section under the name `limits`.
const RESOURCE_LIMITS: &str = "resource_limits";
/// Each error costs a pass, so a large document with very many errors is not looked at to the end.
const MAX_BYTES_READ: usize = 1 << 28;

#[derive(Debug)]
pub(super) struct Document<T> {
    /// The document without the entries that are wrong. `None` if the document as a whole is wrong.
    pub(super) value: Option<T>,
    pub(super) errors: Vec<(Location, String)>,
    /// The places of fields, by names such as `store.redis`. Without those in lists.
    pub(super) fields: HashMap<String, Location>,
    /// The outermost fields in which something is wrong.
    pub(super) incomplete: HashSet<String>,
}

impl<T: DeserializeOwned> Document<T> {
    /// Serde stops at the first error. So the mapping entry or list element with the error is left out, and
    /// the document deserialized again, until nothing is wrong with the rest.
    pub(super) fn parse(text: &str) -> Self {
        let (mut pass, mut errors) = (Pass::default(), Vec::new());
        let value = loop {
            pass.restart();
            let options = serde_saphyr::options! {
                with_snippet: false,
                // Structs reject duplicates themselves, in a way that the other entries survive.
                duplicate_keys: DuplicateKeyPolicy::PassThrough,
            };
            let error = match deserialize(text, options, &mut pass) {
                Ok(value) => break Some(value),
                Err(error) => error,
            };
            let (path, names) = pass.failed();
            if !is_consequence(&error, &path, &pass) {
                let error = (place(&error, &names), message(&error, &names));
                // An error of the syntax is met again when the entry is left out.
                if errors.last() != Some(&error) {
                    errors.push(error);
                }
            }
            if errors.len() * text.len() > MAX_BYTES_READ {
                let last = errors.last().map_or(Location::UNKNOWN, |(at, _)| *at);
                errors.push((last, "there may be more errors after these".to_owned()));
                break None;
            }
            let is_whole_document = path.is_empty();
            if is_whole_document || pass.skipped.insert(path, names).is_some() {
                break None;
            }
        };
        let sections = pass.skipped.into_values().filter_map(|names| names.into_iter().next()?);
        let incomplete = sections.map(|section| section.value).collect();
        Self { value, errors, fields: pass.fields, incomplete }
    }
}

fn deserialize<T: DeserializeOwned>(
    text: &str,
    options: Options,
    pass: &mut Pass,
) -> Result<T, Error> {
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |document| {
        T::deserialize(Lenient::new(document, pass))
    })
}

/// Returns true if a field is missing in an entry because it has been left out.
fn is_consequence(error: &Error, entry: &[usize], pass: &Pass) -> bool {
    let Error::SerdeMissingField { field, .. } = error else { return false };
    pass.skipped.iter().any(|(path, names)| {
        let is_in_entry = path.split_last().is_some_and(|(_, path)| path == entry);
        is_in_entry && matches!(names.last(), Some(Some(name)) if name.value == *field)
    })
}

fn place(error: &Error, names: &Names) -> Location {
    let at = error.location().unwrap_or(Location::UNKNOWN);
    let order = |at: &Location| (at.line(), at.column());
    match names.last() {
        // Some errors have only the place of the mapping around the entry.
        Some(Some(name)) => std::cmp::max_by_key(at, name.referenced, order),
        _ => at,
    }
}

fn message(error: &Error, names: &Names) -> String {
    let mut message = text(error, names);
    let is_policy = matches!(&names[..], [Some(section), None] if section.value == "policies");
    if is_policy && message == "expected mapping start" {
        message = "expected a mapping: quotas are given by name, such as `{ second: 10/s }`".into();
    } else if message.ends_with("expected a duration") {
        message += ", such as 50ms";
    }
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    message.chars().map(printable).collect()
}

/// The message with excerpts of what the document has there, and without the values of secrets.
fn text(error: &Error, names: &Names) -> String {
    match error {
        Error::AliasError { error, .. } | Error::WithSnippet { error, .. } => text(error, names),
        Error::SerdeUnknownField { field, expected, .. }
            if field == "limits" && expected.contains(&RESOURCE_LIMITS) =>
        {
            format!(
                "unknown field `limits`: bounds of connections and requests are in `{RESOURCE_LIMITS}`, and rate \
                 limits in `policies` and `domains`"
            )
        }
        Error::SerdeUnknownField { field, expected, .. } => {
            let expected = expected.join(", ");
            format!("unknown field `{}`, expected one of {expected}", excerpt_of_field(field))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            let expected = expected.join(", ");
            format!("unknown variant `{}`, expected one of {expected}", excerpt(variant))
        }
        Error::SerdeInvalidType { unexpected, expected, .. } => {
            format!("invalid type: {}expected {expected}", found(unexpected, names))
        }
        Error::SerdeInvalidValue { unexpected, expected, .. } => {
            format!("invalid value: {}expected {expected}", found(unexpected, names))
        }
        Error::DuplicateMappingKey { .. } => "duplicate key".to_owned(),
        Error::MultipleDocuments { .. } => {
            "there is another document: write each to a file of its own".to_owned()
        }
        Error::UnsupportedTag { .. }
        | Error::TaggedEnumMismatch { .. }
        | Error::TaggedStructFieldName { .. } => {
            "tags are not supported: quote a value that starts with `!`".to_owned()
        }
        Error::NonFiniteFloat { .. } => "the number is not finite".to_owned(),
        Error::QuotingRequired { .. } => "the value must be quoted".to_owned(),
        error => DefaultMessageFormatter.format_message(error).into_owned(),
    }
}

/// The text in the place of the expected value, with a comma after it.
fn found(unexpected: &str, names: &Names) -> String {
    if secrets::may_hold(names) {
        return String::new();
    }
    let text = unexpected.strip_prefix("string \"").and_then(|text| text.strip_suffix('"'));
    match text {
        Some(text) => format!("string \"{}\", ", excerpt(text)),
        None => format!("{}, ", excerpt(unexpected)),
    }
}
