//! Examples: every type that users can name has one.

use std::collections::BTreeSet;
use std::path::Path;

use super::{complain, files, read, root};

/// The crates that users name. The others are published as parts of these.
#[rustfmt::skip]
const CRATES: [&str; 16] = [
    ".", "config", "device", "hg", "log", "na", "na/ofi", "na/sim", "na/sm", "na/tcp", "na/ucx",
    "providers/blob", "providers/echo", "providers/kv", "stream", "ult",
];

/// The name of the type that an item behind `pub` is.
fn type_name(item: &str) -> Option<&str> {
    let (kind, rest) = item.split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric()).next();
    name.filter(|_| ["struct", "enum", "trait", "type"].contains(&kind))
}

/// The names that the file of a public module exports, without what documentation hides.
fn export(file: &Path, names: &mut BTreeSet<String>) {
    let text = read(file);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let mut statement = String::new();
    while let Some(line) = lines.next() {
        statement += line;
        statement.push(' ');
        let is_block = line.ends_with('{') && !statement.contains("pub use ");
        if !is_block && !line.ends_with(';') && line != "}" {
            continue;
        }
        let statement = std::mem::take(&mut statement);
        let Some((attributes, item)) = statement.trim().split_once("pub ") else { continue };
        if ["doc(hidden)", "cfg(loom)"].iter().any(|hides| attributes.contains(hides)) {
            if is_block {
                lines.by_ref().find(|line| *line == "}");
            }
        } else if let Some(tree) = item.strip_prefix("use ") {
            names.extend(tree.split(|c: char| !c.is_alphanumeric()).map(str::to_owned));
        } else if let Some(module) = item.strip_prefix("mod ").and_then(|m| m.strip_suffix(';')) {
            let places = [format!("{module}.rs"), format!("{module}/mod.rs")];
            let mut places = places.iter().map(|place| file.with_file_name(place));
            export(&places.find(|place| place.exists()).unwrap(), names);
        } else {
            names.extend(type_name(item).map(str::to_owned));
        }
    }
}

#[test]
fn types_that_users_can_name_have_an_example() {
    let mut complaints = Vec::new();
    for name in CRATES {
        let mut names = BTreeSet::new();
        export(&root().join(name).join("src/lib.rs"), &mut names);
        // `na` has nothing of its own to export.
        let sources = root().join(if name == "na" { "na/core" } else { name }).join("src");
        for path in files(&sources, ".rs") {
            let text = read(&path);
            let lines: Vec<&str> = text.lines().collect();
            for (number, line) in lines.iter().enumerate() {
                let exported = line.strip_prefix("pub ").and_then(type_name);
                let mut above = lines[..number].iter().rev().take_while(|line| !line.is_empty());
                let is_fine =
                    |line: &&str| line.starts_with("/// ```") || line.contains("doc(hidden)");
                if exported.is_some_and(|name| names.contains(name)) && !above.any(is_fine) {
                    complaints.push(format!("{}:{}: {line}", path.display(), number + 1));
                }
            }
        }
    }
    complain(complaints);
}
