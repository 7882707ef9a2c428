//! The order of folders, circles of files, and the number of test programs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::imports::{ItemPath, Sources};
use super::{complain, files, read, root};

/// Files at the top of a crate's sources, `lib.rs` among them.
const FLAT_FILES_MAX: usize = 8;

/// Test programs of the whole workspace. Each is linked on its own, which takes longer than most
/// tests run.
const TEST_PROGRAMS_MAX: usize = 40;

/// The structure of a crate.
struct Layers {
    sources: &'static str,
    /// Folders, lowest first: code of a folder imports from folders before its own. Files at the
    /// top of the crate stand here by their name without `.rs`.
    order: &'static [&'static str],
    /// Pairs of a file and a higher folder that it imports from. Only ever lower this.
    against: usize,
    /// Files of the largest circle of imports. Only ever lower this.
    circle: usize,
}

const LAYERS: &[Layers] = &[
    Layers {
        sources: "src",
        order: &[
            "error", "rpc", "support", "layout", "observe", "origin", "bulk", "target", "progress",
            "elastic", "timer", "report", "instance",
        ],
        against: 61,
        circle: 73,
    },
    Layers {
        sources: "ult/src",
        order: &[
            "topology", "base", "trace", "stack", "engine", "wait", "spawn", "time", "runtime",
            "observe",
        ],
        against: 0,
        circle: 44,
    },
    Layers {
        sources: "na/src",
        order: &[
            "wire_doc",
            "base",
            "address",
            "limits",
            "memory",
            "message",
            "options",
            "endpoint",
            "matching",
            "loopback",
            "hosts",
            "sm",
            "tcp",
            "sim",
            "ofi",
            "ucx",
            "auto_sm",
            "registry",
            "conformance",
            "fuzz_addresses",
        ],
        against: 0,
        circle: 19,
    },
];

#[test]
fn imports_follow_the_order_of_folders() {
    let mut complaints = Vec::new();
    for layers in LAYERS {
        let sources = Sources::of(&root().join(layers.sources));
        let rank = |module: &ItemPath| layers.order.iter().position(|name| *name == module[0]);
        let mut found = Vec::new();
        for (module, file) in sources.files.iter().filter(|(module, _)| !module.is_empty()) {
            let higher: BTreeSet<_> = sources
                .imports(module)
                .into_iter()
                .filter(|used| rank(used) > rank(module))
                .map(|used| used[0].clone())
                .collect();
            found.extend(higher.iter().map(|name| format!("{}: {name}", file.display())));
        }
        complaints.extend(follow(
            "imports that run against the order",
            layers.sources,
            layers.against,
            &found,
        ));
    }
    complain(complaints);
}

#[test]
fn circles_of_files_are_small() {
    let mut complaints = Vec::new();
    for layers in LAYERS {
        let sources = Sources::of(&root().join(layers.sources));
        let largest = circles(&sources).into_iter().max_by_key(Vec::len).unwrap_or_default();
        let names: Vec<_> = largest.iter().map(|module| module.join("/")).collect();
        complaints.extend(follow(
            "files in the largest circle",
            layers.sources,
            layers.circle,
            &names,
        ));
    }
    complain(complaints);
}

/// A complaint if there are not just as many as there may be.
fn follow(what: &str, sources: &str, max: usize, found: &[String]) -> Option<String> {
    println!("{sources}: {} {what}", found.len());
    match found.len() {
        count if count > max => {
            Some(format!("{sources}: {count} {what}, and {max} may:\n  {}", found.join("\n  ")))
        }
        count if count < max => {
            Some(format!("{sources}: only {count} {what}: lower the number in tests/tidy"))
        }
        _ => None,
    }
}

/// Files that import each other in circles: the strongly connected components (Kosaraju).
fn circles(sources: &Sources) -> Vec<Vec<ItemPath>> {
    let edges: BTreeMap<&ItemPath, Vec<ItemPath>> =
        sources.files.keys().map(|module| (module, sources.imports(module))).collect();
    let mut back: BTreeMap<&ItemPath, Vec<&ItemPath>> = BTreeMap::new();
    for (from, to) in &edges {
        for to in to {
            back.entry(to).or_default().push(from);
        }
    }
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for start in edges.keys() {
        let mut stack = vec![(*start, 0)];
        if !seen.insert(*start) {
            continue;
        }
        while let Some((module, next)) = stack.pop() {
            match edges.get(module).and_then(|to| to.get(next)) {
                None => order.push(module),
                Some(to) => {
                    stack.push((module, next + 1));
                    if seen.insert(to) {
                        stack.push((to, 0));
                    }
                }
            }
        }
    }
    let mut taken = BTreeSet::new();
    let mut circles = Vec::new();
    for start in order.into_iter().rev() {
        let mut circle = Vec::new();
        let mut open = vec![start];
        while let Some(module) = open.pop() {
            if taken.insert(module) {
                circle.push(module.clone());
                open.extend(back.get(module).into_iter().flatten());
            }
        }
        circles.push(circle);
    }
    circles
}

