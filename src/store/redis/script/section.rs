//! The sections of a Lua file: a line that begins with a marker names the one that follows.

/// Starts a line that names a section. A section whose name ends with `@` is there once for each
/// quota.
pub(super) const MARKER: &str = "--@ ";

/// The lines after the marker of this name, until the next one that is not indented.
pub(super) fn section<'a, 'b>(
    file: &'a str,
    name: &'b str,
) -> Option<impl Iterator<Item = &'a str> + use<'a, 'b>> {
    let mut lines = file.lines();
    lines.find(|line| line.strip_prefix(MARKER) == Some(name))?;
    Some(lines.take_while(|line| !line.starts_with(MARKER)))
}
