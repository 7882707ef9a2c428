//! The imports of a source file, as far as its text shows them.
//!
//! Names of macros, methods and fields are not followed; a path that begins with an alias neither.

use std::collections::BTreeMap;
use std::path::Path;

use super::{files, read};

/// Names from the crate to a module or an item; the crate itself is empty.
pub(crate) type ItemPath = Vec<String>;

/// The source files of one crate, its tests left out, by the module that each is.
pub(crate) struct Sources {
    code: BTreeMap<ItemPath, String>,
    /// The module that a name of a module comes from.
    reexports: BTreeMap<(ItemPath, String), ItemPath>,
}

impl Sources {
    pub(crate) fn of(folder: &Path) -> Self {
        let (mut code, mut tests) = (BTreeMap::new(), Vec::new());
        for path in files(folder, ".rs") {
            let module = module_of(path.strip_prefix(folder).unwrap());
            let (of_file, tests_of_file) = code_and_tests(&read(&path));
            let below = |name: String| module.iter().cloned().chain([name]).collect();
            tests.extend(tests_of_file.into_iter().map(below));
            code.insert(module, of_file);
        }
        tests.push(vec!["conformance".to_owned()]);
        code.retain(|module: &ItemPath, _| !tests.iter().any(|tests| module.starts_with(tests)));
        let mut sources = Self { code, reexports: BTreeMap::new() };
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

    /// All modules but the crate itself.
    pub(crate) fn modules(&self) -> impl Iterator<Item = &ItemPath> {
        self.code.keys().filter(|module| !module.is_empty())
    }

    /// Lines of code, without comments and tests.
    pub(crate) fn lines(&self) -> usize {
        self.code
            .values()
            .flat_map(|code| code.lines())
            .filter(|line| !line.trim().is_empty())
            .count()
    }

    /// Names that the crate exports at its top.
    pub(crate) fn exports(&self) -> usize {
        let code = &self.code[&ItemPath::new()];
        let kinds = ["mod", "fn", "struct", "enum", "trait", "type", "const", "static"];
        let is_item = |line: &&str| {
            let kind = line.strip_prefix("pub ").and_then(|rest| rest.split(' ').next());
            kind.is_some_and(|kind| kinds.contains(&kind))
        };
        let used = use_trees(code).filter(|(public, _)| *public == "pub");
        let mut names = Vec::new();
        used.for_each(|(_, tree)| expand("", &tree, &mut names));
        names.len() + code.lines().filter(is_item).count()
    }

    /// Public methods in the `impl` blocks of a type.
    pub(crate) fn methods(&self, of: &str) -> usize {
        let start = format!("\nimpl {of} {{\n");
        let blocks = self.code.values().flat_map(|code| code.split(&start).skip(1));
        let lines = blocks.flat_map(|block| block.split("\n}").next().unwrap().lines());
        lines.filter(|line| line.starts_with("    pub ") && line.contains("fn ")).count()
    }

    /// The modules that the file of `module` imports from, however often.
    pub(crate) fn imports(&self, module: &ItemPath) -> Vec<ItemPath> {
        let code = &self.code[module];
        // A name that it re-exports is imported by those that use it.
        let mut paths = self.used(module, code, false);
        paths.extend(inline_paths(code).iter().filter_map(|path| self.absolute(module, path)));
        let mut found: Vec<_> = paths.iter().map(|path| self.resolve(path)).collect();
        found.retain(|found| found != module && !found.is_empty());
        found.sort();
        found.dedup();
        found
    }

    fn longest_module(&self, path: &[String]) -> (ItemPath, usize) {
        let len = (0..=path.len()).rev().find(|len| self.code.contains_key(&path[..*len]));
        let len = len.unwrap_or(0);
        (path[..len].to_vec(), len)
    }

    /// The module in which the item of `path` is defined, re-exports followed.
    fn resolve(&self, path: &[String]) -> ItemPath {
        let mut at = ItemPath::new();
        for name in path {
            let mut next = at.clone();
            next.push(name.clone());
            if self.code.contains_key(&next) {
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

    /// The paths of the `use` declarations that are `public`, or of those that are not.
    fn used(&self, module: &ItemPath, code: &str, public: bool) -> Vec<ItemPath> {
        let mut paths = Vec::new();
        for (visibility, tree) in use_trees(code) {
            if public == visibility.is_empty() {
                continue;
            }
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
                if !self.code.contains_key(&child) {
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

/// The visibility and the tree of each `use` declaration.
fn use_trees(code: &str) -> impl Iterator<Item = (&str, String)> {
    code.match_indices("use ").filter_map(|(at, _)| {
        let visibility = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        let tree = code[at + 4..].split(';').next().unwrap_or_default();
        let tree = tree.split_whitespace().collect::<Vec<_>>().join(" ");
        (visibility.is_empty() || visibility.starts_with("pub")).then_some((visibility, tree))
    })
}

/// The code of a file without comments and without what is there for tests alone, and the names of
/// the modules that are.
fn code_and_tests(text: &str) -> (String, Vec<String>) {
    let (mut code, mut tests) = (String::new(), Vec::new());
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    while let Some(line) = lines.next() {
        if !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test") {
            code += line;
            code.push('\n');
            continue;
        }
        let item = lines.by_ref().find(|line| !line.starts_with('#')).unwrap_or_default();
        let module =
            item.split_once("mod ").and_then(|(_, name)| name.trim_end().strip_suffix(';'));
        tests.extend(module.map(str::to_owned));
        if item.trim_end().ends_with('{') {
            lines.by_ref().find(|line| line.starts_with('}'));
        }
    }
    (code, tests)
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
