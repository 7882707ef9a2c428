//! Accepts two things that JSON itself does not: comments and trailing commas.
//!
//! Each byte of a `// ...` or `/* ... */` comment and each trailing comma becomes a space, line
//! breaks stay. So the result has the same length, every other byte stands where it stood, and
//! any position found in it is a position of the original. Valid JSON comes out unchanged.

/// A `/*` without its `*/`, at this byte offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OpenComment(pub(crate) usize);

/// Blanks comments and trailing commas.
///
/// # Errors
///
/// If a block comment does not end.
pub(crate) fn clean(text: &str) -> Result<String, OpenComment> {
    let mut out = text.as_bytes().to_vec();
    // The last two bytes that are neither blank nor comment, to tell a trailing comma (`1 , ]`)
    // from a missing value (`[ , ]`), which stays an error.
    let (mut comma_at, mut last, mut before_last) = (0, 0u8, 0u8);
    let mut at = 0;
    while at < out.len() {
        let end = match (out[at], out.get(at + 1)) {
            (b'/', Some(b'/')) => line_comment_end(&out, at),
            (b'/', Some(b'*')) => block_comment_end(&out, at).ok_or(OpenComment(at))?,
            _ => at,
        };
        if end > at {
            blank(&mut out[at..end]);
            at = end;
            continue;
        }
        let byte = out[at];
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let closes = byte == b']' || byte == b'}';
        if closes && last == b',' && !matches!(before_last, 0 | b'[' | b'{' | b',' | b':') {
            out[comma_at] = b' ';
        }
        if byte == b',' {
            comma_at = at;
        }
        (before_last, last) = (last, byte);
        at = if byte == b'"' { string_end(&out, at) } else { at + 1 };
    }
    // Comments are replaced as a whole and everything else that changes is ASCII.
    Ok(String::from_utf8(out).unwrap_or_else(|_| text.to_owned()))
}

/// A document without the byte order mark that some editors put before it.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns true if the text has nothing but blanks and comments.
pub(crate) fn is_blank(text: &str) -> bool {
    clean(without_mark(text)).is_ok_and(|text| text.bytes().all(|b| b.is_ascii_whitespace()))
}

fn line_comment_end(bytes: &[u8], start: usize) -> usize {
    bytes[start..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |n| start + n)
}

fn block_comment_end(bytes: &[u8], start: usize) -> Option<usize> {
    let body = start + 2;
    bytes[body..].windows(2).position(|pair| pair == b"*/").map(|n| body + n + 2)
}

/// One past the closing quote, or the end of the text when there is none.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn cleaned(text: &str) -> String {
        clean(text).expect("no open comment")
    }

    #[test]
    fn blanks_comments_in_place() {
        assert_eq!(cleaned("1 // x\n"), "1     \n");
        assert_eq!(cleaned("/*a\nb*/1"), "   \n   1");
        assert_eq!(cleaned("1//é"), "1    ");
        assert_eq!(cleaned("1/**/"), "1    ");
        assert_eq!(clean("1 /*/"), Err(OpenComment(2)));
        assert_eq!(clean("/* \n"), Err(OpenComment(0)));
    }

    #[test]
    fn blank_is_what_has_only_blanks_and_comments() {
        for text in ["", " \t\r\n", "// x", "/* { */\n// }\n", "\u{feff}", "\u{feff} //\n"] {
            assert!(is_blank(text), "{text:?}");
        }
        for text in ["{}", "null", ",", "/* open", "// x\n0", "\u{a0}", " \u{feff}"] {
            assert!(!is_blank(text), "{text:?}");
        }
    }

    #[test]
    fn leaves_strings_alone() {
        for text in [r#""// no""#, r#"["/*", "*/"]"#, r#""\"//""#, r#""\\" "#, r#"[",]", ",}"]"#] {
            assert_eq!(cleaned(text), text);
        }
        assert_eq!(cleaned(r#"["a\\",]"#), r#"["a\\" ]"#);
    }

    #[test]
    fn blanks_only_trailing_commas() {
        assert_eq!(cleaned("[1,]"), "[1 ]");
        assert_eq!(cleaned("{\"a\":[1, ] , /* x */ }"), "{\"a\":[1  ]           }");
        for wrong in ["[,]", "{,}", "[1,,]", "{\"a\":,}", "1,", "[1,2", ",]"] {
            assert_eq!(cleaned(wrong), wrong);
        }
    }

    /// Arbitrary JSON values, strings full of the characters that matter here.
    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            r#"[/*,\]}\[{":é\\ \n]{0,8}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(r#"[a-z/*,"\]]{0,4}"#, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Writes `value` with `noise` (blanks and comments) between tokens and trailing commas.
    fn noisy(value: &Value, noise: &[&str], turn: &mut usize, out: &mut String) {
        let mut gap = |out: &mut String| {
            *turn += 1;
            out.push_str(noise[*turn % noise.len()]);
        };
        gap(out);
        match value {
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    noisy(item, noise, turn, out);
                    let comma = index + 1 < items.len() || turn.is_multiple_of(2);
                    out.push_str(if comma { "," } else { "" });
                }
                out.push(']');
            }
            Value::Object(entries) => {
                out.push('{');
                for (index, (key, item)) in entries.iter().enumerate() {
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push(':');
                    noisy(item, noise, turn, out);
                    let comma = index + 1 < entries.len() || turn.is_multiple_of(2);
                    out.push_str(if comma { "," } else { "" });
                }
                out.push('}');
            }
            leaf => out.push_str(&leaf.to_string()),
        }
        out.push_str(noise[*turn % noise.len()]);
    }

    proptest! {
        #[test]
        fn valid_json_is_unchanged(value in json(), pretty in any::<bool>()) {
            let text = match pretty {
                true => serde_json::to_string_pretty(&value).expect("serialises"),
                false => value.to_string(),
            };
            prop_assert_eq!(cleaned(&text), text);
        }

        #[test]
        fn noise_does_not_change_the_meaning(value in json(), start in 0usize..4) {
            let noise = ["", "/* \" , ] */", " ", "// } é \"\n", "/**/\n\t"];
            let mut text = String::new();
            noisy(&value, &noise, &mut start.clone(), &mut text);
            let read: Value = serde_json::from_str(&cleaned(&text)).expect("still valid");
            prop_assert_eq!(read, value);
        }

        #[test]
        fn keeps_length_and_line_breaks(text in r#"(?s)[/*,\]}\[{":é\\ 1a\n]{0,40}"#) {
            if let Ok(out) = clean(&text) {
                prop_assert_eq!(out.len(), text.len());
                let breaks = |s: &str| s.match_indices('\n').map(|m| m.0).collect::<Vec<_>>();
                prop_assert_eq!(breaks(&out), breaks(&text));
            }
        }
    }
}
