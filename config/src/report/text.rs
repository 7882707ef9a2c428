//! Text from foreign sources, made safe to show on a terminal.

/// Returns true if a character steers a terminal or turns the direction of text, so that what is
/// shown is not what is there: control characters, line and paragraph separators, and the marks,
/// embeddings, overrides and isolates of bidirectional text.
#[must_use]
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// The characters of `text`, with an escape (`\u{1b}`) for each that [`steers`].
pub fn shown(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(|c| {
        let (escape, plain) =
            if steers(c) { (Some(c.escape_unicode()), None) } else { (None, Some(c)) };
        escape.into_iter().flatten().chain(plain)
    })
}

/// As [`shown`], in one piece.
#[must_use]
pub fn printable(text: &str) -> String {
    shown(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_steers_is_escaped() {
        for (text, expected) in [
            ("größe/日本 x", "größe/日本 x"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\nb\u{9b}", "a\\u{a}b\\u{9b}"),
            ("x\u{202e}gpj.exe", "x\\u{202e}gpj.exe"),
            ("\u{2066}\u{200f}\u{61c}\u{2029}", "\\u{2066}\\u{200f}\\u{61c}\\u{2029}"),
            // Words of some languages, and flags, are made with joiners.
            ("می\u{200c}خواهم", "می\u{200c}خواهم"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
