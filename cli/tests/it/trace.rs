//! `margo trace`: files of several processes, of killed ones, of others, and of nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Ended, PATIENCE, Running, ended, margo, run};
use margo::{Handle, Instance, ProviderHandle, Rpc, config::Config};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Doubles the number at the service that the argument names.
const RELAY: Rpc<(String, u64), u64> = Rpc::new("relay");
const DOUBLE: Rpc<u64, u64> = Rpc::new("double");

const ADDRESS: &str = "MARGO_TEST_SERVICE_ADDRESS";

/// The difference that two clocks, read one after the other, may have.
pub(crate) const SLACK_NS: i64 = 20_000;

/// Run again as a process of its own: serves until its standard input ends.
#[test]
fn service_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let service = Instance::builder(address).start().unwrap();
    let relay = |handle: Handle<(String, u64), u64>| {
        let (address, number) = handle.args();
        let to = ProviderHandle::from(handle.instance().lookup(address).unwrap());
        let double = handle.instance().forward(DOUBLE, &to, number).unwrap();
        handle.respond(&double).unwrap();
    };
    service.register(RELAY, relay).unwrap();
    service.register(DOUBLE, |handle| handle.respond(&(handle.args() * 2)).unwrap()).unwrap();
    println!("listening on {}", service.self_addr());
    println!("recording in {}", service.monitoring().trace_file().unwrap().display());
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    service.finalize_and_wait().unwrap();
}

struct Service {
    child: Child,
    stdin: Option<ChildStdin>,
    address: String,
    file: PathBuf,
}

