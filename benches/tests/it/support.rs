//! Running the program in a process group of its own, and looking at that group.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A running program. Dropping it kills its whole group.
pub(crate) struct Bench {
    child: Child,
    text: Arc<Mutex<String>>,
    ended: mpsc::Receiver<()>,
}

impl Bench {
    /// Starts it; its output is collected.
    pub(crate) fn start(words: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_margo-bench"))
            .args(words)
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = Arc::new(Mutex::new(String::new()));
        let (sender, ended) = mpsc::channel();
        let (stdout, into) = (child.stdout.take().unwrap(), text.clone());
        std::thread::spawn(move || {
            collect(stdout, &into);
            let _ = sender.send(());
        });
        Self { child, text, ended }
    }

    /// The process group.
    pub(crate) fn group(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until it has printed `text`.
    pub(crate) fn wait_for_output(&self, text: &str) {
        within(Duration::from_secs(60), text, || self.text.lock().unwrap().contains(text));
    }

    /// Sends a signal to it, and to none of its children.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved; the process is our child and not reaped yet.
        assert_eq!(unsafe { libc::kill(self.group(), signal) }, 0);
    }

    /// Stops its first row for good, and gives the row's process id.
    pub(crate) fn stop_first_row(&self) -> i32 {
        let mut found = None;
        within(Duration::from_secs(60), "a row", || {
            found = row_of(self.group());
            found.is_some()
        });
        let child = found.unwrap();
        // SAFETY: no memory is involved; the id was that of a child of our child just now.
        assert_eq!(unsafe { libc::kill(child, libc::SIGSTOP) }, 0, "the row has ended already");
        child
    }

    /// Waits for its end: all that it printed, and its exit code.
    pub(crate) fn finish(mut self, limit: Duration) -> (String, Option<i32>) {
        self.ended.recv_timeout(limit).expect("it does not end");
        let status = self.child.wait().unwrap();
        assert!(status.code().is_some() || status.signal().is_some());
        (self.text.lock().unwrap().clone(), status.code())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: no memory is involved. The group is our own child's, which is not reaped before
        // `wait` below, or empty.
        unsafe { libc::kill(-self.group(), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

fn collect(stdout: ChildStdout, into: &Mutex<String>) {
    let mut reader = BufReader::new(stdout);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
        into.lock().unwrap().push_str(&line);
        line.clear();
    }
}

/// Waits until `done`, and fails when it takes longer than `limit`.
pub(crate) fn within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::yield_now();
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// Returns whether a process of this id exists and is more than a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _, _)| state != 'Z' && state != 'X')
}

/// Returns whether any process of the group is more than a zombie.
pub(crate) fn group_is_alive(group: i32) -> bool {
    processes().any(|pid| {
        stat(pid).is_some_and(|(state, _, of)| of == group && state != 'Z' && state != 'X')
    })
}

/// Returns how many children a process has.
pub(crate) fn children_of(parent: i32) -> usize {
    processes().filter(|pid| stat(*pid).is_some_and(|(_, of, _)| of == parent)).count()
}

/// A folder with shell programs of these names.
pub(crate) fn programs(all: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, body) in all {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn row_of(parent: i32) -> Option<i32> {
    let is_row = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(b"__row")
    };
    processes().filter(is_row).find(|pid| stat(*pid).is_some_and(|(_, of, _)| of == parent))
}

fn processes() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// State, parent and group of a process.
fn stat(pid: i32) -> Option<(char, i32, i32)> {
    let mut text = String::new();
    std::fs::File::open(format!("/proc/{pid}/stat")).ok()?.read_to_string(&mut text).ok()?;
    // The second field is the program's name in parentheses and may contain anything.
    let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
    Some((
        fields.next()?.chars().next()?,
        fields.next()?.parse().ok()?,
        fields.next()?.parse().ok()?,
    ))
}
