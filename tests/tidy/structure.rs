//! The structure of each crate, the number of test programs, and names that must exist.
//!
//! The numbers as a table: `cargo test -p margo --test tidy numbers -- --nocapture`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::imports::Sources;
use super::{complain, files, only_falls, read, root};

/// Files at the top of a crate's sources, `lib.rs` among them.
const FLAT_FILES_MAX: usize = 8;

/// Files that import each other in a circle.
const CIRCLE_MAX: usize = 6;

/// Test programs of the whole workspace. Each is linked on its own, which takes longer than most
/// tests run.
const TEST_PROGRAMS_MAX: usize = 40;

/// The limits of a crate's structure. Where one is above the goal it may only fall.
struct Limits {
    /// The folder of the crate.
    path: &'static str,
    /// Folders, lowest first: code of a folder imports from folders before its own. Files at the
    /// top of the crate stand here by their name without `.rs`. In place of a folder may stand all
    /// that it contains. Empty: the crate has no folders.
    order: &'static str,
    /// Files at the top.
    flat: usize,
    /// Files of the largest circle of imports.
    circle: usize,
    /// Folders, and files at the top, in circles that go across folders.
    across: usize,
    /// Pairs of a file and a higher folder that it imports from.
    against: usize,
}

/// The goals.
const fn goals(path: &'static str, order: &'static str) -> Limits {
    Limits { path, order, flat: FLAT_FILES_MAX, circle: CIRCLE_MAX, across: 0, against: 0 }
}

#[rustfmt::skip]
const CRATES: &[Limits] = &[
    goals(".", "error rpc support capability layout observe operation admission memory elastic \
         timer progress instance dispatch polling origin serving bulk reshaping report providers \
         api service lifecycle admin daemon"),
    goals("benches", "base process floors rows scale plot catalog report cli"),
    goals("cli", "support svg args security serve services config demo info kv new ping control \
         top trace stream usage"),
    goals("cli/template-name", ""),
    goals("config", "report read document resolve parse child samples schema fuzzing"),
    goals("device", "raw error level_zero driver pinned memory copies fake"),
    goals("examples/axum_gateway", ""),
    goals("hg", "base memory proc wire options bulk ops core overflow origin requests transfer \
         progress fuzzing tests"),
    goals("log", ""),
    goals("loom-tests", ""),
    goals("macros", ""),
    goals("mercury-plugin", "c settings class callbacks"),
    goals("na", "auto_sm registry fuzz_addresses"),
    goals("na/core", "wire_doc base address limits group memory message options endpoint matching \
         loopback hosts conformance"),
    goals("na/kept-signals", ""),
    goals("na/ofi", "providers fabrics buffers state traffic endpoint wire_doc fake fake_fabric \
         fake_tests"),
    goals("na/ofi-sys", ""),
    goals("na/sim", "base protocol cluster builder endpoint"),
    goals("na/sm", "address mapping wake link transfer peers state progress api \
         fuzzing wire_doc"),
    goals("na/tcp", "wire system stream peers state progress api fuzzing wire_doc"),
    goals("na/tls", "trust record handshake doorkeeper fuzzing tests"),
    goals("na/ucx", "wire addressing operations ucp state traffic connections poll endpoint \
         wire_doc"),
    goals("na/ucx-sys", ""),
    goals("prim", "sync lines panic glob prefetch claim parts lock shared process"),
    goals("providers/blob", "error name rpc config store provider client"),
    goals("providers/echo", ""),
    goals("providers/kv", "error model members store_config engine config rpc steps provider \
         client"),
    goals("stream", "base error wire spec sender receiver graph"),
    goals("ult", "topology base trace stack engine/listener engine/monitor_stop engine/pulse \
         engine/helpers engine/model engine/contain engine/error engine/xstream engine/waiting \
         engine/unit engine/run engine/pool wait spawn time runtime observe"),
];

/// The structure of a crate.
struct Structure {
    limits: &'static Limits,
    sources: Sources,
    /// Names in `src`, without `.rs`, of folders and of files at the top.
    folders: BTreeSet<String>,
    flat: BTreeSet<String>,
    /// Names of all that is to stand in the order.
    parts: BTreeSet<String>,
    /// The largest first.
    circles: Vec<Vec<String>>,
    across: Vec<String>,
    against: Vec<String>,
}