impl Service {
    fn start(address: &str, prefix: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "trace::service_process", "--nocapture"])
            .env(ADDRESS, address)
            .env("MARGO_ENABLE_TRACE", "1")
            .env("MARGO_TRACE_FILENAME_PREFIX", prefix)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut after = |what: &str| loop {
            let line = lines.next().unwrap_or_else(|| panic!("no {what}")).unwrap();
            if let Some((_, rest)) = line.split_once(what) {
                return rest.to_owned();
            }
        };
        let (address, file) = (after("listening on "), after("recording in ").into());
        // Nobody reads what it says from now on.
        std::thread::spawn(move || lines.for_each(drop));
        let stdin = child.stdin.take();
        Self { child, stdin, address, file }
    }

    /// Lets it end by itself.
    fn end(mut self) -> PathBuf {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
        self.file.clone()
    }

    fn kill(mut self) -> PathBuf {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.file.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(transport: &str, prefix: &Path) -> Instance {
    let trace = json!({ "enable": true, "filename_prefix": prefix });
    let document = json!({ "margo": { "address": transport, "trace": trace } });
    Instance::from_config(&Config::from_json(&document.to_string()).unwrap()).unwrap()
}

fn finish(client: Instance) -> PathBuf {
    let file = client.monitoring().trace_file().unwrap();
    client.finalize_and_wait().unwrap();
    file
}

pub(crate) fn join(dir: &Path, files: &[PathBuf], status: i32) -> Ended {
    let mut command = margo(dir);
    command.args(["trace", "join", "all.json"]).args(files);
    run(&mut command, "").expect(status)
}

fn show(dir: &Path, id: &[&str], status: i32) -> Ended {
    run(margo(dir).args(["trace", "show", "all.json"]).args(id), "").expect(status)
}

fn events(file: &Path) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Calls over two processes, and what they wrote.
pub(crate) fn chain(transport: &str, dir: &Path, calls: u64) -> [PathBuf; 3] {
    let a = client(transport, &dir.join("a"));
    let own = transport.split("://").next().unwrap();
    let address = if own == "na+tcp" { "na+tcp://127.0.0.1:0" } else { transport };
    let start = |name: &str| Service::start(address, &dir.join(name));
    let (b, c) = (start("b"), start("c"));
    let to = ProviderHandle::from(a.lookup(&b.address).unwrap());
    for number in 0..calls {
        let double = a.forward(RELAY, &to, &(c.address.clone(), number)).unwrap();
        assert_eq!(double, number * 2);
    }
    [finish(a), b.end(), c.end()]
}

/// Begin and, of handlers, the time of the answer, else the end.
fn times(slice: &Value) -> (i64, i64) {
    let nanos = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as i64;
    let begin = nanos(&slice["ts"]);
    let end = match slice["args"].get("responded_us") {
        Some(after) => begin + nanos(after),
        None => begin + nanos(&slice["dur"]),
    };
    (begin, end)
}

#[test]
fn several_processes_become_one_file() {
    for transport in ["na+sm://", "na+tcp://"] {
        let dir = tempfile::tempdir().unwrap();
        let files = chain(transport, dir.path(), 5);
        let ended = join(dir.path(), &files, 0);
        assert_eq!(ended.stdout.trim(), "all.json: 5 traces, 10 calls, 3 processes");
        assert_eq!(ended.stderr, "");
        let events = events(&dir.path().join("all.json"));
        let slices: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        let pids: BTreeSet<_> = slices.iter().map(|slice| slice["pid"].as_u64()).collect();
        assert_eq!(pids.len(), 3);
        let by_span = |cat: &str| -> BTreeMap<&str, &Value> {
            let of = slices.iter().filter(|slice| slice["cat"] == cat);
            of.map(|slice| (slice["args"]["span"].as_str().unwrap(), *slice)).collect()
        };
        let (calls, handlers) = (by_span("call"), by_span("handler"));
        assert_eq!((calls.len(), handlers.len(), by_span("queue").len()), (10, 10, 10));
        let mut roots = 0;
        for slice in calls.values().chain(handlers.values()) {
            let Some(parent) = slice["args"]["parent"].as_str() else {
                roots += 1;
                continue;
            };
            let outer = calls.get(parent).or_else(|| handlers.get(parent)).unwrap();
            assert_eq!(outer["args"]["trace"], slice["args"]["trace"]);
            assert_eq!(outer["cat"] == "call", slice["cat"] == "handler");
            let ((first, last), (begin, end)) = (times(outer), times(slice));
            assert!(begin + SLACK_NS >= first && end <= last + SLACK_NS, "{slice} in {outer}");
        }
        assert_eq!(roots, 5);
        // Each call is one arrow from its origin over the queue to the handler.
        for id in calls.keys() {
            let id = json!(format!("0x{id}"));
            let mut arrow: Vec<_> = events.iter().filter(|event| event["id"] == id).collect();
            arrow.sort_by_key(|event| times(&json!({ "ts": event["ts"], "dur": 0, "args": {} })).0);
            let phases: Vec<_> = arrow.iter().map(|event| event["ph"].as_str().unwrap()).collect();
            assert_eq!(phases.len(), 3);
            assert!(phases.contains(&"s") && phases.contains(&"t") && phases.contains(&"f"));
        }

        let list = show(dir.path(), &[], 0).stdout;
        assert_eq!(list.lines().count(), 6, "{list}");
        let id = list.split_whitespace().next().unwrap();
        let tree = show(dir.path(), &[&id[..12]], 0).stdout;
        let parts = ["call relay →", "on its way there", "waiting in pool", "handler"];
        let nested = ["call double →", "on its way there", "waiting in pool", "handler"];
        let back = ["on its way back", "on its way back"];
        let mut rest = tree.as_str();
        for part in parts.into_iter().chain(nested).chain(back) {
            let at = rest.find(part).unwrap_or_else(|| panic!("no {part} in\n{tree}"));
            rest = &rest[at + part.len()..];
        }
        assert!(tree.starts_with(&format!("trace {id}: ")), "{tree}");
        assert!(tree.contains("2 calls, 3 processes"), "{tree}");
        show(dir.path(), &["00000000000000000000000000000000"], 1);
    }
}

#[test]
fn the_joined_file_is_there_also_if_nobody_reads_what_is_said_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let a = client("na+sm://", &dir.path().join("a"));
    a.serve(DOUBLE).function(|number| number * 2).unwrap();
    a.forward(DOUBLE, &ProviderHandle::from(a.self_addr()), &1).unwrap();
    let file = finish(a);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = margo(dir.path());
    command.args(["trace", "join", "all.json"]).arg(file).stdout(full).stderr(Stdio::piped());
    let ended = ended(Running::new(command.spawn().unwrap())).expect(1);
    assert!(ended.stderr.contains("cannot write to standard output"), "{ended:#?}");
    let joined = events(&dir.path().join("all.json"));
    assert_eq!(joined.last().unwrap()["name"], "margo_end");
}

