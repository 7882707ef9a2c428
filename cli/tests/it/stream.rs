//! `margo stream`: groups that are started, watched and ended together, and plans.
//!
//! The program of the groups is this one: a shell hands the arguments that the launcher adds to the
//! test [`process`] by a variable.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use crate::common::{self, Ended, Running, children, margo, run, until, wait_for_end};
use margo_stream::graph::Graph;
use rustix::process::{Pid, Signal};

/// The variable with the arguments of such a process: the graph, and those of a group.
const ARGUMENTS: &str = "MARGO_TEST_STREAM_ARGUMENTS";

/// A group that another test has had started.
#[test]
fn process() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let words: Vec<String> = arguments.split('\t').map(str::to_owned).collect();
    if let Err(error) = graph(&words[0], words[1..].to_vec()) {
        eprintln!("it says {error}");
        std::process::exit(3);
    }
}

fn say(line: &str) {
    println!("\nsay {line}");
    std::io::stdout().flush().unwrap();
}

fn graph(name: &str, arguments: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
    let graph = Graph::new();
    match name {
        "squares" => {
            let parts = |at: margo_stream::graph::ReplicaAt| (0..1000u64).skip(at.index).step_by(2);
            let squares = graph.sources("read", 2, parts).farm("work", 2).map(|n| n * n);
            let sums = squares.stage("sum").sink(0, |sum, n| *sum += n);
            graph.run_from_args(arguments)?;
            sums.take().iter().for_each(|sum| say(&format!("sum {sum}")));
        }
        "endless" | "prints" => {
            let again = name == "prints";
            let work = graph.source("read", 0u64..).stage("work").map(|n| n + 1);
            work.stage("sum").for_each(move |n| {
                if n == 10_000 || (again && n % 10_000 == 0) {
                    say("flows");
                }
            });
            graph.run_from_args(arguments)?;
        }
        "fails" => {
            let work = graph.source("read", 0u64..).stage("work");
            let work = work.try_map(|n| match n {
                10_000 => Err("ten thousand is too much"),
                n => Ok(n),
            });
            work.stage("sum").for_each(drop);
            graph.run_from_args(arguments)?;
        }
        "talks" => {
            print!("{}", "x".repeat(100_000));
            println!("\n\u{1e}{{\"failed\":{{\"why\":\"no news\",\"peer\":null}}}}");
            eprint!("begun");
            let numbers = graph.source("read", 0..10u64);
            numbers.stage("work").stage("sum").for_each(drop);
            graph.run_from_args(arguments)?;
        }
        "pair" => {
            let count = graph.source("read", 0..10u64).stage("work").sink(0, |sum, _| *sum += 1);
            graph.run_from_args(arguments)?;
            count.take().iter().for_each(|count: &u64| say(&count.to_string()));
        }
        "wrong" => {
            let _ = graph.source("read", 0..9u64);
            graph.run_from_args(arguments)?;
        }
        _ => panic!("{name}"),
    }
    Ok(())
}

/// The words of a program that runs such a graph.
fn program(graph: &str) -> Vec<String> {
    let own = std::env::current_exe().unwrap().display().to_string();
    let script = format!(
        "export {ARGUMENTS}=$(printf '{graph}'; printf '\\t%s' \"$@\")
         exec \"$0\" --exact stream::process --nocapture"
    );
    ["sh", "-c", &script, &own].map(str::to_owned).to_vec()
}

/// A document of three groups, one behind the other: `more` is in front of them, and `of_work` in
/// the second.
fn document(temp: &Path, graph: &str, more: &str, of_work: &str) {
    let endpoint = |name: &str| {
        let file = temp.join(name).display().to_string();
        let metrics = r#"{ "remote": true, "listen": "127.0.0.1:0" }"#;
        let endpoint = format!(r#""address": "na+sm://", "file": "{file}", "metrics": {metrics}"#);
        format!(r#""endpoints": [{{ {endpoint} }}]"#)
    };
    let program = serde_json::to_string(&program(graph)).unwrap();
    let (work, sum) = (endpoint("work"), endpoint("sum"));
    let text = format!(
        r#"{{ "program": {program}, "start_within_msec": 30000, {more} "groups": {{
            "G1": {{ "stages": ["read"] }},
            "G2": {{ "stages": ["work"], {of_work} {work} }},
            "G3": {{ "stages": ["sum"], {sum} }}
        }} }}"#
    );
    std::fs::write(temp.join("graph.json"), text).unwrap();
}

