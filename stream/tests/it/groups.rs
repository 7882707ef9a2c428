//! Graphs that are cut into groups: the same results as in one process, over any transports, and an
//! error everywhere when one of them fails.

use std::fmt::Debug;
use std::path::Path;
use std::thread;
use std::time::Instant;

use margo::ult::{self, channel};
use margo::{ForwardRequest, Instance, ProviderHandle, Rpc};
use margo_stream::graph::{
    Blob, Collected, Graph, GraphDocument, GraphError, Outcome, Pane, ReplicaAt, Report, Run, Side,
    Window,
};

use crate::common::SOON;
use crate::process::{Process, role, say};

/// A group that another test has started, as a process of its own.
#[test]
fn process() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    let ["group", graph, name, file] = words[..] else { panic!("{role:?}") };
    let arguments = ["--group", name, file].map(str::to_owned);
    match results(graph, |graph| graph.run_from_args(arguments)) {
        Ok(results) => say(&results.join(";")),
        Err(error) => say(&format!("error: {error}")),
    }
}

fn lines(items: Vec<impl Debug>) -> Vec<String> {
    items.iter().map(|item| format!("{item:?}")).collect()
}

/// Builds a graph, has it run, and returns what its sinks have, as far as they are here.
fn results(
    name: &str,
    run: impl FnOnce(Graph) -> Result<Report, GraphError>,
) -> Result<Vec<String>, GraphError> {
    let graph = Graph::new();
    let parts = |at: ReplicaAt| (0..40_000u64).skip(at.index).step_by(at.count);
    match name {
        "squares" => {
            let numbers = graph.sources("read", 2, parts);
            let squares = numbers.farm("work", 3).map(|n| n * n);
            let sums = squares.stage("sum").sink(0, |sum, n| *sum += n);
            run(graph)?;
            Ok(lines(sums.take()))
        }
        "all_to_all" => {
            let left = graph.source("read", 0..40_000u64);
            let right = left.all_to_all(("left", 2), |left| left.key_by(|n| n % 10), ("right", 2));
            // Those of a key come to one replica, so there is one sum of each.
            let sums = right.fold(0, |sum, n| *sum += n).collect();
            run(graph)?;
            Ok(lines(sums.take()))
        }
        "windows" => {
            let panes = windows(&graph);
            run(graph)?;
            Ok(lines(panes.take()))
        }
        "copies" => {
            let copies = graph.source("read", 0..1000u64).broadcast("copies", 3);
            let sums = copies.sink(0, |sum, n| *sum += n);
            run(graph)?;
            Ok(lines(sums.take()))
        }
        "blobs" => {
            let seen = blobs(&graph);
            run(graph)?;
            Ok(lines(seen.take()))
        }
        "split" => {
            let sums = split(&graph);
            run(graph)?;
            Ok(lines(sums.take()))
        }
        "endless" => {
            let work = graph.source("read", 0u64..).stage("work").map(|n| n + 1);
            work.stage("sum").for_each(|n| {
                if n == 10_000 {
                    say("flows");
                }
            });
            run(graph)?;
            Ok(Vec::new())
        }
        "waits" => {
            // Until it is ended from outside: nobody sends anything.
            let (_own, never) = channel::bounded::<()>(0);
            waiting(&graph, never);
            run(graph)?;
            Ok(Vec::new())
        }
        "first" => {
            let first = graph.source("read", 0u64..).own("first", |io| {
                let first = io.recv()?;
                first.map_or(Ok(()), |first| Ok(io.emit(first)?))
            });
            let first = first.collect();
            run(graph)?;
            Ok(lines(first.take()))
        }
        _ => panic!("{name}"),
    }
}

fn waiting(graph: &Graph, never: channel::Receiver<()>) {
    let numbers = graph.generate("read", move |emit| {
        emit.emit(1u64)?;
        emit.flush()?;
        never.recv()?;
        Ok(())
    });
    numbers.stage("sum").for_each(|_| say("flows"));
}

fn split(graph: &Graph) -> Outcome<u64> {
    let numbers = graph.sources("read", 2, |at: ReplicaAt| (at.index as u64..40_000).step_by(2));
    let sides =
        numbers.map(|n| if n % 3 == 0 { Side::Left(n) } else { Side::Right(n.to_string()) });
    let (left, right) = sides.split("left", "right");
    let right = right.replicas(2).try_map(|n| n.parse::<u64>());
    left.merge("sum", right).sink(0, |sum, n| *sum += n)
}

