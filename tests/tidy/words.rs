//! Words: how comments begin, and that a word has one meaning.

use std::collections::{BTreeMap, BTreeSet};

use super::{complain, files, only_falls, read, root};

/// Beginnings of a doc comment that do not name its subject.
const BAD_OPENERS: [&str; 9] =
    ["What ", "Whether ", "Of ", "That of ", "Its ", "The same", "Who ", "Whoever ", "Whose "];

/// Doc comments of public items, and headers of files, that begin so. Only ever lower this.
const BAD_PUBLIC_OPENERS_MAX: usize = 0;

/// Doc comments of other items that begin so. Only ever lower this.
const BAD_OPENERS_MAX: usize = 0;

/// Names of types that one crate, or one transport, has for different things. Only ever lower this.
const SHARED_NAMES_MAX: usize = 0;

fn is_doc(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("///") || line.starts_with("//!")
}

#[test]
fn doc_comments_name_their_subject_first() {
    let (mut public, mut private) = (Vec::new(), Vec::new());
    for path in files(&root(), ".rs") {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (number, line) in lines.iter().enumerate() {
            if !is_doc(line) || (number > 0 && is_doc(lines[number - 1])) {
                continue;
            }
            let words = line[3..].trim_start();
            if BAD_OPENERS.iter().any(|opener| words.starts_with(opener)) {
                let place = format!("{}:{}: {words}", path.display(), number + 1);
                let is_item = |line: &&&str| !is_doc(line) && !line.starts_with('#');
                let item = lines[number..].iter().find(is_item).unwrap_or(&"");
                let is_public = line.starts_with("//!") || item.starts_with("pub ");
                if is_public { &mut public } else { &mut private }.push(place);
            }
        }
    }
    let complaints = [
        only_falls("public doc comments without their subject", &public, BAD_PUBLIC_OPENERS_MAX, 0),
        only_falls("doc comments without their subject", &private, BAD_OPENERS_MAX, 0),
    ];
    complain(complaints.into_iter().flatten().collect());
}

/// The names of types that a file defines, its tests left out.
fn types_of(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut names = BTreeSet::new();
    for mut line in code.lines() {
        if line.starts_with("pub(")
            && let Some((_, rest)) = line.split_once(") ")
        {
            line = rest;
        }
        line = line.strip_prefix("pub ").unwrap_or(line);
        for kind in ["struct ", "enum ", "trait ", "union "] {
            if let Some(rest) = line.strip_prefix(kind) {
                names.insert(rest.chars().take_while(|c| c.is_alphanumeric()).collect());
            }
        }
    }
    names
}

/// The part of the repository in which a name of a type means one thing: a crate.
fn scope(file: &str) -> &str {
    file.split("src/").next().unwrap_or_default()
}

#[test]
fn a_word_has_one_meaning() {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for path in files(&root(), ".rs") {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        // The last are alternatives, of which a build has one.
        let others =
            ["tests", "benches", "examples", "fuzz", "/fake/", "conformance", "stack/context/"];
        if !name.contains("src/") || others.iter().any(|other| name.contains(other)) {
            continue;
        }
        for defined in types_of(&read(&path)) {
            let key = (scope(&name).to_owned(), defined);
            places.entry(key).or_default().push(name.clone());
        }
    }
    let shared: Vec<String> = places
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|((_, name), places)| format!("{name}: {}", places.join(", ")))
        .collect();
    let complaint = only_falls("names of types for several things", &shared, SHARED_NAMES_MAX, 0);
    complain(complaint.into_iter().collect());
}

#[test]
fn the_glossary_defines_each_word_once() {
    let glossary = read(&root().join("docs/glossary.md"));
    // The last table names words of it again.
    let glossary = glossary.split("## One word, one meaning").next().unwrap_or_default();
    let mut words = BTreeSet::new();
    let mut complaints = Vec::new();
    for line in glossary.lines().filter(|line| line.starts_with("| ")) {
        let word = line.split('|').nth(1).unwrap_or_default().trim().to_lowercase();
        let is_head = word.starts_with("--") || word == "word" || word == "term";
        if !is_head && !words.insert(word.clone()) {
            complaints.push(format!("docs/glossary.md: `{word}` is defined twice"));
        }
    }
    assert!(!words.is_empty(), "docs/glossary.md has no table any more");
    complain(complaints);
}
