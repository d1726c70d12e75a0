//! Text with fields of a line.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::str::FromStr;

use crate::line::Line;
use crate::text::shortened;

/// An error lists at most this many fields of a line.
const MOST_LISTED: usize = 40;

/// Text with fields of a line, such as `{ip}` or `{1}|{tenant.id}`.
#[derive(Clone, Debug)]
pub struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Ip,
    User,
    Method,
    /// The path without the query.
    Path,
    /// A segment of the path, counted from 1.
    Segment(usize),
    Status,
    Bytes,
    Referer,
    Agent,
    Field(String),
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(mut text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        while !text.is_empty() {
            let Some((before, rest)) = text.split_once('{') else {
                parts.push(Part::Text(text.to_owned()));
                break;
            };
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (name, rest) = rest.split_once('}').ok_or("`{` without `}`")?;
            parts.push(Part::named(name)?);
            text = rest;
        }
        Ok(Self(parts))
    }
}

impl Part {
    fn named(name: &str) -> Result<Self, String> {
        Ok(match name {
            "" => return Err("`{}` names no field".to_owned()),
            "0" => return Err("the first segment of the path is {1}".to_owned()),
            "ip" => Self::Ip,
            "user" => Self::User,
            "method" => Self::Method,
            "path" => Self::Path,
            "status" => Self::Status,
            "bytes" => Self::Bytes,
            "referer" => Self::Referer,
            "agent" => Self::Agent,
            name => name.parse().map_or_else(|_| Self::Field(name.to_owned()), Self::Segment),
        })
    }

    fn of<'a>(&'a self, line: &'a Line<'_>) -> Option<&'a str> {
        let path = || line.path()?.split(['?', '#']).next();
        let field = |name: &str| line.fields.get(name).map(Cow::as_ref);
        match self {
            Self::Text(text) => Some(text),
            Self::Ip => line.ip.as_deref(),
            Self::User => line.user(),
            Self::Method => line.method(),
            Self::Path => path(),
            Self::Segment(n) => path()?.split('/').nth(*n),
            Self::Status => line.status(),
            Self::Bytes => line.bytes(),
            Self::Referer => line.referer().or_else(|| field("referer")),
            Self::Agent => line.agent().or_else(|| field("agent")),
            Self::Field(name) => field(name),
        }
    }

    /// Returns true if the value says that there is none. If it is empty in several lines, they have nothing in
    /// common, except those of `/` their first segment.
    fn is_empty(&self, value: &str, line: &Line<'_>) -> bool {
        match self {
            Self::Text(_) | Self::Segment(_) => false,
            // No bytes are a number, too.
            Self::Bytes => value.is_empty(),
            _ => value.is_empty() || value == "-" && !line.is_json(),
        }
    }

    fn is_in(&self, line: &Line<'_>) -> bool {
        self.of(line).is_some_and(|value| !self.is_empty(value, line))
    }
}

/// Writes a part as it is written in a pattern.
impl Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Text(text) => return f.write_str(text),
            Self::Segment(n) => return write!(f, "{{{n}}}"),
            Self::Ip => "ip",
            Self::User => "user",
            Self::Method => "method",
            Self::Path => "path",
            Self::Status => "status",
            Self::Bytes => "bytes",
            Self::Referer => "referer",
            Self::Agent => "agent",
            Self::Field(name) => name,
        };
        write!(f, "{{{name}}}")
    }
}

impl Pattern {
    /// Writes the text for a line.
    ///
    /// # Errors
    ///
    /// If the line does not have a field, or it is empty. All such lines would have the same text.
    pub(crate) fn write(&self, line: &Line<'_>, to: &mut String) -> Result<(), String> {
        to.clear();
        for part in &self.0 {
            match part.of(line) {
                None => return Err(format!("there is no field {part}")),
                Some(value) if part.is_empty(value, line) => {
                    return Err(format!("the field {part} is empty"));
                }
                Some(text) => to.push_str(text),
            }
        }
        Ok(())
    }

    pub(crate) fn has_ip(&self) -> bool {
        self.0.contains(&Part::Ip)
    }
}

/// The fields of a line, as patterns refer to them.
pub(crate) fn fields_of(line: &Line<'_>) -> String {
    let named = [
        Part::Ip,
        Part::User,
        Part::Method,
        Part::Path,
        Part::Segment(1),
        Part::Status,
        Part::Bytes,
        Part::Referer,
        Part::Agent,
    ];
    let named = named.into_iter().filter(|part| part.is_in(line)).map(|part| part.to_string());
    let mut fields: Vec<_> = named.collect();
    let of_json = line.fields.iter().filter(|(_, value)| !value.is_empty());
    let mut of_json: Vec<_> = of_json.map(|(name, _)| format!("{{{}}}", shortened(name))).collect();
    of_json.retain(|name| !fields.contains(name));
    of_json.sort_unstable();
    fields.append(&mut of_json);
    let are_more = fields.len() > MOST_LISTED;
    fields.truncate(MOST_LISTED);
    fields.join(", ") + if are_more { ", …" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_time::LogTime;

    #[test]
    fn fields_are_replaced_and_mistakes_explained() {
        let text = r#"{"time":1,"ip":"192.0.2.7","path":"/v1/users/7?x=/y","plan":"","referer":"a",
            "tenant":{"id":"acme"}}"#;
        let line = Line::parse(text, &mut LogTime::default()).unwrap();
        let mut text = String::new();
        for (pattern, expected) in [
            ("{ip}", "192.0.2.7"),
            ("{tenant.id}|{2}|{path}", "acme|users|/v1/users/7"),
            ("{referer}", "a"),
            ("all", "all"),
        ] {
            pattern.parse::<Pattern>().unwrap().write(&line, &mut text).unwrap();
            assert_eq!(text, expected);
        }
        for (pattern, expected) in [
            ("{ip}{9}", "there is no field {9}"),
            ("{missing}", "there is no field {missing}"),
            ("{user}", "there is no field {user}"),
            ("{agent}", "there is no field {agent}"),
            ("{plan}", "the field {plan} is empty"),
        ] {
            let error = pattern.parse::<Pattern>().unwrap().write(&line, &mut text).unwrap_err();
            assert_eq!(error, expected);
        }
        assert_eq!(fields_of(&line), "{ip}, {path}, {1}, {referer}, {tenant.id}, {time}");
        let line = Line::parse(r#"{"time":1,"path":"/"}"#, &mut LogTime::default()).unwrap();
        "{1}".parse::<Pattern>().unwrap().write(&line, &mut text).unwrap();
        assert_eq!(text, "");
        for pattern in ["{ip", "{}", "{0}"] {
            assert!(pattern.parse::<Pattern>().is_err(), "{pattern}");
        }
    }
}