#[test]
fn what_a_killed_process_wrote_is_taken_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let a = client("na+sm://", &dir.path().join("a"));
    let b = Service::start("na+sm://", &dir.path().join("b"));
    let to = ProviderHandle::from(a.lookup(&b.address).unwrap());
    a.forward(DOUBLE, &to, &1).unwrap();
    let started = Instant::now();
    while !std::fs::read_to_string(&b.file).unwrap().contains(r#""cat":"handler""#) {
        assert!(started.elapsed() < PATIENCE, "the handler is not in the file");
        std::thread::sleep(Duration::from_millis(1));
    }
    let killed = b.kill();
    let files = [finish(a), killed.clone()];
    let ended = join(dir.path(), &files, 0);
    assert!(ended.stderr.contains("ends early"), "{ended:#?}");
    assert_eq!(ended.stdout.trim(), "all.json: 1 trace, 1 call, 2 processes");
    // Wherever it was cut off.
    let content = std::fs::read(&killed).unwrap();
    let head = content.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0;
    for len in [head + 1, head + 2, content.len() - 2, content.len() - 1] {
        std::fs::write(&killed, &content[..len]).unwrap();
        let ended = join(dir.path(), &files, 0);
        assert!(ended.stderr.contains("ends early"), "{len}: {ended:#?}");
    }
}

