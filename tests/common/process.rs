//! A service in a process of its own: the test program run again, for its test `service_process`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use margo::Instance;

const ADDRESS: &str = "MARGO_TEST_SERVICE_ADDRESS";

/// In the test `service_process`: if this is such a process, starts the instance, lets `register`
/// add RPCs, and serves until it is killed, at the latest with its parent.
pub(crate) fn serve_if_asked(register: impl FnOnce(&Instance)) {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let service = Instance::builder(address).start().unwrap();
    register(&service);
    println!("listening on {}", service.self_addr());
    std::io::stdout().flush().unwrap();
    service.wait_for_finalize().unwrap();
}

/// Such a process. Killed when dropped.
pub(crate) struct Service {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    pub(crate) address: String,
}

impl Service {
    pub(crate) fn start(address: &str) -> Self {
        Self::start_with(ADDRESS, address)
    }

    /// One that finds out what to start from this variable.
    pub(crate) fn start_with(variable: &str, value: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "service_process", "--nocapture"])
            .env(variable, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut service = Self { child, lines, address: String::new() };
        service.address = service.line_after("listening on ");
        service
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

    /// Waits until it has ended by itself; whether with success.
    pub(crate) fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client for the service at `address`.
pub(crate) fn client_for(address: &str) -> Instance {
    let own = address.split("://").next().unwrap();
    Instance::builder(format!("{own}://")).listen(false).start().unwrap()
}