/// Groups on addresses that other hosts reach, each run with a secret of its own.
#[test]
fn groups_of_a_run_know_each_other_by_a_fresh_secret() {
    let temp = tempfile::tempdir().unwrap();
    let secret = r#""security": { "mode": "cluster_secret" },"#;
    for (security, status) in [(secret, 0), ("", 1)] {
        document(temp.path(), "squares", security, "");
        let path = temp.path().join("graph.json");
        let text =
            std::fs::read_to_string(&path).unwrap().replace("na+sm://", "na+tcp://0.0.0.0:0");
        std::fs::write(&path, text).unwrap();
        let ended = stream(temp.path(), &["run", "graph.json"]).expect(status);
        let said = match status {
            0 => ended.stdout.contains("say sum"),
            _ => ended.stderr.contains("nothing says who may connect"),
        };
        assert!(said, "{ended:#?}");
        let left = common::entries(temp.path());
        assert!(left.iter().all(|name| !name.ends_with(".secret")), "{left:?}");
    }
}

fn stream(temp: &Path, args: &[&str]) -> Ended {
    run(margo(temp).arg("stream").args(args), "")
}

/// A launcher whose groups have begun to work.
struct Launched {
    running: Running,
    groups: Vec<Pid>,
    stdout: BufReader<ChildStdout>,
}

impl Launched {
    fn of(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running::new(child);
        let mut stdout = BufReader::new(running.child.stdout.take().unwrap());
        let flows = |line: &str| line.starts_with("G3 | say flows");
        assert!(stdout.by_ref().lines().any(|line| flows(&line.unwrap())), "it has ended");
        let groups = children(running.pid());
        assert_eq!(groups.len(), 3);
        Self { running, groups, stdout }
    }

    fn start(temp: &Path) -> Self {
        document(temp, "endless", "", "");
        Self::of(margo(temp).args(["stream", "run", "graph.json"]))
    }

    /// The child that runs a group.
    fn group(&self, name: &str) -> Pid {
        let environ = |pid: &Pid| std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid()));
        let words = format!("\t--group\t{name}\t");
        let is_it = |pid: &&Pid| String::from_utf8_lossy(&environ(pid).unwrap()).contains(&words);
        *self.groups.iter().find(is_it).unwrap()
    }

    /// Waits until it and all groups have ended.
    fn ended(self) -> Ended {
        let ended = common::ended(self.running);
        self.groups.into_iter().for_each(wait_for_end);
        ended
    }
}

#[test]
fn groups_run_together_and_are_summed_up() {
    let temp = tempfile::tempdir().unwrap();
    document(temp.path(), "squares", "", "");
    let ended = stream(temp.path(), &["run", "graph.json"]).expect(0);
    assert!(ended.stdout.contains("G3 | say sum 332833500\n"), "{ended:#?}");
    let prefixes = ["G1 | ", "G2 | ", "G3 | "];
    let begins = |line: &str| prefixes.iter().any(|prefix| line.starts_with(prefix));
    assert!(ended.stdout.lines().all(begins), "{ended:#?}");
    for part in ["G2  ", "exit status: 0", "read->work  1,000  ", "work->sum   1,000  ", "KiB"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:#?}");
    }
    // The program of the command line, in place of that of the document.
    let other = program("talks");
    let mut args = vec!["run", "graph.json", "--"];
    args.extend(other.iter().map(String::as_str));
    let ended = stream(temp.path(), &args).expect(0);
    let long: usize = ended.stdout.lines().map(|line| line.matches('x').count()).sum();
    assert_eq!(long, 3 * 100_000);
    assert!(ended.stdout.lines().all(|line| line.len() < 20_000));
    assert!(ended.stdout.contains("\u{1e}{\"failed\""), "news are on standard error alone");
    assert!(ended.stderr.contains("G1 | begun\n"), "{ended:#?}");
    assert!(!ended.stderr.contains('\u{1e}'), "{ended:#?}");
}

