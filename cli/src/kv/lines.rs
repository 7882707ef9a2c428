//! The lines of a dump: a key and its value as one JSON object, `{"key": "a", "value": "1"}`.
//!
//! Bytes that are UTF-8 are text; others are `{"base64": "/w=="}`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Data,
    value: Data,
}

/// Bytes in JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Data {
    Text(String),
    Other(Encoded),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded {
    base64: String,
}

/// A key and its value as a line, without a line end.
pub(super) fn write(key: Vec<u8>, value: Vec<u8>) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Line { key: Data::of(key), value: Data::of(value) })
}

/// The key and the value of a line, or what is wrong with it.
pub(super) fn read(line: &str) -> Result<(Vec<u8>, Vec<u8>), String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    Ok((line.key.bytes()?, line.value.bytes()?))
}

impl Data {
    fn of(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(
            |error| Self::Other(Encoded { base64: STANDARD.encode(error.as_bytes()) }),
            Self::Text,
        )
    }

    fn bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Other(Encoded { base64 }) => {
                STANDARD.decode(base64).map_err(|error| format!("no base64: {error}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_back() {
        for (key, value, line) in [
            (&b"a"[..], &b"1"[..], r#"{"key":"a","value":"1"}"#),
            (b"", b"\n\"\0", r#"{"key":"","value":"\n\"\u0000"}"#),
            (b"\xFF", b"\xC3\xBC", r#"{"key":{"base64":"/w=="},"value":"ü"}"#),
        ] {
            assert_eq!(write(key.to_vec(), value.to_vec()).unwrap(), line);
            assert_eq!(read(line).unwrap(), (key.to_vec(), value.to_vec()));
        }
    }

    #[test]
    fn what_is_no_line_says_why() {
        for (line, text) in [
            ("", "EOF"),
            (r#"{"key":"a"}"#, "missing field `value`"),
            (r#"{"key":"a","value":"b","more":1}"#, "unknown field `more`"),
            (r#"{"key":"a","value":{"base64":"?"}}"#, "no base64"),
            (r#"{"key":"a","value":7}"#, "did not match"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
