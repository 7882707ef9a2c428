//! The contents of the pages `docs/wire-*.md`, for the tests of each transport that compare them
//! with what the code does. A table is checked if a line `<!-- checked: name -->` stands over it; a
//! block if it is one of ```` ```wire ````.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::collections::BTreeMap;

/// A page, with the parts of it that no test has looked at yet.
#[derive(Debug)]
pub struct Page {
    tables: BTreeMap<String, Vec<Vec<String>>>,
    examples: BTreeMap<String, Vec<u8>>,
}

/// The value of a field of an example that a layout is compared with.
#[derive(Debug, Clone, Copy)]
pub enum Field<'a> {
    /// Little endian, in as many bytes as the page says.
    Number(u64),
    Bytes(&'a [u8]),
}

impl Page {
    pub fn read(text: &str) -> Self {
        let mut tables = BTreeMap::new();
        for part in text.split("<!-- checked: ").skip(1) {
            let (name, rest) = part.split_once(" -->\n").expect("the end of the mark");
            let lines = rest.lines().take_while(|line| line.starts_with('|'));
            let cells = |line: &str| {
                line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
            };
            // Without the heading and the line under it.
            let rows: Vec<Vec<String>> = lines.skip(2).map(cells).collect();
            assert!(!rows.is_empty(), "no table under {name}");
            assert!(tables.insert(name.to_owned(), rows).is_none(), "{name} twice");
        }
        let mut examples = BTreeMap::new();
        for block in text.split("```wire\n").skip(1) {
            for line in block.split("```").next().unwrap_or_default().lines() {
                let (name, hex) = line.split_once("  ").expect("two spaces behind the name");
                let byte = |hex| u8::from_str_radix(hex, 16).expect("hexadecimal bytes");
                let bytes = hex.split_whitespace().map(byte).collect();
                assert_eq!(examples.insert(name.to_owned(), bytes), None, "{name} twice");
            }
        }
        Self { tables, examples }
    }

    /// The rows of a table.
    pub fn table(&mut self, name: &str) -> Vec<Vec<String>> {
        self.tables.remove(name).unwrap_or_else(|| panic!("no table {name}, or it was checked"))
    }

    /// Columns `columns` of a table are these, row by row.
    #[track_caller]
    pub fn check<const N: usize>(
        &mut self,
        name: &str,
        columns: [usize; N],
        rows: &[[&dyn ToString; N]],
    ) {
        let cells = |row: Vec<String>| columns.map(|at| row[at].clone());
        let said: Vec<_> = self.table(name).into_iter().map(cells).collect();
        let is: Vec<_> = rows.iter().map(|row| row.map(ToString::to_string)).collect();
        assert_eq!(said, is, "{name}");
    }

    /// The layout with columns offset, bytes and field is that of `bytes`: without holes, with
    /// these values, and nothing behind it.
    #[track_caller]
    pub fn check_layout(&mut self, name: &str, bytes: &[u8], fields: &[(&str, Field<'_>)]) {
        let rows = self.table(name);
        let mut fields = fields.iter();
        let mut at = 0;
        for row in &rows {
            let (field, value) = fields.next().expect("as many fields as the table has");
            assert_eq!(row[2], *field, "{name}");
            if row[0] != "then" {
                assert_eq!(row[0], at.to_string(), "{name}: offset of {field}");
            }
            let (len, expected) = match value {
                Field::Number(number) => {
                    let len = row[1].parse().unwrap_or_else(|_| panic!("{name}: bytes of {field}"));
                    (len, number.to_le_bytes()[..len].to_vec())
                }
                Field::Bytes(bytes) => {
                    if let Ok(len) = row[1].parse::<usize>() {
                        assert_eq!(len, bytes.len(), "{name}: bytes of {field}");
                    }
                    (bytes.len(), bytes.to_vec())
                }
            };
            assert_eq!(bytes.get(at..at + len), Some(&expected[..]), "{name}: {field}");
            at += len;
        }
        assert!(fields.next().is_none() && at == bytes.len(), "{name}: something is left");
    }

    /// The example is this.
    #[track_caller]
    pub fn check_example(&mut self, name: &str, bytes: &[u8]) {
        let said = self.examples.remove(name).unwrap_or_else(|| panic!("no example {name}"));
        assert_eq!(format!("{said:02x?}"), format!("{bytes:02x?}"), "{name}");
    }

    /// Everything was checked.
    #[track_caller]
    pub fn finish(self) {
        assert!(self.tables.is_empty(), "not checked: {:?}", self.tables.keys());
        assert!(self.examples.is_empty(), "not checked: {:?}", self.examples.keys());
    }
}

/// A page of a transport is as strict as it looks: a fault in it is found.
#[test]
fn a_wrong_page_is_noticed() {
    const TEXT: &str = "<!-- checked: t -->\n| offset | bytes | field |\n|---|---|---|\n\
                        | 0 | 2 | a |\n| 2 | 1 | b |\n\n```wire\nexample  01 02\n```\n";
    let check = |text: &str, bytes: &'static [u8]| {
        let text = text.to_owned();
        std::panic::catch_unwind(move || {
            let mut page = Page::read(&text);
            page.check_layout("t", bytes, &[("a", Field::Number(1)), ("b", Field::Bytes(&[7]))]);
            page.check_example("example", &[1, 2]);
            page.finish();
        })
        .is_ok()
    };
    assert!(check(TEXT, &[1, 0, 7]));
    assert!(!check(TEXT, &[1, 0, 7, 0]), "longer");
    assert!(!check(TEXT, &[1, 0, 8]), "another value");
    for (from, to) in [
        ("| 2 | 1 | b", "| 3 | 1 | b"),
        ("| 0 | 2 | a", "| 0 | 4 | a"),
        ("| b |", "| c |"),
        ("\n\n", "\n| 3 | 1 | c |\n\n"),
        ("01 02", "01 03"),
        ("```wire\n", "```wire\nother  00\n"),
    ] {
        assert!(!check(&TEXT.replace(from, to), &[1, 0, 7]), "{to}");
    }
}
