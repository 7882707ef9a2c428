//! A JSON document that remembers where each of its values stands.
//!
//! serde_json judges the grammar first, so the reader here only has to split text that is known
//! to be valid (and not nested deeper than serde_json's limit). It yields byte offsets, which
//! serde_json does not, and finds keys that are given twice, which a map would hide.

use std::collections::HashMap;
use std::fmt;

use super::clean::{OpenComment, clean, without_mark};
use crate::report::error::{Error, REPORTED_MAX};

/// One value and the byte offset of its first character. The offset identifies the value.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) start: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    /// As written, because JSON tells `1` from `1.0` only by that.
    Number(String),
    String(String),
    Array(Vec<Node>),
    Object(Vec<Member>),
}

/// One `"key": value` of an object.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) key: String,
    pub(crate) key_start: usize,
    pub(crate) value: Node,
}

/// A parsed document together with its text.
#[derive(Debug)]
pub(crate) struct Tree<'t> {
    text: &'t str,
    pub(crate) root: Node,
    /// Keys given twice, as many as are reported: path, offset of the second one, offset of the
    /// first.
    pub(crate) duplicates: Vec<(String, usize, usize)>,
}

impl<'t> Tree<'t> {
    /// Parses `text`, which may contain comments and trailing commas, after a byte order mark,
    /// which counts in no position.
    ///
    /// # Errors
    ///
    /// If that is not one JSON document and nothing else.
    pub(crate) fn parse(text: &'t str) -> Result<Self, Error> {
        let text = without_mark(text);
        let cleaned = clean(text).map_err(|OpenComment(offset)| {
            Error::new("", "comment `/*` without its `*/`").at(position(text, offset))
        })?;
        serde_json::from_str::<serde_json::Value>(&cleaned)
            .map_err(|error| syntax_error(text, &error))?;
        let mut reader = Reader { text: &cleaned, at: 0, duplicates: Vec::new() };
        let root = reader
            .value(&Path::Root)
            .ok_or_else(|| Error::new("", "invalid JSON").at(position(text, reader.at)))?;
        Ok(Self { text, root, duplicates: reader.duplicates })
    }

    /// Line and column, from 1, of a byte offset.
    pub(crate) fn position(&self, offset: usize) -> (usize, usize) {
        position(self.text, offset)
    }

    /// Line and column of the value at `path`, or of the nearest enclosing value that exists.
    pub(crate) fn locate(&self, path: &str) -> (usize, usize) {
        let mut node = &self.root;
        for segment in path.split(['.', '[']).filter(|segment| !segment.is_empty()) {
            let child = match (&node.kind, segment.strip_suffix(']')) {
                (Kind::Array(items), Some(index)) => {
                    index.parse().ok().and_then(|index: usize| items.get(index))
                }
                (Kind::Object(entries), None) => {
                    entries.iter().find(|entry| entry.key == segment).map(|entry| &entry.value)
                }
                _ => None,
            };
            match child {
                Some(child) => node = child,
                None => break,
            }
        }
        self.position(node.start)
    }
}

fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |n| n + 1);
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    // A character of UTF-8 has exactly one byte that is not a continuation byte.
    let column = 1 + before[line_start..].iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
    (line, column)
}

/// Takes serde_json's message and turns its byte column into one in characters.
fn syntax_error(text: &str, error: &serde_json::Error) -> Error {
    let full = error.to_string();
    let message = full.rfind(" at line ").map_or(full.as_str(), |end| &full[..end]);
    let line_start = text
        .match_indices('\n')
        .map(|(offset, _)| offset + 1)
        .nth(error.line().saturating_sub(2))
        .filter(|_| error.line() > 1)
        .unwrap_or(0);
    let offset = line_start + error.column().saturating_sub(1);
    let message = match message {
        "trailing characters" => "unexpected text after the end of the document",
        other => other,
    };
    Error::new("", message).at(position(text, offset))
}

/// Appends an object key to a path.
pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Where a reader stands, from there outwards. Written out only for what is to be reported: keys
/// may be long, and values many.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'p> {
    Root,
    Key(&'p Self, &'p str),
    Index(&'p Self, usize),
}