fn windows(graph: &Graph) -> Collected<(u64, Pane<u64>)> {
    graph
        .sources("read", 2, |at: ReplicaAt| (0..40_000).skip(at.index).step_by(at.count))
        .watermarks(|n| *n, 10)
        .stage("between")
        .key_by(|n| n % 3)
        .farm("windows", 2)
        .window(Window::tumbling(1000), |n| *n)
        .fold(0, |sum, n| *sum += n)
        .collect()
}

/// Blobs go to a stage that keeps more of them than its group has credit for.
fn blobs(graph: &Graph) -> Collected<(u64, usize)> {
    // One of them has no bytes.
    let blob = |n: u64| (n, Blob::from(vec![n as u8; n as usize * 1000]));
    let blobs = graph.sources("read", 2, move |at: ReplicaAt| {
        (0..40).skip(at.index).step_by(at.count).map(blob)
    });
    let kept = blobs
        .watermarks(|(n, _)| *n, 0)
        .blob_stage("work")
        .replicas(3)
        .in_order(|(n, _)| (*n, ()))
        .fold(Kept::default(), |Kept(kept), item| {
            assert!(kept.last().is_none_or(|last| last.0 < item.0));
            kept.push(item);
        })
        .flat_map(|Kept(kept)| kept);
    let seen = kept.blob_stage("sum").map(|(n, blob)| {
        assert!(blob.iter().all(|byte| u64::from(*byte) == n));
        (n, blob.into_vec().len())
    });
    seen.collect()
}

/// Blobs that a replica keeps; none when it begins.
#[derive(Default)]
struct Kept(Vec<(u64, Blob)>);

impl Clone for Kept {
    fn clone(&self) -> Self {
        Self::default()
    }
}

fn endpoint(folder: &Path, name: &str, address: &str) -> String {
    let file = folder.join(name).display().to_string();
    format!(r#"{{ "name": "{name}", "address": "{address}", "file": "{file}" }}"#)
}

/// Two groups that read, by endpoints of their own of a third one that works, and a sink.
fn three_levels(folder: &Path, addresses: [&str; 3]) -> String {
    let [one, two, three] = addresses;
    let (a, b) = (endpoint(folder, "a", one), endpoint(folder, "b", two));
    let sink = endpoint(folder, "sink", three);
    format!(
        r#"{{ "groups": {{
            "G1a": {{ "stages": ["read[0]"], "via": {{ "G2": "a" }} }},
            "G1b": {{ "stages": ["read[1]"], "via": {{ "G2": "b" }}, "cpus": "0" }},
            "G2": {{ "stages": ["work"], "endpoints": [{a}, {b}], "credit_bytes": 65536 }},
            "G3": {{ "stages": ["sum"], "endpoints": [{sink}], "batch_items": 100 }}
        }} }}"#,
    )
}

/// Every pair of a left and a right worker is on both sides of the cut, and across it.
fn two_halves(folder: &Path, addresses: [&str; 2]) -> String {
    let (one, two) = (endpoint(folder, "1", addresses[0]), endpoint(folder, "2", addresses[1]));
    format!(
        r#"{{ "name": "halves", "groups": {{
            "G1": {{ "stages": ["read", "left[0]", "right[0]"], "endpoints": [{one}] }},
            "G2": {{ "stages": ["left[1]", "right[1]"], "endpoints": [{two}] }}
        }}, "channels": {{ "left->right": {{ "batch_bytes": 512 }} }} }}"#,
    )
}

