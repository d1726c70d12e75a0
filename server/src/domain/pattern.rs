//! Values with wildcards.

/// Text in which each `*` stands for any number of characters.
#[derive(Debug)]
pub(super) struct Pattern(Vec<String>);

impl Pattern {
    pub(super) fn is_one(text: &str) -> bool {
        text.contains('*')
    }

    pub(super) fn new(text: &str) -> Self {
        Self(text.split('*').map(str::to_owned).collect())
    }

    pub(super) fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = self.0.as_slice() else {
            return self.0.iter().all(|only| only == value);
        };
        let Some(rest) = value.strip_prefix(first.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else { return false };
        // The first place is the best: it leaves the most for the others.
        middle.iter().all(|part| match rest.find(part.as_str()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn each_star_stands_for_any_characters() {
        for (pattern, matching, others) in [
            ("/api/*", &["/api/", "/api/users"][..], &["/api", "/apis", ""][..]),
            ("*", &["", "x"], &[]),
            ("*.png", &[".png", "a.png"], &["png", "a.png.exe"]),
            ("a*b*c", &["abc", "axbxc", "abbcc"], &["ac", "acb", "ab"]),
            ("aa*aa", &["aaaa", "aaaaa"], &["aaa", "aa"]),
            ("a**b", &["ab", "axb"], &["a"]),
        ] {
            let is_match = |value: &&&str| Pattern::new(pattern).matches(value);
            assert_eq!(matching.iter().filter(is_match).count(), matching.len(), "{pattern}");
            assert_eq!(others.iter().filter(is_match).count(), 0, "{pattern}");
        }
    }
}