impl Path<'_> {
    pub(crate) fn is_root(&self) -> bool {
        matches!(self, Self::Root)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(test)]
        tests::WRITTEN.with(|written| written.set(written.get() + 1));
        match self {
            Self::Root => Ok(()),
            Self::Key(Self::Root, key) => f.write_str(key),
            Self::Key(outer, key) => write!(f, "{outer}.{key}"),
            Self::Index(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

/// Splits text that serde_json has accepted. `None` cannot happen then; it is there so that a
/// disagreement between the two would be an error and not a panic.
struct Reader<'c> {
    text: &'c str,
    at: usize,
    duplicates: Vec<(String, usize, usize)>,
}

impl Reader<'_> {
    fn value(&mut self, path: &Path<'_>) -> Option<Node> {
        let first = self.peek()?;
        let start = self.at;
        let kind = match first {
            b'{' => self.object(path)?,
            b'[' => self.array(path)?,
            b'"' => Kind::String(self.string()?),
            _ => match self.word() {
                "null" => Kind::Null,
                "true" => Kind::Bool(true),
                "false" => Kind::Bool(false),
                number => Kind::Number(number.to_owned()),
            },
        };
        Some(Node { start, kind })
    }

    fn object(&mut self, path: &Path<'_>) -> Option<Kind> {
        let mut entries = Vec::new();
        let mut seen = HashMap::new();
        self.at += 1;
        while self.peek()? != b'}' {
            let key_start = self.at;
            let key = self.string()?;
            self.expect(b':')?;
            let inner = Path::Key(path, &key);
            match seen.get(&key) {
                Some(&earlier) if self.duplicates.len() < REPORTED_MAX => {
                    self.duplicates.push((inner.to_string(), key_start, earlier));
                }
                Some(_) => {}
                None => _ = seen.insert(key.clone(), key_start),
            }
            let value = self.value(&inner)?;
            entries.push(Member { key, key_start, value });
            self.skip_comma()?;
        }
        self.at += 1;
        Some(Kind::Object(entries))
    }

    fn array(&mut self, path: &Path<'_>) -> Option<Kind> {
        let mut items = Vec::new();
        self.at += 1;
        while self.peek()? != b']' {
            items.push(self.value(&Path::Index(path, items.len()))?);
            self.skip_comma()?;
        }
        self.at += 1;
        Some(Kind::Array(items))
    }

    /// Reads a string; serde_json decodes its escapes.
    fn string(&mut self) -> Option<String> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut end = start + 1;
        while *bytes.get(end)? != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        self.at = end + 1;
        serde_json::from_str(self.text.get(start..=end)?).ok()
    }

    /// A literal or number: everything up to the next delimiter.
    fn word(&mut self) -> &str {
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        let length = rest
            .iter()
            .position(|byte| byte.is_ascii_whitespace() || matches!(byte, b',' | b']' | b'}'))
            .unwrap_or(rest.len());
        self.at += length;
        &self.text[start..self.at]
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip_comma(&mut self) -> Option<()> {
        if self.peek()? == b',' {
            self.at += 1;
        }
        Some(())
    }

    /// The next byte that is not blank, without consuming it.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
        self.text.as_bytes().get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Config;

    thread_local! {
        /// Steps of paths that this thread has written out.
        pub(super) static WRITTEN: Cell<usize> = const { Cell::new(0) };
    }

    /// Each takes the time of all the keys that it is made of.
    #[test]
    fn paths_are_written_out_only_to_be_reported() {
        let (key, items) = ("k".repeat(1000), vec!["1"; 1000].join(","));
        let good =
            format!(r#"{{ "monitoring": {{ "name": "x", "config": {{ "{key}": [{items}] }} }} }}"#);
        WRITTEN.set(0);
        Config::from_json(&good).unwrap();
        assert_eq!(WRITTEN.get(), 0);
        let twice = format!(r#"{{ {} "a": 0 }}"#, r#""a": 0, "#.repeat(1000));
        assert_eq!(Tree::parse(&twice).unwrap().duplicates.len(), REPORTED_MAX);
        assert!(WRITTEN.get() <= REPORTED_MAX, "{}", WRITTEN.get());
    }

    #[test]
    fn positions_count_characters_and_ignore_comments() {
        let text = "// intro\n{ \"é\": /* ü */ 1,\n  \"a\": [ true,\n    {\"b\": \"x\"} ] }";
        let tree = Tree::parse(text).expect("valid");
        assert_eq!(tree.locate("é"), (2, 16));
        assert_eq!(tree.locate("a[0]"), (3, 10));
        assert_eq!(tree.locate("a[1].b"), (4, 11));
        assert_eq!(tree.locate("a[1].missing"), (4, 5));
        assert_eq!(tree.locate("a[7].b"), (3, 8));
        assert_eq!(tree.locate(""), (2, 1));
    }

    #[test]
    fn syntax_errors_have_the_position_of_the_original() {
        let position = |text: &str| {
            let error = Tree::parse(text).expect_err("invalid");
            (error.line.expect("line"), error.column.expect("column"))
        };
        assert_eq!(position("{} x"), (1, 4));
        assert_eq!(position("/* c */ {}\n\n  {}"), (3, 3));
        assert_eq!(position("{\n \"é\": é}"), (2, 7));
        assert_eq!(position("{} /* open"), (1, 4));
        assert_eq!(position("[,]"), (1, 2));
    }

    #[test]
    fn duplicate_keys_are_found() {
        let tree = Tree::parse(r#"{"a": 1, "b": [{"c": 1, "c": 2}], "a": 3}"#).expect("valid");
        let paths: Vec<_> = tree.duplicates.iter().map(|found| found.0.as_str()).collect();
        assert_eq!(paths, ["b[0].c", "a"]);
    }

    #[test]
    fn deep_nesting_is_an_error_not_an_overflow() {
        let text = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(Tree::parse(&text).is_err());
    }
}
