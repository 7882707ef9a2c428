//! Processes of their own for tests: the test program run again, for one test of a module.
//!
//! A service is the test `service_process` of the module that starts it. It dies with the thread
//! that started it, or when its [`Service`] is dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use margo::Instance;

pub(crate) use super::alone::{again, asked};

const ADDRESS: &str = "MARGO_TEST_SERVICE_ADDRESS";

/// In the test `service_process`: if this is such a process, starts the instance, lets `register`
/// add RPCs, and serves until it is killed, at the latest with its parent.
pub(crate) fn serve_if_asked(register: impl FnOnce(&Instance)) {
    let Some(address) = asked(ADDRESS) else { return };
    let service = super::builder(address).start().unwrap();
    register(&service);
    say(&format!("listening on {}", service.self_addr()));
    service.wait_for_finalize().unwrap();
}

/// In such a process: a line for its parent.
pub(crate) fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// A service in a process of its own. Killed when dropped.
pub(crate) struct Service {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    pub(crate) address: String,
}

impl Service {
    /// The service of the module whose `module_path!()` this is, at that address.
    pub(crate) fn start(module: &str, address: &str) -> Self {
        Self::start_with(module, ADDRESS, address)
    }

    /// Starts a service that reads from this variable what to start, and that says where it
    /// listens.
    pub(crate) fn start_with(module: &str, variable: &str, value: &str) -> Self {
        let mut service = Self::spawn(module, variable, value);
        service.address = service.line_after("listening on ");
        service
    }

    /// Starts such a process and does not wait for its address; it need not listen.
    pub(crate) fn spawn(module: &str, variable: &str, value: &str) -> Self {
        let mut child = again(module, "service_process")
            .env(variable, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, address: String::new() }
    }

    /// Reads until a line contains `prefix`; what follows it.
    pub(crate) fn line_after(&mut self, prefix: &str) -> String {
        for line in self.lines.by_ref() {
            if let Some((_, rest)) = line.unwrap().split_once(prefix) {
                return rest.to_owned();
            }
        }
        panic!("the service ended without `{prefix}`");
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }

    /// A line of its `/proc/<pid>/status` that says kibibytes, as bytes.
    pub(crate) fn memory(&self, key: &str) -> usize {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap().trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// Waits until all of its threads sleep; not for long, as over some fabrics one never does.
    pub(crate) fn rest(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        // `pid (name) state …`; a thread that ends meanwhile has no state.
        let sleeps = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            let stat = stat.unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
        };
        let begun = std::time::Instant::now();
        while !std::fs::read_dir(&tasks).unwrap().all(sleeps) {
            if begun.elapsed() > std::time::Duration::from_millis(100) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Stops it, and waits until the kernel has: another processor may run it a little longer.
    pub(crate) fn stop(&self) {
        use rustix::process::{Pid, Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        let status = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap();
        assert!(status.is_some_and(|(_, status)| status.stopped()), "the process has ended");
    }

    /// Waits until it has ended by itself; whether with success.
    pub(crate) fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    pub(crate) fn kill(&mut self) {
        na::conformance::end_child(&mut self.child);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        na::conformance::end_child(&mut self.child);
    }
}

/// A client for the service at `address`.
pub(crate) fn client_for(address: &str) -> Instance {
    let own = address.split("://").next().unwrap();
    super::builder(format!("{own}://")).listen(false).start().unwrap()
}