fn in_a_row(folder: &Path, stages: &[&str], address: &str) -> String {
    let group = |(place, stage): (usize, &&str)| {
        let name = format!("G{}", place + 1);
        let endpoint = endpoint(folder, &name, address);
        format!(r#""{name}": {{ "stages": [{stage}], "endpoints": [{endpoint}] }}"#)
    };
    let groups: Vec<_> = stages.iter().enumerate().map(group).collect();
    format!(r#"{{ "start_within_msec": 30000, "groups": {{ {} }} }}"#, groups.join(", "))
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// Runs all groups in threads of this process, the last one first.
fn in_threads(graph: &'static str, document: &str) -> Vec<Result<Vec<String>, GraphError>> {
    let document = GraphDocument::from_json(document).unwrap();
    let groups = document.groups.keys().rev().map(|name| {
        let (name, document) = (name.clone(), document.clone());
        thread::spawn(move || results(graph, |graph| graph.run_group(&name, &document)))
    });
    let groups: Vec<_> = groups.collect();
    groups.into_iter().map(|group| group.join().unwrap()).collect()
}

/// Runs all groups as processes.
fn in_processes(graph: &str, file: &Path, document: &str) -> Vec<Process> {
    std::fs::write(file, document).unwrap();
    let names = GraphDocument::from_json(document).unwrap().groups.into_keys();
    let start = |name| format!("group {graph} {name} {}", file.display());
    names.map(|name: String| Process::start(module_path!(), &start(name))).collect()
}

/// Checks that a graph has the results that it has in one process.
fn check(graph: &'static str, document: impl Fn(&Path) -> String) {
    let expected = sorted(results(graph, Graph::run).unwrap());
    assert!(!expected.is_empty());
    let folder = tempfile::tempdir().unwrap();
    let document = document(folder.path());
    let found = in_threads(graph, &document).into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(sorted(found), expected, "{document}");
    let mut processes = in_processes(graph, &folder.path().join("graph.json"), &document);
    let said = processes.iter_mut().map(|process| process.hear().unwrap());
    let found = said.flat_map(|said| said.split(';').map(str::to_owned).collect::<Vec<_>>());
    let found = found.filter(|line| !line.is_empty()).collect();
    assert_eq!(sorted(found), expected, "{document}");
}

const SM: &str = "na+sm://";
const TCP: &str = "na+tcp://127.0.0.1";
const OFI: &str = "ofi+tcp://127.0.0.1";

/// Where the machine has libfabric.
fn has_ofi() -> bool {
    let Ok(instance) = Instance::builder(OFI).start() else { return false };
    instance.finalize_and_wait().unwrap();
    true
}

#[test]
fn three_groups_have_the_results_of_one_process_over_any_transports() {
    for addresses in [[SM; 3], [TCP; 3], [SM, TCP, TCP]] {
        check("squares", |folder| three_levels(folder, addresses));
    }
    if has_ofi() {
        check("squares", |folder| three_levels(folder, [SM, OFI, TCP]));
    }
}

#[test]
fn an_all_to_all_in_two_halves_has_the_results_of_one_process() {
    for addresses in [[SM; 2], [TCP; 2], [SM, TCP]] {
        check("all_to_all", |folder| two_halves(folder, addresses));
    }
    if has_ofi() {
        check("all_to_all", |folder| two_halves(folder, [OFI, SM]));
    }
}

#[test]
fn a_farm_is_cut_across_its_replicas() {
    let stages = [r#""read[0]""#, r#""read[1]", "work[0]""#, r#""work[1..3]", "sum""#];
    check("squares", |folder| in_a_row(folder, &stages, SM));
}

#[test]
fn windows_of_event_time_are_cut() {
    let stages = [r#""read""#, r#""between", "windows[1]""#, r#""windows[0]""#];
    check("windows", |folder| in_a_row(folder, &stages, SM));
}

#[test]
fn blobs_are_fetched_from_where_they_are_and_kept_for_as_long_as_one_likes() {
    check("blobs", |folder| three_levels(folder, ["na+sm://", "na+tcp://127.0.0.1", "na+sm://"]));
}

#[test]
fn both_sides_of_a_split_are_in_other_groups() {
    let stages = [r#""read""#, r#""left", "right[0]""#, r#""right[1]""#, r#""sum""#];
    check("split", |folder| in_a_row(folder, &stages, "na+sm://"));
}

#[test]
fn each_replica_gets_its_copy_wherever_it_is() {
    let stages = [r#""read", "copies[0]""#, r#""copies[1..3]""#];
    check("copies", |folder| in_a_row(folder, &stages, TCP));
}

#[test]
fn a_source_ends_when_no_other_group_takes_its_items() {
    let folder = tempfile::tempdir().unwrap();
    let document = in_a_row(folder.path(), &[r#""read""#, r#""first""#], SM);
    let [first, read] = &in_threads("first", &document)[..] else { panic!() };
    assert_eq!(first.as_ref().unwrap(), &["0"]);
    assert!(read.as_ref().unwrap().is_empty());
}

#[test]
fn a_group_that_is_killed_ends_the_others_with_an_error() {
    for address in [SM, TCP] {
        for victim in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            let stages = [r#""read""#, r#""work""#, r#""sum""#];
            let document = in_a_row(folder.path(), &stages, address);
            let file = folder.path().join("graph.json");
            let mut groups = in_processes("endless", &file, &document);
            assert_eq!(groups[2].hear().as_deref(), Some("flows"));
            groups.remove(victim).kill();
            for group in &mut groups {
                let said = group.hear().unwrap();
                // Those beside it name it, and the others name these.
                assert!(said.starts_with("error: stage "), "{said}");
                assert!(said.contains(", edge ") && said.contains(", group `G"), "{said}");
            }
        }
    }
}

#[test]
fn a_source_that_waits_learns_that_another_group_is_killed() {
    for address in [SM, TCP] {
        let folder = tempfile::tempdir().unwrap();
        let document = in_a_row(folder.path(), &[r#""read""#, r#""sum""#], address);
        let file = folder.path().join("graph.json");
        let groups = in_processes("waits", &file, &document);
        let [mut read, mut sum] = <[_; 2]>::try_from(groups).ok().unwrap();
        assert_eq!(sum.hear().as_deref(), Some("flows"));
        sum.kill();
        let said = read.hear().unwrap();
        assert!(said.starts_with("error: stage `read`, edge read->sum, group `G2`: "), "{said}");
    }
}

#[test]
fn a_stage_that_panics_ends_all_groups_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let document = in_a_row(folder.path(), &[r#""read""#, r#""work""#], SM);
    let document = GraphDocument::from_json(&document).unwrap();
    let group = |name: &'static str| {
        let document = document.clone();
        thread::spawn(move || {
            let graph = Graph::new();
            let work = graph.source("read", 0u64..).stage("work");
            work.for_each(|n| assert!(n < 1000, "too many"));
            graph.run_group(name, &document).unwrap_err()
        })
    };
    let [read, work] = ["G1", "G2"].map(group).map(|group| group.join().unwrap());
    let GraphError::Panicked { stage, .. } = work else { panic!("{work}") };
    assert_eq!(&*stage, "work");
    let GraphError::Peer { stage, edge, group, cause } = read else { panic!("{read}") };
    assert_eq!((&*stage, &*edge, &*group), ("read", "read->work", "G2"));
    assert!(cause.to_string().contains("stage `work`, replica 0: panicked: too many"), "{cause}");
}

#[test]
fn a_group_is_refused_while_it_runs_already() {
    let folder = tempfile::tempdir().unwrap();
    let text = in_a_row(folder.path(), &[r#""read""#, r#""sum""#], SM);
    let document = GraphDocument::from_json(&text).unwrap();
    let (goes_on, may_end) = channel::bounded::<()>(0);
    let (says, flows) = channel::unbounded();
    let run = move |name: &'static str, document: GraphDocument| {
        let (may_end, says) = (may_end.clone(), says.clone());
        thread::spawn(move || {
            let graph = Graph::new();
            let numbers = graph.generate("read", move |emit| {
                emit.emit(1u64)?;
                emit.flush()?;
                let _ = may_end.recv();
                Ok(emit.emit(2)?)
            });
            let sum = numbers.stage("sum").sink(0, move |sum, n| {
                let _ = says.send(());
                *sum += n;
            });
            graph.run_group(name, &document).map(|_| sum.take())
        })
    };
    let groups = ["G1", "G2"].map(|name| run(name, document.clone()));
    flows.recv().unwrap();
    // One that listens, by its lock; one that only sends, by the names of its senders.
    let second = run("G2", document.clone()).join().unwrap();
    assert!(matches!(second, Err(GraphError::Endpoint { .. })), "{second:?}");
    let mut impatient = document;
    impatient.start_within_msec = Some(200);
    impatient.groups.get_mut("G1").unwrap().endpoints.clear();
    let second = run("G1", impatient).join().unwrap();
    let Err(GraphError::Peer { group, .. }) = &second else { panic!("{second:?}") };
    assert_eq!(group, "G2");
    drop(goes_on);
    let [read, sum] = groups.map(|group| group.join().unwrap());
    assert!(read.unwrap().is_empty());
    assert_eq!(sum.unwrap(), [3]);
}

#[test]
fn types_that_differ_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let document = in_a_row(folder.path(), &[r#""read""#, r#""sum""#], SM);
    let document = GraphDocument::from_json(&document).unwrap();
    let own = document.clone();
    let sum = thread::spawn(move || {
        let graph = Graph::new();
        graph.source("read", [1u64]).stage("sum").for_each(drop);
        graph.run_group("G2", &own)
    });
    let graph = Graph::new();
    graph.source("read", ["one".to_owned()]).stage("sum").for_each(drop);
    let error = graph.run_group("G1", &document).unwrap_err();
    assert!(error.to_string().contains("another shape"), "{error}");
    // The one that is right ends the stream.
    let graph = Graph::new();
    graph.source("read", [1u64]).stage("sum").for_each(drop);
    graph.run_group("G1", &document).unwrap();
    sum.join().unwrap().unwrap();
}

#[test]
fn instances_of_the_program_serve_a_group() {
    let folder = tempfile::tempdir().unwrap();
    let document = in_a_row(folder.path(), &[r#""read""#, r#""work", "sum""#], TCP);
    let document = GraphDocument::from_json(&document).unwrap();
    let own = document.clone();
    let read = thread::spawn(move || results("squares", |graph| graph.run_group("G1", &own)));
    let instance = Instance::builder(TCP).start().unwrap();
    let file = folder.path().join("G2");
    let file = margo::AddressFile::write(file, instance.self_addr().uri()).unwrap();
    let pool = instance.layout().rpc_pool();
    let sums = results("squares", |graph| {
        let run = graph.start_group("G2", &document, &[pool], std::slice::from_ref(&instance));
        run.and_then(Run::join)
    });
    assert_eq!(sums.unwrap(), results("squares", Graph::run).unwrap());
    assert!(read.join().unwrap().unwrap().is_empty());
    drop(file);
    instance.finalize_and_wait().unwrap();
}

#[test]
fn calls_that_wait_for_the_end_of_a_group_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let document = in_a_row(folder.path(), &[r#""read""#, r#""sum""#], SM);
    let document = GraphDocument::from_json(&document).unwrap();
    let instance = Instance::builder(SM).start().unwrap();
    let graph = Graph::new();
    graph.source("read", 0..9u64).stage("sum").for_each(drop);
    let pool = instance.layout().rpc_pool();
    let run = graph.start_group("G2", &document, &[pool], std::slice::from_ref(&instance)).unwrap();
    const LIFE: Rpc<(), Result<(), String>> = Rpc::new("margo_stream.graph.G2.life");
    let target = ProviderHandle::from(instance.self_addr());
    let call = |_| instance.rpc(LIFE, &target, &()).start().unwrap();
    let mut calls: Vec<_> = (0..20).map(call).collect();
    // There are two groups, so two may wait.
    while calls.len() > 2 {
        let ready: Vec<_> = calls.iter().map(ForwardRequest::ready).collect();
        let answered = ult::wait_any(&ready, Some(Instant::now() + SOON)).unwrap();
        calls.swap_remove(answered).wait().unwrap().unwrap();
    }
    run.canceler().cancel();
    for call in calls {
        assert_eq!(call.wait().unwrap().unwrap_err(), "group `G2`: the run was cancelled");
    }
    assert!(matches!(run.join(), Err(GraphError::Cancelled)));
    instance.finalize_and_wait().unwrap();
}

#[test]
fn arguments_of_the_programs_own_are_taken_out() {
    for (all, own, run) in [
        ("", "", ""),
        ("a b", "a b", ""),
        ("a --group G1 f", "a", "--group G1 f"),
        // As a launcher adds them.
        ("-- a --group x y --group G1 f", "-- a --group x y", "--group G1 f"),
        ("a --group G1 f -- b --group", "a b --group", "--group G1 f"),
        ("a -- b", "a b", ""),
        ("--plan f", "", "--plan f"),
        ("--svg --plan f --svg o", "--svg", "--plan f --svg o"),
        ("a --plan f --svg o -- --plan", "a --plan", "--plan f --svg o"),
        ("--group G1", "--group G1", ""),
    ] {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(Graph::split_args(words(all)), (words(own), words(run)), "{all}");
    }
}

#[test]
fn arguments_and_groups_that_are_wrong_are_named() {
    let refused = |arguments: &[&str]| {
        let arguments = arguments.iter().map(|&word| word.to_owned());
        results("squares", |graph| graph.run_from_args(arguments)).unwrap_err().to_string()
    };
    assert!(refused(&["--group", "G1"]).contains("--group NAME FILE"));
    assert!(refused(&["--group", "G1", "/nowhere/at/all"]).contains("/nowhere/at/all"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.json");
    let text = three_levels(folder.path(), [SM; 3]);
    std::fs::write(&file, &text).unwrap();
    let file = file.to_str().unwrap();
    assert!(refused(&["--group", "G1", file]).contains("groups: G1a, G1b, G2, G3"));
    std::fs::write(file, text.replace(r#""G2": "b""#, r#""G2": "c""#)).unwrap();
    let error = refused(&["--group", "G1a", file]);
    assert!(error.contains("groups.G1b.via.G2: it has no endpoint \"c\""), "{error}");
}
