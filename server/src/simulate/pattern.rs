//! Text with fields of a line.

use std::str::FromStr;

use super::line::Line;

#[derive(Clone, Debug)]
pub(super) struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Ip,
    User,
    Method,
    /// Without the query.
    Path,
    /// From 1.
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

    fn of<'a>(&'a self, line: &'a Line<'_>) -> &'a str {
        let path = || line.path.split(['?', '#']).next().unwrap_or_default();
        match self {
            Self::Text(text) => text,
            Self::Ip => &line.ip,
            Self::User => &line.user,
            Self::Method => &line.method,
            Self::Path => path(),
            Self::Segment(n) => path().split('/').nth(*n).unwrap_or_default(),
            Self::Status => &line.status,
            Self::Bytes => &line.bytes,
            Self::Referer => line.referer(),
            Self::Agent => line.agent(),
            Self::Field(name) => line.fields.get(name).map_or("", String::as_str),
        }
    }
}

impl Pattern {
    /// Writes the text for a line.
    pub(super) fn write(&self, line: &Line<'_>, to: &mut String) {
        to.clear();
        for part in &self.0 {
            to.push_str(part.of(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_replaced_and_mistakes_explained() {
        let mut line =
            Line { ip: "192.0.2.7".into(), path: "/v1/users/7?x=/y".into(), ..Line::default() };
        line.fields.insert("tenant.id".into(), "acme".into());
        let mut text = String::new();
        for (pattern, expected) in [
            ("{ip}", "192.0.2.7"),
            ("{tenant.id}|{2}|{path}", "acme|users|/v1/users/7"),
            ("all", "all"),
            ("{9}{missing}", ""),
        ] {
            pattern.parse::<Pattern>().unwrap().write(&line, &mut text);
            assert_eq!(text, expected);
        }
        for pattern in ["{ip", "{}", "{0}"] {
            assert!(pattern.parse::<Pattern>().is_err(), "{pattern}");
        }
    }
}