#[test]
fn figures_of_edges_are_shown_while_they_run() {
    let temp = tempfile::tempdir().unwrap();
    document(temp.path(), "endless", "", "");
    let mut command = margo(temp.path());
    command.args(["stream", "run", "graph.json", "--table", "--interval", "0.05"]);
    let mut launched = Launched::of(&mut command);
    let stderr = BufReader::new(launched.running.child.stderr.take().unwrap());
    let mut lines = stderr.lines().map(Result::unwrap);
    let row = lines.find(|line| {
        line.starts_with("work->sum ") && !line.contains(" 0  ") && line.ends_with("8.0 MiB")
    });
    assert!(row.is_some(), "it has ended");
    launched.running.signal(Signal::INT);
    let drained = std::thread::spawn(move || lines.count());
    launched.ended().expect(130);
    drained.join().unwrap();
}

#[test]
fn figures_of_edges_are_seen_from_outside() {
    let temp = tempfile::tempdir().unwrap();
    let launched = Launched::start(temp.path());
    let address = std::fs::read_to_string(temp.path().join("sum")).unwrap();
    let top = |more: &[&str]| {
        let mut command = margo(temp.path());
        run(command.args(["top", address.trim_end(), "--once"]).args(more), "").expect(0).stdout
    };
    let row = until("bytes of the edge", || {
        let shown = top(&[]);
        let mut lines = shown.lines().skip_while(|line| !line.starts_with("STREAM EDGE"));
        let head: Vec<_> = lines.next()?.split_whitespace().collect();
        let expected = ["STREAM", "EDGE", "edge", "items/s", "bytes/s", "queued", "held", "credit"];
        assert_eq!(head, expected);
        lines.find(|line| line.contains("work->sum")).map(str::to_owned)
    });
    assert!(row.ends_with("8.0 MiB"), "{row}");
    let json: margo::Metrics = serde_json::from_str(&top(&["--json"])).unwrap();
    let names: Vec<_> = json.tables.iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["stream", "stream_edge"]);
    launched.running.signal(Signal::INT);
    launched.ended().expect(130);
}

#[test]
fn the_group_that_fails_first_is_named_and_the_others_end() {
    let temp = tempfile::tempdir().unwrap();
    document(temp.path(), "fails", "", "");
    let ended = stream(temp.path(), &["run", "graph.json"]).expect(1);
    let named = "margo: group `G2` failed (exit status: 3): stage `work`, replica 0: ten thousand \
                 is too much; the end of its standard error:\n";
    assert!(ended.stderr.contains(named), "{ended:#?}");
    assert!(ended.stderr.contains("\n  it says stage `work`"), "{ended:#?}");
    assert!(!ended.stderr.contains("group `G1` failed"), "{ended:#?}");
}

#[test]
fn a_group_that_is_killed_is_named_with_the_signal() {
    for victim in ["G1", "G2", "G3"] {
        let temp = tempfile::tempdir().unwrap();
        let launched = Launched::start(temp.path());
        rustix::process::kill_process(launched.group(victim), Signal::KILL).unwrap();
        let ended = launched.ended().expect(1);
        let named = format!("margo: group `{victim}` failed: signal: 9 (SIGKILL)");
        assert!(ended.stderr.contains(&named), "{ended:#?}");
    }
}

