//! Processes that were started with little: closed descriptors, a standard error that nobody reads,
//! no subscriber, a resolver that does not answer.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crate::common::process::{self, asked, say};
use crate::common::{PATIENCE, builder};
use margo::{Instance, ProviderHandle, Rpc};

const ECHO: Rpc<u32, u32> = Rpc::new("echo");

const WHAT: &str = "MARGO_TEST_SURROUNDINGS";
const FILE: &str = "MARGO_TEST_SURROUNDINGS_FILE";

/// Warns of its settings at the start.
const ODD: &str = r#"{ "margo": { "admission": { "handlers_max": 4, "peer_handlers_max": 9 } } }"#;

/// The test program run again, for its test `child`. Killed when dropped.
struct Process(Child);

impl Process {
    fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn wait(&mut self) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "it hangs");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn again(what: &str) -> Command {
    let mut command = process::again(module_path!(), "child");
    command.env(WHAT, what);
    command
}

/// Not a test of its own: the processes that the others start.
#[test]
fn child() {
    match asked(WHAT).as_deref() {
        Some("warns") => warns(),
        Some("listens") => {
            // Any subscriber will do.
            tracing::subscriber::set_global_default(Deaf).unwrap();
            warns();
        }
        Some("blocked") => blocked(),
        Some("broken") => broken(),
        Some("closed") => closed(),
        Some("names") => names(),
        Some(other) => panic!("{other}?"),
        None => {}
    }
}

struct Deaf;

impl tracing::Subscriber for Deaf {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// A life in which two layers have something to say.
fn warns() {
    let service = margo::init(ODD).unwrap();
    std::panic::set_hook(Box::new(|_| ()));
    let ended = Arc::new(ult::Eventual::<()>::new());
    let end = Ended(ended.clone());
    let panics = move || {
        let _end = end;
        panic!("over\nthere");
    };
    service.layout().rpc_pool().ult().name("one").spawn_detached(panics).unwrap();
    ended.wait();
    call_itself(&service);
    service.finalize_and_wait().unwrap();
}

struct Ended(Arc<ult::Eventual<()>>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.set(()).unwrap();
    }
}

fn call_itself(service: &Instance) {
    service.serve(ECHO).function(|n| n).unwrap();
    let target = ProviderHandle::from(service.self_addr());
    assert_eq!(service.forward_timed(ECHO, &target, &7, PATIENCE).unwrap(), 7);
}

