//! Dumps of an instance's state at a signal, in processes of their own.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use margo::config::DumpSignal;
use margo::{Instance, ProviderHandle, Rpc};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::Value;

use crate::common::process::again;

const HOG: Rpc<(), ()> = Rpc::new("hog");
const WHAT: &str = "MARGO_TEST_DUMP";

/// Writes a line that the parent waits for.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "said: {line}").and_then(|()| stdout.flush()).unwrap();
}

/// Waits for a line of the parent.
fn hear() {
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

/// The entry point of the processes that the other tests start.
#[test]
fn process() {
    let Ok(what) = std::env::var(WHAT) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    match &*what {
        "stuck" => stuck(),
        "several" => several(),
        "beside" => beside(),
        "unread" => unread(),
        _ => panic!("{what}"),
    }
}

/// One execution stream, for everything, and a handler that keeps it.
fn stuck() {
    let own = margo::init(r#"{ "margo": { "dump_on_signal": "usr1" } }"#).unwrap();
    let holds = |()| {
        say("held");
        loop {
            std::thread::park();
        }
    };
    own.serve(HOG).function(holds).unwrap();
    let target = ProviderHandle::from(own.self_addr());
    let _never = own.forward(HOG, &target, &());
}

/// Two instances that have the signal, and one that has not.
fn several() {
    let with = || Instance::builder("na+sm://").dump_on_signal(DumpSignal::Usr2).start().unwrap();
    let (one, two) = (with(), with());
    let other = Instance::builder("na+sm://").start().unwrap();
    say("ready");
    hear();
    one.finalize_and_wait().unwrap();
    say("one is over");
    hear();
    two.finalize_and_wait().unwrap();
    other.finalize_and_wait().unwrap();
    say("all are over");
    hear();
}

/// A program that writes to standard error while nobody reads that.
fn unread() {
    let own = Instance::builder("na+sm://").dump_on_signal(DumpSignal::Usr1).start().unwrap();
    say("ready");
    hear();
    let (sender, locked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(std::io::stderr().lock());
        sender.send(())
    });
    let is_free = locked.recv_timeout(Duration::from_secs(60)).is_ok();
    say(if is_free { "free" } else { "held" });
    hear();
    own.finalize_and_wait().unwrap();
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

/// Returns the handler of the signal that is installed now.
fn in_place() -> libc::sighandler_t {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY:
    // - the call writes one `sigaction`, for which there is room, and reads nothing of ours.
    let result = unsafe { libc::sigaction(libc::SIGUSR1, std::ptr::null(), now.as_mut_ptr()) };
    assert_eq!(result, 0);
    // SAFETY:
    // - all zeros are one, and by now it was written.
    unsafe { now.assume_init() }.sa_sigaction
}

/// Sends itself the signal, which that handler is to see for the nth time.
fn is_called(times: usize) {
    kill_process(rustix::process::getpid(), Signal::USR1).unwrap();
    while CALLS.load(Ordering::SeqCst) < times {
        std::thread::yield_now();
    }
    say(&format!("called {times}"));
    hear();
}

/// A program that has a handler of its own for the signal.
fn beside() {
    let counts: extern "C" fn(libc::c_int) = count;
    let own = counts as libc::sighandler_t;
    // SAFETY:
    // - the handler is async-signal-safe: it only counts.
    assert_eq!(unsafe { libc::signal(libc::SIGUSR1, own) }, libc::SIG_DFL);
    let plain = Instance::builder("na+sm://").start().unwrap();
    assert_eq!(in_place(), own, "nobody has asked for another one");
    is_called(1);
    let asked = Instance::builder("na+sm://").dump_on_signal(DumpSignal::Usr1).start().unwrap();
    assert_ne!(in_place(), own);
    is_called(2);
    asked.finalize_and_wait().unwrap();
    is_called(3);
    plain.finalize_and_wait().unwrap();
}

/// A process that writes dumps. Killed when dropped.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    dumps: serde_json::StreamDeserializer<'static, serde_json::de::IoRead<ChildStderr>, Value>,
    /// A second descriptor of the pipe that dumps are read from.
    unread: OwnedFd,
}

impl Running {
    fn start(what: &str) -> Self {
        let mut child = again(module_path!(), "process")
            .env(WHAT, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = child.stderr.take().unwrap();
        let unread = stderr.as_fd().try_clone_to_owned().unwrap();
        let dumps = serde_json::Deserializer::from_reader(stderr).into_iter();
        Self { child, lines, dumps, unread }
    }

    fn heard(&mut self, expected: &str) {
        let said = self.lines.by_ref().find(|line| line.as_ref().unwrap().contains("said: "));
        let said = said.unwrap_or_else(|| panic!("it ended before `{expected}`")).unwrap();
        assert!(said.ends_with(expected), "{said}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn say_go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn dump(&mut self) -> Value {
        self.dumps.next().unwrap().unwrap()
    }

    /// Checks that nothing is left to read from a process that has ended.
    fn assert_no_more(&mut self) {
        assert!(self.dumps.next().is_none());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_state_comes_while_a_handler_holds_the_only_execution_stream() {
    let mut service = Running::start("stuck");
    service.heard("held");
    // And as often as it is asked.
    for _ in 0..2 {
        service.signal(Signal::USR1);
        let dump = service.dump();
        assert_eq!(dump["phase"], "running");
        assert_eq!(dump["process"]["id"], service.child.id());
        assert_eq!(dump["handlers_running"], 1, "{dump:#}");
        assert_eq!(dump["busy_xstreams"], serde_json::json!(["__primary__"]), "{dump:#}");
        assert_eq!(dump["config"]["margo"]["dump_on_signal"], "usr1");
        assert_eq!(dump["config"]["mercury"]["address"], dump["address"]);
    }
    assert!(service.child.try_wait().unwrap().is_none(), "it goes on");
}

#[test]
fn each_instance_that_has_the_signal_answers_until_it_ends() {
    let mut service = Running::start("several");
    service.heard("ready");
    service.signal(Signal::USR2);
    let (first, second) = (service.dump(), service.dump());
    assert_ne!(first["address"], second["address"]);
    service.say_go_on();
    service.heard("one is over");
    service.signal(Signal::USR2);
    let left = service.dump();
    assert!([&first, &second].iter().any(|dump| dump["address"] == left["address"]));
    service.say_go_on();
    service.heard("all are over");
    service.signal(Signal::USR2);
    service.say_go_on();
    assert!(service.child.wait().unwrap().success(), "the signal has no effect any more");
    service.assert_no_more();
}

#[test]
fn who_writes_to_standard_error_does_not_wait_until_a_dump_is_read() {
    let mut service = Running::start("unread");
    service.heard("ready");
    let room = rustix::pipe::fcntl_setpipe_size(&service.unread, 4096).unwrap();
    service.signal(Signal::USR1);
    // Until it is full: the dump is longer than that, and its lines may not fill it.
    let begun = Instant::now();
    while rustix::io::ioctl_fionread(&service.unread).unwrap() + 1024 < room as u64 {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no dump");
        std::thread::yield_now();
    }
    service.say_go_on();
    service.heard("free");
    let dump = service.dump();
    assert_eq!(dump["phase"], "running");
    assert!(format!("{dump:#}").len() > room, "it was written at once");
    service.say_go_on();
    assert!(service.child.wait().unwrap().success());
    service.assert_no_more();
}

#[test]
fn a_handler_of_the_programs_stays_and_is_called_too() {
    let mut service = Running::start("beside");
    service.heard("called 1");
    service.say_go_on();
    service.heard("called 2");
    assert_eq!(service.dump()["config"]["margo"]["dump_on_signal"], "usr1");
    service.say_go_on();
    service.heard("called 3");
    service.say_go_on();
    assert!(service.child.wait().unwrap().success());
    service.assert_no_more();
}