#[test]
fn the_other_half_of_a_call_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b, c] = chain("na+sm://", dir.path(), 2);
    let ended = join(dir.path(), &[a.clone(), c], 0);
    let says = |text: &str| assert!(ended.stderr.contains(text), "{text}: {ended:#?}");
    says("2 calls of relay to na+sm://");
    says("whose target is in none of these files");
    says("2 requests of double from na+sm://");
    says("whose origin is in none of these files");
    let tree = show(dir.path(), &[], 0).stdout;
    let id = tree.split_whitespace().next().unwrap();
    let tree = show(dir.path(), &[id], 0).stdout;
    assert!(tree.contains("the target is not in this file"), "{tree}");
    assert!(tree.contains("request double from"), "{tree}");
    // One file alone is a trace, too, and processes of other hosts may have the same number.
    let text = std::fs::read_to_string(&b).unwrap();
    let far = dir.path().join("far");
    std::fs::write(&far, text.replacen(r#""host_id":""#, r#""host_id":"other "#, 1)).unwrap();
    join(dir.path(), &[b, far, a], 0);
    let joined = events(&dir.path().join("all.json"));
    let names = joined.iter().filter(|event| event["name"] == "process_name");
    let pids: BTreeSet<_> = names.map(|event| event["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 3);
}

#[test]
fn files_of_others_and_damaged_ones_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let a = client("na+sm://", &dir.path().join("a"));
    let b = Service::start("na+sm://", &dir.path().join("b"));
    let to = ProviderHandle::from(a.lookup(&b.address).unwrap());
    a.forward(DOUBLE, &to, &1).unwrap();
    let good = finish(a);
    let text = std::fs::read_to_string(&good).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let with = |at: usize, line: &str| {
        let mut changed = lines.clone();
        changed[at] = line;
        changed.join("\n") + "\n"
    };
    let bad = dir.path().join("bad");
    let slice = lines.iter().position(|line| line.contains(r#""ph":"X""#)).unwrap();
    let no_span = lines[slice].replace(r#""span""#, r#""spam""#);
    let no_time = lines[slice].replace(r#""ts":"#, r#""ts":-"#);
    let later = text.replacen(r#""version":1"#, r#""version":2"#, 1);
    let behind = text.clone() + "{}\n";
    let long = format!("[\n{}", "x".repeat(2 << 20));
    for (content, why) in [
        (String::new(), "the file is empty"),
        ("hello\n".into(), "line 1: this is no trace that margo has written"),
        ("[]\n".into(), "this is no trace"),
        ("[\n{\"ph\":\"M\",\"name\":\"x\"},\n".into(), "line 2: this is no trace"),
        (r#"{"traceEvents":[]}"#.into(), "this is no trace"),
        (later, "version 2"),
        (with(slice, "{\"ph\":\"X\""), "the event is damaged"),
        (with(slice, "7,"), "this is no event"),
        (with(slice, &no_span), "the slice lacks something"),
        (with(slice, &no_time), "the slice lacks something"),
        (behind, "behind the end"),
        (long, "too long"),
    ] {
        std::fs::write(&bad, &content).unwrap();
        let ended = join(dir.path(), &[good.clone(), bad.clone()], 1);
        assert!(ended.stderr.contains(why) && ended.stderr.contains("bad"), "{why}: {ended:#?}");
        assert!(!dir.path().join("all.json").exists(), "nothing is left behind");
    }
    let ended = join(dir.path(), &[dir.path().join("nothing")], 1);
    assert!(ended.stderr.contains("nothing"), "{ended:#?}");
    join(dir.path(), std::slice::from_ref(&good), 0);
    let ended = join(dir.path(), &[good, dir.path().join("all.json")], 1);
    assert!(ended.stderr.contains("joined already"), "{ended:#?}");
}

/// A trace of one call, and how it is joined.
fn one_call(dir: &Path) -> (PathBuf, Vec<Value>) {
    let a = client("na+sm://", &dir.join("a"));
    a.serve(DOUBLE).function(|number| number * 2).unwrap();
    a.forward(DOUBLE, &ProviderHandle::from(a.self_addr()), &1).unwrap();
    let file = finish(a);
    join(dir, std::slice::from_ref(&file), 0);
    (file, events(&dir.join("all.json")))
}

#[test]
fn what_a_process_has_recorded_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (first, joined) = one_call(dir.path());
    let text = std::fs::read_to_string(&first).unwrap();
    let second = dir.path().join("second");
    let later = dir.path().join("later");
    std::fs::write(&second, &text).unwrap();
    std::fs::write(&later, text.replacen(r#""version":1"#, r#""version":2"#, 1)).unwrap();
    let before = common::entries(dir.path());
    // As the shell writes `*.trace.json` out.
    for out in [&first, &later] {
        let content = std::fs::read_to_string(out).unwrap();
        let mut command = margo(dir.path());
        command.args(["trace", "join"]).arg(out).arg(&second);
        let ended = run(&mut command, "").expect(2);
        assert!(ended.stderr.contains("name the file to write first"), "{ended:#?}");
        assert_eq!(std::fs::read_to_string(out).unwrap(), content);
    }
    assert_eq!(common::entries(dir.path()), before);
    // What was joined before is replaced, and so is what is no trace; a link stays one.
    let (link, all) = (dir.path().join("link"), dir.path().join("all.json"));
    std::os::unix::fs::symlink("all.json", &link).unwrap();
    for old in [std::fs::read_to_string(&all).unwrap(), "hello\n".to_owned(), String::new()] {
        std::fs::write(&all, old).unwrap();
        run(margo(dir.path()).args(["trace", "join", "link"]).arg(&first), "").expect(0);
        assert_eq!(events(&all), joined);
        assert!(link.is_symlink());
    }
}

/// Makes a pipe of that name; what is given can be read from and written to, and waits for nobody.
fn pipe(path: &Path) -> File {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).write(true).custom_flags(nonblocking).open(path).unwrap()
}

#[test]
fn what_is_no_file_is_written_to_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (file, joined) = one_call(dir.path());
    // A few events: as much as a pipe holds.
    let mut reader = pipe(&dir.path().join("pipe"));
    std::os::unix::fs::symlink("pipe", dir.path().join("link")).unwrap();
    let before = common::entries(dir.path());
    for out in ["pipe", "link"] {
        let ended = run(margo(dir.path()).args(["trace", "join", out]).arg(&file), "").expect(0);
        assert_eq!(ended.stdout.trim(), format!("{out}: 1 trace, 1 call, 1 process"));
        let mut text = vec![0; 1 << 16];
        let len = reader.read(&mut text).unwrap();
        let written: Vec<Value> = serde_json::from_slice(&text[..len]).unwrap();
        assert_eq!(written, joined);
        assert_eq!(common::entries(dir.path()), before);
        assert!(dir.path().join("link").is_symlink());
        assert!(!dir.path().join("pipe").is_file());
    }
    let ended = run(margo(dir.path()).args(["trace", "join", "."]).arg(&file), "").expect(1);
    assert!(ended.stderr.contains("Is a directory"), "{ended:#?}");
}

#[test]
fn standard_output_may_be_what_is_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let (file, joined) = one_call(dir.path());
    // In a folder of its own, should it ever be replaced.
    let link = dir.path().join("stdout");
    std::os::unix::fs::symlink("/proc/self/fd/1", &link).unwrap();
    let ended = run(margo(dir.path()).args(["trace", "join", "stdout"]).arg(&file), "").expect(0);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&ended.stdout).unwrap(), joined);
    assert!(ended.stderr.contains("stdout: 1 trace, 1 call, 1 process"), "{ended:#?}");
    assert!(link.is_symlink());
    // As by `>`.
    let redirected = dir.path().join("redirected");
    let mut command = margo(dir.path());
    command.args(["trace", "join", "stdout"]).arg(&file).stderr(Stdio::piped());
    command.stdout(File::create(&redirected).unwrap());
    ended_of(command).expect(0);
    assert_eq!(events(&redirected), joined);
    assert!(link.is_symlink());
}

fn ended_of(mut command: Command) -> Ended {
    ended(Running::new(command.spawn().unwrap()))
}

#[test]
fn who_is_interrupted_leaves_nothing_behind() {
    for is_stuck in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = one_call(dir.path());
        let text = std::fs::read_to_string(file).unwrap();
        let (head, rest) = text.split_at(text.match_indices('\n').nth(1).unwrap().0 + 1);
        let mut writer = pipe(&dir.path().join("pipe"));
        writer.write_all(head.as_bytes()).unwrap();
        std::fs::remove_file(dir.path().join("all.json")).unwrap();
        let before = common::entries(dir.path());
        let child = margo(dir.path())
            .args(["trace", "join", "all.json", "pipe"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Running::new(child);
        let begun = || common::entries(dir.path()).len() > before.len();
        common::until("the file that is written", || begun().then_some(()));
        running.signal(Signal::INT);
        if is_stuck {
            // Nothing comes any more, so it hears only of the second one.
            running.signal(Signal::TERM);
            let code = running.wait().code();
            assert!(matches!(code, Some(130 | 143)), "{code:?}");
        } else {
            let event = rest.lines().next().unwrap();
            common::until("its end", || {
                // It may not read any more.
                let _ = writeln!(writer, "{event}");
                running.child.try_wait().unwrap()
            });
            let ended = ended(running).expect(130);
            assert!(ended.stderr.contains("interrupted"), "{ended:#?}");
        }
        assert_eq!(common::entries(dir.path()), before, "{is_stuck}");
    }
}

#[test]
fn parents_in_a_circle_and_names_with_control_characters_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let args = json!({ "version": 1, "host_id": "h", "host": "h", "pid": 1, "monotonic_ns": 0,
        "realtime_ns": 0 });
    let mut lines = vec![json!({ "ph": "M", "name": "margo_trace", "pid": 1, "args": args })];
    let trace = format!("{:032x}", 7);
    let id = |id: u64| format!("{id:016x}");
    for (span, parent) in (1..200).map(|span| (span, span % 199 + 1)) {
        let cat = if span % 2 == 0 { "handler" } else { "call" };
        let args = json!({ "trace": trace, "span": id(span), "parent": id(parent),
            "peer": "\u{1b}[2J", "outcome": "ok" });
        lines.push(json!({ "ph": "X", "cat": cat, "name": "\u{7}x", "pid": 1, "tid": 1,
            "ts": span, "dur": 1, "args": args }));
    }
    let text: String = lines.iter().map(|line| format!("{line},\n")).collect();
    std::fs::write(dir.path().join("all.json"), format!("[\n{text}")).unwrap();
    let ended = show(dir.path(), &["00"], 0);
    assert!(ended.stdout.contains("in a circle"), "{ended:#?}");
    assert!(!ended.stdout.contains(['\u{1b}', '\u{7}']), "{ended:#?}");
}
