//! Support for the tests of the command.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};

/// Far beyond what a loaded machine needs; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Takes back what this process was started to ignore (`nohup`, daemons), for it and for what it
/// starts: a handler that does nothing is replaced by the default when a program is executed.
pub(crate) fn ignore_nothing() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        // Not SIGPIPE, which is so in every Rust program, and is set back in what that starts.
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGUSR1, SIGUSR2, SIGXFSZ] {
            if ignored >> (signal - 1) & 1 == 1 {
                signal_hook::flag::register(signal, Arc::default()).unwrap();
            }
        }
    });
}

/// The command, with a temporary directory of its own and without the tester's settings.
pub(crate) fn margo(temp: &Path) -> Command {
    ignore_nothing();
    let mut command = Command::new(env!("CARGO_BIN_EXE_margo"));
    command
        .env("TMPDIR", temp)
        .env_remove("MARGO_LOG")
        .env_remove("MARGO_LOG_LEVEL")
        .env_remove("RUST_LOG")
        .current_dir(temp)
        .stdin(Stdio::null());
    command
}

/// Runs it to its end; `input` is its standard input.
pub(crate) fn run(command: &mut Command, input: &str) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that does not read its input may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    ended(Running::new(child))
}

/// Waits for the end, within bounds.
pub(crate) fn ended(mut running: Running) -> Ended {
    // Read while it runs: it may print more than a pipe holds.
    let (stdout, stderr) = (read(running.child.stdout.take()), read(running.child.stderr.take()));
    let status = running.wait();
    Ended { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Reads a stream to its end, if there is one.
fn read(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        stream.into_iter().for_each(|mut stream| _ = stream.read_to_string(&mut text).unwrap());
        text
    })
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A child that does not outlive the test.
pub(crate) struct Running {
    pub(crate) child: Child,
}

impl Running {
    pub(crate) fn new(child: Child) -> Self {
        Self { child }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the end; panics if it takes too long.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for_end(self.pid());
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a process has ended; one that is gone has.
pub(crate) fn wait_for_end(pid: Pid) {
    let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    // The end of another child may interrupt it.
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timeout)));
    assert_eq!(ready, Ok(1), "process {pid:?} does not end");
}

/// A service that runs as a child.
pub(crate) struct Service {
    pub(crate) running: Running,
    pub(crate) address: String,
    pub(crate) stdout: BufReader<ChildStdout>,
}

impl Service {
    /// Starts `margo serve` with a blob provider over `dir` and waits for its address.
    pub(crate) fn start(temp: &Path, address: &str, blobs: &Path, more: &[&str]) -> Self {
        let config = serde_json::json!({ "margo": { "address": address, "providers": [
            { "type": "blob", "provider_id": 1,
              "config": { "path": blobs, "chunk_bytes": 65536 } },
            { "type": "echo", "provider_id": 2 },
        ] } });
        let mut child = margo(temp)
            .args(["serve", "-", "--die-with", &std::process::id().to_string()])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        Self::of(child)
    }

    /// Waits for the address of a `margo serve` whose standard output is a pipe.
    pub(crate) fn of(mut child: Child) -> Self {
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            panic!("{line:?} {:#?}", ended(Running::new(child)));
        };
        let address = address.to_owned();
        Self { running: Running::new(child), address, stdout }
    }
}

/// Asks again and again until there is an answer; gives the CPU away in between.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// The processes whose parent is `pid`.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let parent_of = |stat: &str| -> Option<i32> {
        // The name of the program is in parentheses and may contain anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let Some(number) = path.file_name().and_then(|name| name.to_str()?.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(path.join("stat")) else { continue };
        if parent_of(&stat) == Some(pid.as_raw_pid()) {
            found.extend(Pid::from_raw(number));
        }
    }
    found
}

/// Every file below `dir`; what vanishes meanwhile is left out.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.is_dir() && !path.is_symlink() {
                pending.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the sorted names of a directory's own entries.
pub(crate) fn entries(dir: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
