//! A process that has no descriptors for the connections that are made to it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use na::conformance::PATIENCE;
use na::{Completion, OpId, OpenOptions, Tag};

use crate::common::test_path;

use super::{CHILD, HELLO_BYTES, Server, hello, until_closed};

/// Sets how many descriptors the process may have.
fn limit_descriptors(current: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// This program again, with one test alone, which serves in a process of its own.
struct ServerProcess {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
    address: String,
}

impl ServerProcess {
    fn start(test: &str) -> Self {
        use std::process::{Command, Stdio};
        na::conformance::hear_of_children();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        let mut server = Self { child, lines, address: String::new() };
        server.address = server.hear("at na+tcp://");
        server
    }

    /// The rest of the next line that has `word`.
    fn hear(&mut self, word: &str) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let rest = lines.find_map(|line| Some(line.split_once(word)?.1.to_owned()));
        rest.unwrap_or_else(|| panic!("the child does not say {word:?}"))
    }

    /// Ends its standard input, and waits until it has passed.
    fn ends_well(mut self) {
        drop(self.child.stdin.take());
        self.lines.by_ref().for_each(drop);
        assert!(self.child.wait().unwrap().success());
    }

    /// How a connection is refused: with which number, and which session.
    fn refusal(&self, stream: &mut TcpStream) -> (u8, u64) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&hello(1, "")).unwrap();
        let mut fixed = [0; HELLO_BYTES];
        stream.read_exact(&mut fixed).unwrap();
        (fixed[14], u64::from_le_bytes(fixed[16..24].try_into().unwrap()))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts warnings that descriptors are missing.
struct Warnings(Arc<AtomicUsize>);

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let is_one = format!("{value:?}").contains("no descriptors left");
        self.0.fetch_add(usize::from(is_one), Ordering::Relaxed);
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Warnings(self.0.clone()));
    }

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

/// Sends a message to `uri`, and returns how that ended.
fn call(uri: &str, options: &OpenOptions, meanwhile: &mut dyn FnMut()) -> Result<(), na::Error> {
    let origin = na::open("na+tcp://", options).unwrap();
    let to = origin.lookup(uri).unwrap();
    origin.send_unexpected(OpId(1), &to, Tag(5), origin.alloc_msg()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut ended = None;
    while ended.is_none() {
        assert!(Instant::now() < deadline, "the message to {uri} does not end");
        let mut sink = |completion| match completion {
            Completion::Send { result, .. } => ended = Some(result),
            other => panic!("{other:?}"),
        };
        origin.poll(64, &mut sink).unwrap();
        meanwhile();
    }
    ended.unwrap()
}

/// The server is a process of its own, since the limit is the process's.
#[test]
fn who_calls_a_process_without_descriptors_is_told_so() {
    if std::env::var_os(CHILD).is_some() {
        return serve_without_descriptors();
    }
    let mut server =
        ServerProcess::start(test_path!("who_calls_a_process_without_descriptors_is_told_so"));
    let uri = format!("na+tcp://{}", server.address);
    // More than are accepted in one poll, all of which are there at once.
    let mut callers: Vec<_> =
        (0..200).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    for stream in &mut callers {
        assert_eq!(server.refusal(stream), (2, 64));
        until_closed(stream);
    }
    let error = call(&uri, &OpenOptions::default(), &mut || ()).unwrap_err();
    assert!(matches!(error, na::Error::Unreachable { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("no descriptors left (limit 64; raise its `ulimit -n`)"), "{said}");

    // Who is asked to try again does so until there are some.
    let mut options = OpenOptions::default();
    options.tcp.connect_retry = PATIENCE;
    options.connect_timeout = PATIENCE;
    let mut asked = false;
    let mut stdin = server.child.stdin.take().unwrap();
    let mut free_some = || {
        if !std::mem::replace(&mut asked, true) {
            stdin.write_all(b"free\n").unwrap();
        }
    };
    call(&uri, &options, &mut free_some).unwrap();
    drop(stdin);
    assert_eq!(server.hear("warnings: "), "1");
    server.ends_well();
}

fn serve_without_descriptors() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let warnings = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(Warnings(warnings.clone())).unwrap();
    let server = Server::start();
    limit_descriptors(64);
    let mut fillers = Vec::new();
    while let Ok(filler) = std::fs::File::open("/dev/null") {
        fillers.push(filler);
    }
    println!("\nat {}", server.endpoint.self_addr().uri());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(fillers);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    println!("warnings: {}", warnings.load(Ordering::Relaxed));
    server.still_serves();
}

/// The server is a process of its own, since the limit is the process's.
#[test]
fn who_dials_beyond_the_descriptors_is_refused() {
    if std::env::var_os(CHILD).is_some() {
        return serve_with_few_descriptors();
    }
    let server = ServerProcess::start(test_path!("who_dials_beyond_the_descriptors_is_refused"));
    // A quarter of the 64 is kept for everything else.
    let mut welcome: Vec<TcpStream> = Vec::new();
    for number in 0..60 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        match server.refusal(&mut stream).0 {
            0 => welcome.push(stream),
            refusal => assert_eq!((refusal, number >= 48), (1, true), "of number {number}"),
        }
    }
    assert_eq!(welcome.len(), 48);
    server.ends_well();
}

fn serve_with_few_descriptors() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    limit_descriptors(64);
    let server = Server::start();
    println!("\nat {}", server.endpoint.self_addr().uri());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