#[test]
fn signals_end_all_groups() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let temp = tempfile::tempdir().unwrap();
        let launched = Launched::start(temp.path());
        launched.running.signal(signal);
        launched.ended().expect(status);
    }
    // A group that does not want to end, and somebody who does not want to wait.
    let temp = tempfile::tempdir().unwrap();
    let launched = Launched::start(temp.path());
    let (willing, stopped) = (launched.group("G1"), launched.group("G2"));
    rustix::process::kill_process(stopped, Signal::STOP).unwrap();
    launched.running.signal(Signal::INT);
    wait_for_end(willing);
    launched.running.signal(Signal::INT);
    launched.ended().expect(130);
}

#[test]
fn a_killed_launcher_takes_its_groups_with_it() {
    let temp = tempfile::tempdir().unwrap();
    let launched = Launched::start(temp.path());
    launched.running.signal(Signal::KILL);
    launched.ended();
}

#[test]
fn groups_behind_other_programs_are_started_and_end_too() {
    let temp = tempfile::tempdir().unwrap();
    // As `ssh` does: a shell gets one word; the program is a child of that shell.
    let launcher = r#""launcher": { "before": ["sh", "-c"], "shell": true,
        "environment": { "MARGO_TEST_WORD": "a 'word'" } },"#;
    document(temp.path(), "squares", launcher, "");
    let ended = stream(temp.path(), &["run", "graph.json"]).expect(0);
    assert!(ended.stdout.contains("G3 | say sum 332833500\n"), "{ended:#?}");

    let launcher = r#""launcher": { "before": ["sh", "-c", "\"$0\" \"$@\"; exit $?"] },"#;
    document(temp.path(), "endless", "", launcher);
    let launched = Launched::of(margo(temp.path()).args(["stream", "run", "graph.json"]));
    let behind: Vec<_> = launched.groups.iter().flat_map(|group| children(*group)).collect();
    assert_eq!(behind.len(), 1);
    launched.running.signal(Signal::KILL);
    launched.ended();
    wait_for_end(behind[0]);
}

#[test]
fn a_document_is_run_once_at_a_time() {
    let temp = tempfile::tempdir().unwrap();
    let launched = Launched::start(temp.path());
    let second = stream(temp.path(), &["run", "graph.json"]).expect(1);
    let said = "graph.json: another `margo stream run` runs this document";
    assert!(second.stderr.contains(said), "{second:#?}");
    // Another document with the same endpoints.
    std::fs::copy(temp.path().join("graph.json"), temp.path().join("copy.json")).unwrap();
    let third = stream(temp.path(), &["run", "copy.json"]).expect(1);
    assert!(third.stderr.contains("is the group running?"), "{third:#?}");
    launched.running.signal(Signal::TERM);
    launched.ended().expect(143);
}

#[test]
fn a_reader_that_leaves_ends_all() {
    let temp = tempfile::tempdir().unwrap();
    document(temp.path(), "prints", "", "");
    let launched = Launched::of(margo(temp.path()).args(["stream", "run", "graph.json"]));
    let Launched { running, groups, stdout } = launched;
    drop(stdout);
    common::ended(running).expect(141);
    groups.into_iter().for_each(wait_for_end);
}

