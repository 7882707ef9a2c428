//! A client for scrapes, and a reader of the text format of Prometheus that takes nothing else.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::PATIENCE;

/// Sends `request` and reads all that comes back.
pub(crate) fn ask(address: SocketAddr, request: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A scrape: the families.
pub(crate) fn scrape(address: SocketAddr) -> Families {
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    parse(body)
}

#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// By labels, sorted.
    pub(crate) samples: BTreeMap<Vec<(String, String)>, f64>,
}

pub(crate) type Families = BTreeMap<String, Family>;

/// The value of one sample.
pub(crate) fn value(families: &Families, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = families.get(name).unwrap_or_else(|| panic!("no {name}"));
    let wanted = |key: &Vec<(String, String)>| {
        labels.iter().all(|(label, text)| key.iter().any(|(l, t)| l == label && t == text))
    };
    let mut found = family.samples.iter().filter(|(key, _)| wanted(key));
    let (_, value) = found.next().unwrap_or_else(|| panic!("no {name} {labels:?}: {family:?}"));
    assert!(found.next().is_none(), "several {name} {labels:?}");
    *value
}

/// Reads the whole text; panics at the first line that is not in order.
pub(crate) fn parse(text: &str) -> Families {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut families = Families::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(is_name(name), "{line}");
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "twice: {line}");
            name.clone_into(&mut current);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, current, "{line}");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            families.get_mut(name).unwrap().kind = kind.to_owned();
        } else {
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("no family: {line}"));
            let is_part = match family.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"]
                    .iter()
                    .any(|part| name.strip_suffix(part) == Some(&current)),
                "" => panic!("no type: {line}"),
                _ => name == current,
            };
            assert!(is_part, "{line} in {current}");
            let mut key = labels;
            if family.kind == "histogram" {
                key.push(("".into(), name));
            }
            key.sort();
            assert!(family.samples.insert(key, value).is_none(), "twice: {line}");
        }
    }
    for (name, family) in &families {
        assert!(!family.help.is_empty() && !family.samples.is_empty(), "{name}: {family:?}");
    }
    families
}

fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").expect(line);
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (text, after) = quoted(after).unwrap_or_else(|| panic!("{line}"));
            labels.push((label.to_owned(), text));
            if let Some(after) = after.strip_prefix(',') {
                rest = after;
                continue;
            }
            rest = after.strip_prefix('}').expect(line);
            break;
        }
    }
    let number = rest.strip_prefix(' ').expect(line);
    let value = match number {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => number.parse().expect(line),
    };
    (name.to_owned(), labels, value)
}

/// Splits at the closing quote: the unescaped text before it, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => out.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => out.push(c),
        }
    }
    None
}