#[test]
fn every_folder_has_its_place_in_the_order() {
    let mut complaints = Vec::new();
    for layers in LAYERS {
        let sources = root().join(layers.sources);
        let mut there = BTreeSet::new();
        let mut flat = 0;
        for path in std::fs::read_dir(&sources).unwrap().map(|entry| entry.unwrap().path()) {
            there.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
            if path.is_file() {
                flat += 1;
            } else if !read(&path.join("mod.rs")).starts_with("//!") {
                complaints.push(format!("{}: mod.rs does not say what it is", path.display()));
            }
        }
        there.remove("lib");
        let ordered = layers.order.iter().map(|name| (*name).to_owned()).collect();
        for name in there.symmetric_difference(&ordered) {
            complaints.push(format!("{}/{name}: is it new, or gone?", layers.sources));
        }
        if flat > FLAT_FILES_MAX {
            complaints.push(format!("{}: {flat} files at the top", layers.sources));
        }
    }
    complain(complaints);
}

/// Folders that have a `Cargo.toml`.
fn packages() -> Vec<PathBuf> {
    let manifests = files(&root(), "Cargo.toml").into_iter();
    manifests.filter_map(|path| path.parent().map(Path::to_path_buf)).collect()
}

#[test]
fn test_programs_are_few() {
    let mut programs = Vec::new();
    for package in packages() {
        let Ok(entries) = std::fs::read_dir(package.join("tests")) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").exists() {
                programs.push(path.display().to_string());
            }
        }
    }
    programs.sort();
    let count = programs.len();
    println!("{count} test programs");
    assert!(
        count <= TEST_PROGRAMS_MAX,
        "{count} test programs: make a module of `it` of those that do not need the process for \
         themselves\n{}",
        programs.join("\n")
    );
}

/// Direct dependencies are a decision each.
#[test]
fn every_dependency_has_its_reason_in_the_documents() {
    let reasons = read(&root().join("docs/dependencies.md"));
    let mut complaints = Vec::new();
    for manifest in files(&root(), "Cargo.toml") {
        let mut is_dependencies = false;
        for line in read(&manifest).lines() {
            if line.starts_with('[') {
                let table = line.trim_matches(['[', ']']);
                // Of the workspace's table only that counts which a crate takes.
                is_dependencies =
                    table.ends_with("dependencies") && !table.starts_with("workspace");
            } else if is_dependencies && let Some(name) = crate_name(line) {
                let is_ours = line.contains("path =") || name.starts_with("margo");
                if !is_ours && !reasons.contains(&format!("`{name}`")) {
                    complaints.push(format!(
                        "{}: {name} is not in docs/dependencies.md",
                        manifest.display()
                    ));
                }
            }
        }
    }
    complain(complaints);
}

fn crate_name(line: &str) -> Option<String> {
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_' || *c == '-';
    let name: String = line.chars().take_while(is_name).collect();
    (!name.is_empty()).then_some(name)
}

/// The names of source files and documents between backticks.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|name| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let stem = name.strip_suffix(".rs").or_else(|| name.strip_suffix(".md"));
        name.chars().all(is_path) && stem.is_some_and(|stem| !stem.is_empty())
    })
}

#[test]
fn files_that_are_named_exist() {
    let all: Vec<String> = [".rs", ".md"]
        .iter()
        .flat_map(|ext| files(&root(), ext))
        .map(|path| format!("/{}", path.strip_prefix(root()).unwrap().display()))
        .collect();
    let mut complaints = Vec::new();
    for path in [".rs", ".md"].iter().flat_map(|ext| files(&root(), ext)) {
        let is_source = path.extension().is_some_and(|ext| ext == "rs");
        for (number, line) in read(&path).lines().enumerate() {
            let text =
                if is_source { line.split_once("//").map_or("", |(_, text)| text) } else { line };
            for name in named_files(text) {
                let end = format!("/{}", name.trim_start_matches("../").trim_start_matches("./"));
                if !all.iter().any(|file| file.ends_with(&end)) {
                    complaints.push(format!("{}:{}: `{name}`", path.display(), number + 1));
                }
            }
        }
    }
    complain(complaints);
}
