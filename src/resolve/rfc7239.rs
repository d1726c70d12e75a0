//! The header `Forwarded` of RFC 7239, read from the right.

/// Returns the rightmost element of a `Forwarded` header (RFC 7239): the position of the comma before it
/// unless it is the first, and the value of its `for`. `None` if it is malformed or has no `for`.
///
/// Parsing starts at the right, because the client wrote the left part. In a well-formed header both
/// directions agree: a quote is escaped exactly if an odd number of backslashes precedes it. If the
/// client left a quote open, the elements that proxies appended keep their meaning.
pub(super) fn rightmost_element(line: &[u8]) -> Option<(Option<usize>, &[u8])> {
    let mut rest = line;
    let mut node = None;
    loop {
        rest = trim_end(rest);
        match rest.last() {
            None => return Some((None, node?)),
            Some(b',') => return Some((Some(rest.len() - 1), node?)),
            Some(b';') => rest = &rest[..rest.len() - 1],
            Some(_) => {
                let (left, name, value) = last_pair(rest)?;
                if name.eq_ignore_ascii_case(b"for") && node.replace(value).is_some() {
                    return None;
                }
                rest = trim_end(left);
                if !matches!(rest.last(), None | Some(b',' | b';')) {
                    return None;
                }
            }
        }
    }
}

// `name=value` or `name="value"`, and the text before it.
fn last_pair(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (left, value) = if text.ends_with(b"\"") {
        let close = last_quote(text).filter(|close| close + 1 == text.len())?;
        let open = last_quote(&text[..close])?;
        (&text[..open], &text[open + 1..close])
    } else {
        last_token(text)?
    };
    let (left, name) = last_token(left.strip_suffix(b"=")?)?;
    Some((left, name, value))
}

// The last unescaped quote.
fn last_quote(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    loop {
        end = text[..end].iter().rposition(|&byte| byte == b'"')?;
        let escapes = text[..end].iter().rev().take_while(|&&byte| byte == b'\\').count();
        if escapes % 2 == 0 {
            return Some(end);
        }
    }
}

// Accepts addresses with a port, although they should be quoted.
fn last_token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let ends = |byte: &u8| b"\"\\,;= \t".contains(byte);
    let start = text.iter().rposition(ends).map_or(0, |end| end + 1);
    (start < text.len()).then(|| text.split_at(start))
}

fn trim_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| !b" \t".contains(byte));
    &text[..end.map_or(0, |end| end + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // From the right to the first malformed element.
    fn nodes(line: &str) -> Vec<&str> {
        let mut nodes = Vec::new();
        let mut left = Some(line);
        while let Some((comma, node)) = left.and_then(|line| rightmost_element(line.as_bytes())) {
            nodes.push(std::str::from_utf8(node).unwrap());
            left = comma.map(|comma| &line[..comma]);
        }
        nodes
    }

    #[test]
    fn an_unbalanced_quote_does_not_hide_elements_to_its_right() {
        for forged in [r#"for=""#, r#"for="a\"#, r#"""#, r#"for=a;host="a"#, r#"for="\""#] {
            let line =
                format!(r#"{forged}, for="[2001:db8::1]:80";by="a, for=b", for=203.0.113.7"#);
            assert_eq!(nodes(&line), ["203.0.113.7", "[2001:db8::1]:80"], "{forged}");
        }
    }

    #[test]
    fn elements_are_read_as_proxies_write_them() {
        for element in [
            "for=node",
            "For=\"node\"",
            "proto=https;for=node;by=_x",
            "proto=https; FOR=\"node\" ; by=\"\";",
            " ;for=node;host=\"a\\\", for=\\\"b\\\\\"\t",
        ] {
            assert_eq!(nodes(element), ["node"], "{element}");
            assert_eq!(nodes(&format!("for=a,{element}")), ["node", "a"], "{element}");
        }
    }

    #[test]
    fn a_malformed_element_has_no_address() {
        let elements = [
            r#"|;|for|for=|=203.0.113.7|for =203.0.113.7|for= 203.0.113.7|203.0.113.7|proto=https"#,
            r#"for=203.0.113.7;for=203.0.113.8|x for=203.0.113.7|for=203.0.113.7 proto=https"#,
            r#"for="203.0.113.7|for=203.0.113.7"|for="203.0.113.7\"|for="203.0.113.7"x"#,
            r#"for"203.0.113.7"|for="203.0.113.7"x\""#,
            r#""a"for=203.0.113.7|for="203.0.113.7""|for=203.0.113.7;a="\\"";by=_x"#,
        ];
        for element in elements.iter().flat_map(|elements| elements.split('|')) {
            assert_eq!(rightmost_element(element.as_bytes()), None, "{element}");
        }
    }

    proptest! {
        #[test]
        fn both_directions_agree_on_well_formed_headers(
            elements in prop::collection::vec(("[ -~]{0,12}", "[ -~]{0,12}", any::<bool>()), 1..6),
        ) {
            let quoted = |text: &str| text.replace('\\', r"\\").replace('"', r#"\""#);
            let elements: Vec<_> = elements
                .iter()
                .map(|(node, other, first)| (quoted(node), quoted(other), first))
                .collect();
            let written: Vec<_> = elements
                .iter()
                .map(|(node, other, first)| match first {
                    true => format!(r#"for="{node}";ext="{other}""#),
                    false => format!(r#" ext="{other}"; for="{node}" "#),
                })
                .collect();
            let line = written.join(",");
            let read = nodes(&line);
            prop_assert_eq!(read, elements.iter().rev().map(|(node, ..)| node).collect::<Vec<_>>());
        }
    }
}
