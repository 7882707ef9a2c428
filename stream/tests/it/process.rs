//! Processes of their own: the test program run again, for the test `process` of a module.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The variable that says what such a process is.
const ROLE: &str = "MARGO_TEST_STREAM_ROLE";

/// The words of the role, if this is such a process. It ends with its parent.
pub(crate) fn role() -> Option<Vec<String>> {
    let role = std::env::var(ROLE).ok()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    Some(role.split(' ').map(str::to_owned).collect())
}

/// In such a process: a line for its parent.
pub(crate) fn say(line: &str) {
    println!("say {line}");
    std::io::stdout().flush().unwrap();
}

/// A process of its own, which is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Runs the test `process` of the module whose `module_path!()` this is, in a role.
    pub(crate) fn start(module: &str, role: &str) -> Self {
        let inside = module.split_once("::").unwrap().1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("{inside}::process"), "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line that it says; `None` when it has ended.
    pub(crate) fn hear(&mut self) -> Option<String> {
        self.lines.by_ref().find_map(|line| {
            // The test program's own output may stand before it.
            line.unwrap().split_once("say ").map(|(_, said)| said.to_owned())
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