static STRUCTURES: LazyLock<Vec<Structure>> =
    LazyLock::new(|| CRATES.iter().map(Structure::of).collect());

impl Structure {
    fn of(limits: &'static Limits) -> Self {
        let folder = root().join(limits.path).join("src");
        let sources = Sources::of(&folder);
        let order: Vec<&str> = limits.order.split_whitespace().collect();
        let is_split = |name: &str| order.iter().any(|part| is_within(part, name));
        let (mut folders, mut flat, mut parts) = Default::default();
        names_in(&folder, "", &is_split, &mut folders, &mut parts);
        for name in entries(&folder).iter().filter(|path| path.is_file()) {
            BTreeSet::insert(&mut flat, stem(name));
        }
        let rank = |part: &str| order.iter().position(|name| *name == part);
        let part_of = |module: &[String]| {
            let names = (1..=module.len()).rev().map(|len| module[..len].join("/"));
            names.into_iter().find(|name| rank(name).is_some()).unwrap_or(module[0].clone())
        };
        let (mut of_files, mut of_parts) = (Graph::new(), Graph::new());
        let mut against = Vec::new();
        for module in sources.modules() {
            let imports = sources.imports(module);
            let own = part_of(module);
            let others: BTreeSet<_> = imports.iter().map(|used| part_of(used)).collect();
            let higher = others.iter().filter(|part| rank(part) > rank(&own));
            against.extend(higher.map(|part| format!("{}: {part}", module.join("/"))));
            let others = others.into_iter().filter(|part| *part != own);
            of_parts.entry(own.clone()).or_default().extend(others);
            of_files.insert(module.join("/"), imports.iter().map(|used| used.join("/")).collect());
        }
        let mut across = circles(&of_parts);
        across.retain(|circle| circle.iter().any(|part| folders.contains(part)));
        let (circles, across) = (circles(&of_files), across.concat());
        Self { limits, sources, folders, flat, parts, circles, across, against }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

fn is_within(part: &str, folder: &str) -> bool {
    part.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The names of folders, and of all that has a place in the order, which a folder that is split has
/// not itself.
fn names_in(
    folder: &Path,
    prefix: &str,
    is_split: &impl Fn(&str) -> bool,
    folders: &mut BTreeSet<String>,
    parts: &mut BTreeSet<String>,
) {
    for path in entries(folder) {
        let name = format!("{prefix}{}", stem(&path));
        if path.is_dir() {
            folders.insert(name.clone());
        }
        if is_split(&name) {
            names_in(&path, &format!("{name}/"), is_split, folders, parts);
        } else if !["lib", "main", "mod"].contains(&&*stem(&path)) {
            parts.insert(name);
        }
    }
}

/// Names, and those that each of them imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Names that import each other in circles: the largest circle first.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&str, _> =
        graph.keys().map(|from| (from.as_str(), reached(graph, from))).collect();
    let with = |(from, to): (&&str, &BTreeSet<&str>)| -> Vec<String> {
        let back = to.iter().filter(|to| reach.get(*to).is_some_and(|back| back.contains(from)));
        back.map(|name| (*name).to_owned()).collect()
    };
    let circles: BTreeSet<_> = reach.iter().map(with).filter(|circle| circle.len() > 1).collect();
    let mut circles: Vec<_> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// All that `from` imports, and all that those do; itself, if it is among them.
fn reached<'a>(graph: &'a Graph, from: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(name) = open.pop() {
        let imports = graph.get(name).into_iter().flatten();
        open.extend(imports.map(String::as_str).filter(|import| found.insert(*import)));
    }
    found
}

/// Complains about each crate that has not what its limit says, as `found` finds it.
fn each_follows<'a>(
    what: &str,
    goal: usize,
    found: impl Fn(&'a Structure) -> (usize, Vec<String>),
) {
    let complaint = |structure: &'a Structure| {
        let (max, found) = found(structure);
        let what = format!("{what} in {}", structure.limits.path);
        only_falls(&what, &found, max, goal)
    };
    complain(STRUCTURES.iter().filter_map(complaint).collect());
}

#[test]
fn imports_follow_the_order_of_folders() {
    each_follows("imports against the order", 0, |one| (one.limits.against, one.against.clone()));
}

#[test]
fn circles_of_files_are_small() {
    each_follows("files in the largest circle", CIRCLE_MAX, |one| {
        (one.limits.circle, one.circles.first().cloned().unwrap_or_default())
    });
}

#[test]
fn no_circle_goes_across_folders() {
    each_follows("parts in circles across folders", 0, |one| {
        (one.limits.across, one.across.clone())
    });
}

#[test]
fn few_files_are_at_the_top() {
    each_follows("files at the top", FLAT_FILES_MAX, |one| {
        (one.limits.flat, one.flat.iter().cloned().collect())
    });
}

#[test]
fn every_folder_has_its_place_in_the_order() {
    let mut complaints = Vec::new();
    for Structure { limits, folders, parts, .. } in STRUCTURES.iter() {
        let sources = root().join(limits.path).join("src");
        for name in folders {
            if !read(&sources.join(name).join("mod.rs")).starts_with("//!") {
                complaints.push(format!("{}/{name}: mod.rs does not say what it is", limits.path));
            }
        }
        if folders.is_empty() {
            continue;
        }
        let ordered = limits.order.split_whitespace().map(str::to_owned).collect();
        for name in parts.symmetric_difference(&ordered) {
            complaints.push(format!("{}/{name}: is it new, or gone?", limits.path));
        }
    }
    complain(complaints);
}

#[test]
fn every_crate_has_its_limits() {
    let manifest = read(&root().join("Cargo.toml"));
    let members = manifest.split_once("members = [").unwrap().1.split(']').next().unwrap();
    let members = members.split('"').skip(1).step_by(2).chain(["."]).collect::<BTreeSet<_>>();
    let limited = CRATES.iter().map(|limits| limits.path).collect();
    complain(members.symmetric_difference(&limited).map(|path| (*path).to_owned()).collect());
}

/// Prints them; the other tests check them.
#[test]
fn the_numbers_of_the_structure() {
    println!("lines of code without comments and tests; files at the top; sizes of circles of");
    println!("files; parts in circles across folders; imports against the order; names that the");
    println!("crate exports; test programs\n");
    println!("crate             code  flat circle across against names tests");
    let mut sum = 0;
    for one in STRUCTURES.iter() {
        let Structure { limits, sources, flat, circles, across, against, .. } = one;
        let (path, code, names) = (limits.path, sources.lines(), sources.exports());
        let tests = test_programs(&root().join(path)).len();
        let (flat, circle) = (flat.len(), circles.first().map_or(1, Vec::len));
        let (across, against) = (across.len(), against.len());
        println!(
            "{path:<16}{code:>6}{flat:>6}{circle:>7}{across:>7}{against:>8}{names:>6}{tests:>6}"
        );
        for circle in circles.iter().filter(|circle| circle.len() > CIRCLE_MAX) {
            println!("    circle: {}", circle.join(" "));
        }
        sum += code;
    }
    println!("{:<16}{sum:>6}", "together");
    println!("methods of Instance: {}", STRUCTURES[0].sources.methods("Instance"));
}

/// The test programs of the package in that folder.
fn test_programs(package: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(package.join("tests")).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_program = |path: &PathBuf| {
        path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").exists()
    };
    paths.filter(is_program).collect()
}

/// Those that do not need the process for themselves are modules of `it`.
#[test]
fn test_programs_are_few() {
    let manifests = files(&root(), "Cargo.toml");
    let programs = manifests.iter().flat_map(|manifest| test_programs(manifest.parent().unwrap()));
    let programs: Vec<_> = programs.map(|path| path.display().to_string()).collect();
    let complaint = only_falls("test programs", &programs, TEST_PROGRAMS_MAX, TEST_PROGRAMS_MAX);
    complain(complaint.into_iter().collect());
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