#[test]
fn plans_show_the_groups_of_the_document() {
    let temp = tempfile::tempdir().unwrap();
    document(temp.path(), "squares", "", "");
    let ended = stream(temp.path(), &["plan", "graph.json", "--svg", "plan.svg"]).expect(0);
    let plan = "read x 2, in G1\n  -> work: u64, on demand, from G1 to G2\nwork x 2, in G2\n  -> \
                sum: u64, on demand, from G2 to G3\nsum, in G3\n";
    assert!(ended.stdout.contains(plan), "{ended:#?}");
    let svg = std::fs::read_to_string(temp.path().join("plan.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("in G2") && svg.contains("class=\"cut\""));
    let lost = stream(temp.path(), &["plan", "graph.json", "--svg", "no/plan.svg"]).expect(2);
    assert!(lost.stderr.contains("margo: cannot write no/plan.svg: No such file"), "{lost:#?}");

    document(temp.path(), "wrong", "", "");
    let wrong = stream(temp.path(), &["plan", "graph.json"]).expect(2);
    let said = "margo: the graph cannot run: the items of stage `read` go nowhere";
    assert!(wrong.stderr.starts_with(said), "{wrong:#?}");
    document(temp.path(), "squares", "", "");
    let text = std::fs::read_to_string(temp.path().join("graph.json")).unwrap();
    std::fs::write(temp.path().join("graph.json"), text.replace(r#"["work"]"#, r#"["wrok"]"#))
        .unwrap();
    for command in ["plan", "run"] {
        let status = if command == "plan" { 2 } else { 1 };
        let wrong = stream(temp.path(), &[command, "graph.json"]).expect(status);
        assert!(wrong.stderr.contains(r#"did you mean "work"?"#), "{wrong:#?}");
    }
    // A program that knows nothing of plans.
    let wrong =
        stream(temp.path(), &["plan", "graph.json", "--", "sh", "-c", "echo no >&2; false"]);
    let wrong = wrong.expect(1);
    assert!(wrong.stderr.contains("sh --plan graph.json: exit status: 1\nno"), "{wrong:#?}");
}

#[test]
fn wrong_documents_and_programs_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let write = |text: &str| std::fs::write(temp.path().join("graph.json"), text).unwrap();
    let refused = |args: &[&str], status| stream(temp.path(), args).expect(status).stderr;
    for command in ["run", "plan"] {
        let missing = refused(&[command, "nowhere.json"], 2);
        assert!(missing.starts_with("margo: nowhere.json: No such file"), "{missing}");
        write(r#"{ "group": {} }"#);
        let wrong = refused(&[command, "graph.json"], 2);
        assert!(
            wrong.contains("graph.json is not valid") && wrong.contains("did you mean \"groups\""),
            "{wrong}"
        );
        write(r#"{ "groups": {} }"#);
        assert!(refused(&[command, "graph.json"], 2).contains("groups: there are none"));
        write(r#"{ "groups": { "G1": { "stages": ["read"] } } }"#);
        let unnamed = refused(&[command, "graph.json"], 2);
        assert!(unnamed.contains("no program is named"), "{unnamed}");
        let status = if command == "plan" { 2 } else { 1 };
        let nowhere = refused(&[command, "graph.json", "--", "./nowhere"], status);
        assert!(nowhere.contains("cannot start `./nowhere`: No such file"), "{nowhere}");
    }
    write(r#"{ "groups": { "G1": { "host": "node7" } } }"#);
    let far = refused(&["run", "graph.json", "--", "true"], 2);
    assert!(far.contains("`G1` is to run on node7, and nothing says how"), "{far}");
    let nowhere = refused(&["run", "graph.json", "--launcher", "./none {host}", "--", "true"], 1);
    assert!(nowhere.contains("cannot start `./none`"), "{nowhere}");
}

#[test]
fn a_file_of_fastflow_is_run_if_its_groups_are_called_as_stages() {
    let temp = tempfile::tempdir().unwrap();
    let text = r#"{ "protocol": "TCP", "groups": [
        { "name": "read" }, { "name": "work", "endpoint": "127.0.0.1:0" } ] }"#;
    std::fs::write(temp.path().join("ff.json"), text).unwrap();
    // An address that is known before: that of a port that was free a moment ago.
    until("a run whose port nobody has taken", || {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = text.replace("127.0.0.1:0", &free.to_string());
        std::fs::write(temp.path().join("ff.json"), text).unwrap();
        let own = program("pair");
        let mut args = vec!["run", "ff.json", "--"];
        args.extend(own.iter().map(String::as_str));
        let ended = stream(temp.path(), &args);
        assert!(!ended.stderr.contains("cannot be cut"), "{ended:#?}");
        (ended.status.success() && ended.stdout.contains("work | say 10")).then_some(())
    });
}
