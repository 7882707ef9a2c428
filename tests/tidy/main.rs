//! Rules of the repository that a compiler does not check.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::fs;
use std::path::{Path, PathBuf};

mod examples;
mod imports;
mod structure;
mod words;

const LINE_COLUMNS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 800;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the repository below `dir` whose name ends with `ext`; build output left out.
fn files(dir: &Path, ext: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let is_build_output = name == "target" && dir.join("Cargo.toml").exists();
                if !is_build_output && !name.starts_with('.') {
                    dirs.push(path);
                }
            } else if name.ends_with(ext) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn complain(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// A complaint if more than `max` are `found`; and, while `max` is above the goal, if fewer are, so
/// that it follows.
fn only_falls(what: &str, found: &[String], max: usize, goal: usize) -> Option<String> {
    println!("{} {what}", found.len());
    match found.len() {
        count if count > max => {
            Some(format!("{count} {what}, and {max} may:\n  {}", found.join("\n  ")))
        }
        count if count < max && max > goal => {
            Some(format!("only {count} {what}: lower the number in tests/tidy"))
        }
        _ => None,
    }
}

#[test]
fn lines_and_files_have_a_size_that_can_be_read() {
    let mut complaints = Vec::new();
    for path in files(&root(), ".rs") {
        let text = read(&path);
        for (number, line) in text.lines().enumerate() {
            // A row of a table cannot be broken.
            let is_row = line.trim_start().trim_start_matches(['/', '!']).starts_with(" |");
            if line.chars().count() > LINE_COLUMNS_MAX && !is_row {
                complaints.push(format!("{}:{}: over 100 columns", path.display(), number + 1));
            }
        }
        let lines = text.lines().count();
        // Declarations that a program writes are not read in one sitting.
        let is_generated = text.starts_with("//! ")
            && text.lines().next().is_some_and(|first| first.ends_with("not edited by hand."));
        if lines > FILE_LINES_MAX && !is_generated {
            complaints.push(format!("{}: {lines} lines; split it", path.display()));
        }
    }
    complain(complaints);
}

#[test]
fn arrows_between_the_layers_point_down() {
    // (folder, a name that it must not use, why)
    let rules = [
        ("hg/src", "ult::", "the RPC core knows no ULTs"),
        ("hg/src", "margo_config", "the RPC core knows no JSON"),
        ("ult/src", "na::", "ult and na do not know each other"),
        ("na", "ult::", "ult and na do not know each other"),
        ("config/src", "ult::", "config is plain data"),
    ];
    let mut complaints = Vec::new();
    for (folder, banned, why) in rules {
        for path in files(&root().join(folder), ".rs") {
            for (number, line) in read(&path).lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let used = code.match_indices(banned).any(|(at, _)| {
                    let before = code[..at].chars().next_back();
                    before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
                });
                if used {
                    complaints.push(format!(
                        "{}:{}: uses `{banned}`: {why}",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    complain(complaints);
}

#[test]
fn crates_without_unsafe_say_so() {
    let mut complaints = Vec::new();
    for crate_root in [
        "config/src/lib.rs",
        "macros/src/lib.rs",
        "providers/echo/src/lib.rs",
        "providers/blob/src/lib.rs",
        "providers/kv/src/lib.rs",
        "stream/src/lib.rs",
        "cli/src/main.rs",
    ] {
        // Alone, or without a feature that needs code of C.
        if !read(&root().join(crate_root)).contains("forbid(unsafe_code)") {
            complaints.push(format!("{crate_root}: lacks #![forbid(unsafe_code)]"));
        }
    }
    complain(complaints);
}

#[test]
fn transports_are_chosen_in_one_place() {
    let mut complaints = Vec::new();
    for path in files(&root().join("na"), ".rs") {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let chosen = ["na/src/lib.rs", "na/src/registry.rs"];
        // Tests of what is above have the suite, and a libfabric without devices.
        let for_tests = ["na/core/src/lib.rs", "na/ofi/src/lib.rs"];
        if ![chosen, for_tests].concat().contains(&name.as_str())
            && name.contains("/src/")
            && read(&path).contains("cfg(feature")
        {
            complaints.push(format!("{name}: `cfg(feature` outside lib.rs and registry.rs"));
        }
    }
    complain(complaints);
}

/// An ordering is only an argument when both of its sides can be found.
#[test]
fn every_memory_ordering_names_its_pair() {
    let mut names: std::collections::BTreeMap<(String, String), Vec<String>> = Default::default();
    for folder in ["src", "hg/src", "prim/src", "ult/src", "na/core/src", "na/sm/src", "na/tcp/src"]
    {
        for path in files(&root().join(folder), ".rs") {
            for (number, line) in read(&path).lines().enumerate() {
                let Some((_, name)) = line.split_once("// pair: ") else { continue };
                for name in name.split(", ") {
                    let name = name
                        .split(|c: char| {
                            !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-')
                        })
                        .next()
                        .unwrap_or_default();
                    names.entry((folder.to_owned(), name.to_owned())).or_default().push(format!(
                        "{}:{}",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(!names.is_empty(), "no `pair:` comment found at all: is the format still the same?");
    let alone = names
        .into_iter()
        .filter(|(_, places)| places.len() < 2)
        .map(|((_, name), places)| format!("{}: `pair: {name}` stands alone", places[0]))
        .collect();
    complain(alone);
}

/// Code that names std's atomics itself is invisible to the loom models.
#[test]
fn only_the_shims_name_std_atomics_and_cells() {
    let banned = ["std::sync::atomic", "core::sync::atomic", "std::cell::UnsafeCell", "loom::"];
    let mut complaints = Vec::new();
    for folder in ["prim/src", "ult/src", "na/core/src", "na/sm/src", "na/tcp/src"] {
        for path in files(&root().join(folder), ".rs") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            let text = read(&path);
            if name.ends_with("/src/sync.rs") {
                assert!(text.contains("std::sync"), "{name}: is the shim still here?");
                continue;
            }
            if name.contains("/conformance") || name.ends_with("/tests.rs") {
                continue;
            }
            // Unit tests are not part of a model.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code = code.split("#[cfg(all(test").next().unwrap_or_default();
            for banned in banned {
                if code.contains(banned) {
                    complaints.push(format!("{name}: names {banned}: use crate::sync"));
                }
            }
        }
    }
    complain(complaints);
}

/// A plain copy of it beside another one is a data race, which safe code could bring about.
#[test]
fn registered_memory_is_copied_as_by_atomics() {
    let files = [
        "na/core/src/memory/region.rs",
        "na/core/src/memory/copy.rs",
        "na/sm/src/transfer/offer.rs",
        "na/sm/src/transfer/fallback.rs",
        "na/tcp/src/system/socket.rs",
    ];
    let mut complaints = Vec::new();
    for name in files {
        let text = read(&root().join(name));
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        assert!(code.contains("copy_shared("), "{name}: does it copy no more?");
        for plain in ["ptr::copy", "copy_nonoverlapping", "copy_bytes::copy("] {
            if code.contains(plain) {
                complaints.push(format!("{name}: {plain}: use copy_bytes::copy_shared"));
            }
        }
    }
    complain(complaints);
}

#[test]
fn every_example_is_in_the_readme() {
    let readme = read(&root().join("README.md"));
    let mut missing = Vec::new();
    for folder in ["examples", "ult/examples", "stream/examples"] {
        let folder = root().join(folder);
        let examples = files(&folder, ".rs");
        assert!(!examples.is_empty(), "{} is empty", folder.display());
        for path in examples {
            // A file, or a crate in a folder.
            let example = path.strip_prefix(&folder).unwrap().iter().next().unwrap();
            let name = Path::new(example).file_stem().unwrap().to_string_lossy().into_owned();
            if !readme.contains(&format!("`{name}`")) {
                missing.push(format!("{} is not in README.md", path.display()));
            }
        }
    }
    complain(missing);
}

#[test]
fn every_page_is_in_the_book() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let mut missing = Vec::new();
    for path in files(&docs, ".md") {
        let name = path.strip_prefix(&docs).unwrap().display().to_string();
        if name != "SUMMARY.md" && !summary.contains(&format!("]({name})")) {
            missing.push(format!("docs/{name} is not in docs/SUMMARY.md"));
        }
    }
    complain(missing);
}

#[test]
fn no_stub_is_left() {
    let words = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("FIX", "ME")];
    let mut complaints = Vec::new();
    for path in files(&root(), ".rs") {
        let text = read(&path);
        for word in words {
            if text.contains(word) {
                complaints.push(format!("{}: {word}", path.display()));
            }
        }
    }
    complain(complaints);
}
