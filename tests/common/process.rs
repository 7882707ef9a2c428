//! Processes of their own for tests: the test program run again, for one test of a module.
//!
//! A service is the test `service_process` of the module that starts it. It dies with the thread
//! that started it, or when its [`Service`] is dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use margo::Instance;

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

/// Returns the value of that variable if this process was started with it. The process then ends
/// with its parent.
pub(crate) fn asked(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok()?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    Some(value)
}

/// In such a process: a line for its parent.
pub(crate) fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// The test program, to be run again for that test of the module whose `module_path!()` this is.
pub(crate) fn again(module: &str, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &path_of(module, test), "--nocapture"]);
    command
}

/// The name by which the test program knows a test of that module.
pub(crate) fn path_of(module: &str, test: &str) -> String {
    // The name of the program comes first, and is no part of it.
    let inside = module.split_once("::").map(|(_program, inside)| inside);
    inside.map_or_else(|| test.to_owned(), |inside| format!("{inside}::{test}"))
}

/// Runs the body of a test in a process of its own, where no other test runs beside it.
///
/// The test calls this with its `module_path!()` and its name; in that process, `body` runs.
pub(crate) fn alone(module: &str, test: &str, body: impl FnOnce()) {
    const ALONE: &str = "MARGO_TEST_ALONE";
    let path = path_of(module, test);
    if asked(ALONE).is_some_and(|alone| alone == path) {
        return body();
    }
    let output = again(module, test).env(ALONE, &path).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{path}: {}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{path} did not run");
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