fn stderr_of(what: &str) -> String {
    let mut process = Process::spawn(again(what).stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut text = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    process.wait();
    text
}

#[test]
fn warnings_and_errors_that_nobody_listens_to_go_to_standard_error() {
    let text = stderr_of("warns");
    let own: Vec<_> = text.lines().filter(|line| line.starts_with("margo: ")).collect();
    let with = |what: &str| *own.iter().find(|line| line.contains(what)).expect(&text);
    let of_margo = with("`handlers_max`, 4, is less");
    assert!(of_margo.starts_with("margo: warning: margo.admission"), "{of_margo}");
    let of_ult = with("a detached ULT panicked");
    assert!(of_ult.starts_with("margo: error: a detached"), "{of_ult}");
    assert!(of_ult.contains("one") && of_ult.contains("over\\nthere"), "{of_ult}");
}

#[test]
fn what_a_subscriber_gets_does_not_go_to_standard_error() {
    let text = stderr_of("listens");
    assert!(!text.contains("margo: "), "{text}");
}

/// Standard error is a pipe that is full, and nobody reads it.
fn blocked() {
    let stderr = std::io::stderr();
    let flags = rustix::fs::fcntl_getfl(&stderr).unwrap();
    rustix::fs::fcntl_setfl(&stderr, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    let full = loop {
        if let Err(error) = rustix::io::write(&stderr, &[b'x'; 1]) {
            break error;
        }
    };
    assert_eq!(full, rustix::io::Errno::AGAIN);
    rustix::fs::fcntl_setfl(&stderr, flags).unwrap();
    let service = margo::init(ODD).unwrap();
    std::panic::set_hook(Box::new(|_| ()));
    // More than are kept.
    for _ in 0..300 {
        service.layout().rpc_pool().ult().spawn_detached(|| panic!("of many")).unwrap();
    }
    call_itself(&service);
    service.finalize_and_wait().unwrap();
    say("it lives");
}

/// A process whose standard error nobody reads, and which does not ignore SIGPIPE.
fn broken() {
    // SAFETY: the default action is no function of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let service = margo::init(ODD).unwrap();
    call_itself(&service);
    service.finalize_and_wait().unwrap();
    say("it lives");
}

#[test]
fn nothing_waits_for_who_does_not_read_standard_error() {
    for what in ["blocked", "broken"] {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut command = again(what);
        command.stdout(Stdio::piped()).stderr(write);
        let mut process = Process::spawn(&mut command);
        drop(command);
        let kept: Option<OwnedFd> = (what == "blocked").then_some(read);
        // To its end: what it prints last must not go nowhere, either.
        let mut text = String::new();
        process.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("it lives"), "{what}: {text}");
        process.wait();
        drop(kept);
    }
}

/// A daemon that closes the descriptors that it does not need, and then starts.
fn closed() {
    let file = std::env::var(FILE).unwrap();
    for fd in 0..3 {
        // SAFETY: the standard streams look up their descriptor at each use, and nobody uses them
        // here; no owner of these numbers exists.
        unsafe { libc::close(fd) };
    }
    let service = margo::init(r#"{ "margo": { "address": "na+tcp://127.0.0.1:0" } }"#).unwrap();
    call_itself(&service);
    let client = builder("na+sm://").start().unwrap();
    println!("a line");
    let links: Vec<_> = (0..3)
        .map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap().display().to_string())
        .collect();
    std::fs::write(file, links.join(" ")).unwrap();
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn no_descriptor_of_ours_is_taken_for_a_standard_stream() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("links");
    Process::spawn(again("closed").env(FILE, &file)).wait();
    let links = std::fs::read_to_string(&file).unwrap();
    assert_eq!(links, "/dev/null /dev/null /dev/null");
}

/// In a network of its own, with a name server that hears everything and says nothing.
fn names() {
    let server = UdpSocket::bind("127.0.0.1:53").unwrap();
    let client = builder("na+tcp://").listen(false).start().unwrap();
    let turns = Arc::new(AtomicUsize::new(0));
    let is_found = Arc::new(AtomicBool::new(false));
    let (own, found) = (client.clone(), is_found.clone());
    let look = client.layout().rpc_pool().spawn(move || {
        let result = own.lookup("na+tcp://nobody.example:7");
        found.store(true, Ordering::SeqCst);
        result.is_err()
    });
    let (counted, found) = (turns.clone(), is_found.clone());
    let others = client.layout().rpc_pool().spawn(move || {
        while !found.load(Ordering::SeqCst) {
            counted.fetch_add(1, Ordering::SeqCst);
            ult::yield_now();
        }
    });
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut query = [0; 512];
    let (mut len, mut from) = server.recv_from(&mut query).expect("the resolver asks");
    // It waits from here on, for longer than this takes.
    let before = turns.load(Ordering::SeqCst);
    while turns.load(Ordering::SeqCst) < before + 100 {
        assert!(!is_found.load(Ordering::SeqCst), "the execution stream has waited with it");
        std::thread::yield_now();
    }
    server.set_read_timeout(Some(std::time::Duration::from_millis(10))).unwrap();
    while !is_found.load(Ordering::SeqCst) {
        // The answer that there is no such name.
        (query[2], query[3]) = (query[2] | 0x80, 0x83);
        server.send_to(&query[..len], from).unwrap();
        if let Ok(next) = server.recv_from(&mut query) {
            (len, from) = next;
        }
    }
    assert!(look.unwrap().join().unwrap(), "nobody has that name");
    others.unwrap().join().unwrap();
    client.finalize_and_wait().unwrap();
    say("others went on");
}

#[test]
fn a_resolver_that_does_not_answer_holds_nobody_but_who_asks() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| -> String {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        path.display().to_string()
    };
    let resolv = write("resolv.conf", "nameserver 127.0.0.1\noptions timeout:20 attempts:1\n");
    let nsswitch = write("nsswitch.conf", "hosts: files dns\n");
    let mut script = format!("ip link set lo up && mount --bind {resolv} /etc/resolv.conf");
    if Path::new("/etc/nsswitch.conf").exists() {
        script += &format!(" && mount --bind {nsswitch} /etc/nsswitch.conf");
    }
    script += " && echo prepared && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--net", "sh", "-c", &script, "sh"]);
    let test = again("names");
    command.arg(test.get_program()).args(test.get_args()).env(WHAT, "names");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(process) = command.spawn() else {
        println!("SKIPPED: there is no unshare");
        return;
    };
    let mut process = Process(process);
    let mut text = String::new();
    process.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    if !text.contains("prepared") {
        println!("SKIPPED: no name spaces of its own, or no ip and mount");
        return;
    }
    process.wait();
    assert!(text.contains("others went on"), "{text}");
}
