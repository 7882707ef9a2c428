//! Text that a peer chose, for errors, log lines and terminals.

use std::borrow::Cow;

/// `text` without the characters that would steer a terminal or mislead a reader: escape sequences,
/// ends of lines, another direction of writing, characters that cannot be seen. Line ends and tabs
/// become spaces, and each other such character U+FFFD.
#[must_use]
pub fn text(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| shown(c) == c) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(shown).collect())
}

fn shown(c: char) -> char {
    match c {
        ' '..='~' => c,
        '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
        // Soft hyphen, marks and embeddings of direction, joiners, invisible operators, variation
        // tags: what Unicode calls format characters.
        '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => char::REPLACEMENT_CHARACTER,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_or_the_direction_of_text_is_gone() {
        for (evil, plain) in [
            ("\u{1b}[31mred\u{7}", "\u{fffd}[31mred\u{fffd}"),
            ("one\ntwo\r\n\tthree", "one two   three"),
            ("\u{202e}gnp.exe\u{2066}", "\u{fffd}gnp.exe\u{fffd}"),
            ("a\u{200b}b\u{feff}\u{9b}\u{2028}", "a\u{fffd}b\u{fffd}\u{fffd} "),
        ] {
            assert_eq!(text(evil), plain);
        }
    }

    #[test]
    fn other_text_stays() {
        for plain in ["", "refused: too many (2); raise `x`", "ünïcödé 漢字 🦀 שלום"] {
            assert!(matches!(text(plain), Cow::Borrowed(same) if same == plain));
        }
    }
}
