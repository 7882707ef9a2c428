//! The imports of a source file, as far as its text shows them.
//!
//! Names of macros, methods and fields are not followed; a path that begins with an alias neither.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{files, read};

/// Names from the crate to a module or an item; the crate itself is empty.
pub(crate) type ItemPath = Vec<String>;

/// The source files of one crate, its tests left out, by the module that each is.
pub(crate) struct Sources {
    pub(crate) files: BTreeMap<ItemPath, PathBuf>,
    code: BTreeMap<ItemPath, String>,
    /// The module that a name of a module comes from.
    reexports: BTreeMap<(ItemPath, String), ItemPath>,
}

impl Sources {
    pub(crate) fn of(folder: &Path) -> Self {
        let mut sources =
            Self { files: BTreeMap::new(), code: BTreeMap::new(), reexports: BTreeMap::new() };
        for path in files(folder, ".rs").into_iter().filter(|path| !is_test(path)) {
            let module = module_of(path.strip_prefix(folder).unwrap());
            sources.code.insert(module.clone(), code_of(&path));
            sources.files.insert(module, path);
        }
        let mut reexports = BTreeMap::new();
        for (module, code) in &sources.code {
            for path in sources.used(module, code, true) {
                let (mut from, len) = sources.longest_module(&path);
                if let Some(name) = path.get(len) {
                    from.truncate(len);
                    reexports.insert((module.clone(), name.clone()), from);
                }
            }
        }
        sources.reexports = reexports;
        sources
    }

    /// The modules that the file of `module` imports from, however often.
    pub(crate) fn imports(&self, module: &ItemPath) -> Vec<ItemPath> {
        let code = &self.code[module];
        let mut paths = self.used(module, code, false);
        paths.extend(inline_paths(code).iter().filter_map(|path| self.absolute(module, path)));
        let mut found: Vec<_> = paths.iter().map(|path| self.resolve(path)).collect();
        found.retain(|found| found != module && !found.is_empty());
        found.sort();
        found.dedup();
        found
    }

    fn longest_module(&self, path: &[String]) -> (ItemPath, usize) {
        let len = (0..=path.len()).rev().find(|len| self.files.contains_key(&path[..*len]));
        let len = len.unwrap_or(0);
        (path[..len].to_vec(), len)
    }

    /// The module in which the item of `path` is defined, re-exports followed.
    fn resolve(&self, path: &[String]) -> ItemPath {
        let mut at = ItemPath::new();
        for name in path {
            let mut next = at.clone();
            next.push(name.clone());
            if self.files.contains_key(&next) {
                at = next;
                continue;
            }
            let mut seen = 0;
            while let Some(from) = self.reexports.get(&(at.clone(), name.clone())) {
                if *from == at || seen > 8 {
                    break;
                }
                at = from.clone();
                seen += 1;
            }
            break;
        }
        at
    }

    /// The paths of `use` declarations; of public ones alone, if `public`.
    fn used(&self, module: &ItemPath, code: &str, public: bool) -> Vec<ItemPath> {
        let mut paths = Vec::new();
        for (at, _) in code.match_indices("use ") {
            let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
            let is_public = line.starts_with("pub");
            if !is_public && (public || !line.is_empty()) {
                continue;
            }
            let tree = code[at + 4..].split(';').next().unwrap_or_default();
            let tree: String = tree.split_whitespace().collect::<Vec<_>>().join(" ");
            let mut expanded = Vec::new();
            expand("", &tree, &mut expanded);
            paths.extend(expanded.iter().filter_map(|path| self.absolute(module, path)));
        }
        paths
    }

    /// Returns the path from the crate on; `None`: it leads to another crate.
    fn absolute(&self, module: &ItemPath, path: &str) -> Option<ItemPath> {
        let mut names: Vec<&str> = path.split("::").map(str::trim).collect();
        let mut base = match names[0] {
            "crate" | "$crate" => ItemPath::new(),
            "self" | "super" => module.clone(),
            first => {
                let mut child = module.clone();
                child.push(first.to_owned());
                if !self.files.contains_key(&child) {
                    return None;
                }
                names.insert(0, "self");
                module.clone()
            }
        };
        for name in names {
            match name {
                "crate" | "$crate" | "self" => {}
                "super" => drop(base.pop()),
                name => base.push(name.to_owned()),
            }
        }
        Some(base)
    }
}

/// The code of a file without comments, and without the tests at its end.
fn code_of(path: &Path) -> String {
    let text = read(path);
    let tests = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test"];
    let end = tests.iter().filter_map(|start| text.find(start)).min().unwrap_or(text.len());
    text[..end]
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

fn is_test(path: &Path) -> bool {
    let name = path.display().to_string();
    ["/tests/", "tests.rs", "_tests/", "/conformance", "/fuzzing"]
        .iter()
        .any(|part| name.contains(part))
}

fn module_of(file: &Path) -> ItemPath {
    let mut names: ItemPath =
        file.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        names.pop();
    }
    names
}

/// Appends the paths of a `use` tree.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, body)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        if !path.is_empty() {
            paths.push(format!("{prefix}{path}"));
        }
        return;
    };
    let body = body.rsplit_once('}').map_or(body, |(body, _)| body);
    let (mut depth, mut start) = (0usize, 0);
    for (at, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&format!("{prefix}{head}"), &body[start..at], paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    expand(&format!("{prefix}{head}"), &body[start..], paths);
}

/// Paths that begin with `crate` or `super`, outside of `use` trees.
fn inline_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let is_path = |c: &char| c.is_alphanumeric() || *c == '_' || *c == ':';
            let path: String = code[at..].chars().take_while(is_path).collect();
            paths.push(path.trim_end_matches(':').to_owned());
        }
    }
    paths
}
