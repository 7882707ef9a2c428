//! The second process: `margo serve` with a directory of its own.
//!
//! # Who ends it
//!
//! | what happens | who ends the process | who removes the directory |
//! |---|---|---|
//! | all is well | `Target::stop`, with SIGTERM | `Target`, when dropped |
//! | an error | `Target`, when dropped, with SIGKILL | the same |
//! | Ctrl-C | the signal thread, through the [`Slot`], which makes the calls fail | the same |
//! | a second Ctrl-C | the signal thread | the signal thread |
//! | we are killed | the kernel: the target asked for that | the next demo (`scratch.rs`) |
//!
//! It has a process group of its own, so that Ctrl-C in a terminal reaches only us.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use margo::ProviderId;
use margo::daemon::LISTENING_ON;
use margo_config::{Config, Provider};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::scratch::Scratch;
use margo::daemon::Failure;

/// Which of its providers are used.
pub(super) const STORE: ProviderId = ProviderId::new(1);
pub(super) const ECHO: ProviderId = ProviderId::new(2);
pub(super) const KEYS: ProviderId = ProviderId::new(3);

/// How long the target may take to start; a loaded machine needs less.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long it may take to end; its own grace period for handlers is 5 s.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// How long to wait for the kernel to say that it died, after a call failed.
const DEATH_LIMIT: Duration = Duration::from_millis(300);

/// The running target, as the signal thread sees it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    interrupted: AtomicBool,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    dir: PathBuf,
}

impl Slot {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user wants to stop: ends the target, so that all calls end.
    pub(super) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release); // pair: DEMO-INTERRUPTED
        if let Some(running) = self.running().as_mut() {
            let _ = running.child.kill();
        }
    }

    /// The user will not wait: ends the target and removes its directory.
    pub(super) fn remove(&self) {
        if let Some(mut running) = self.running().take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
            let _ = fs::remove_dir_all(&running.dir);
        }
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire) // pair: DEMO-INTERRUPTED
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// A running target.
#[derive(Debug)]
pub(super) struct Target {
    slot: Arc<Slot>,
    /// Removed after the process has ended, see `drop`.
    _dir: Scratch,
    address: String,
}

impl Target {
    /// Starts it and waits until it listens.
    pub(super) fn start(listen: &str, slot: &Arc<Slot>) -> Result<Self, Failure> {
        let dir = Scratch::new()?;
        let config = configuration(listen, dir.path())?;
        let mut target = Self { slot: slot.clone(), _dir: dir, address: String::new() };
        let stdout = target.spawn(&config)?;
        slot.check()?;
        target.address = target.wait_until_it_listens(stdout)?;
        Ok(target)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn spawn(&self, config: &str) -> Result<ChildStdout, Failure> {
        // Under the lock, so that an interrupt finds no target or a whole one.
        let mut running = self.slot.running();
        let failed = |error| Failure::new("cannot start the target process", error);
        let mut child = Command::new("/proc/self/exe")
            .arg0("margo")
            .args(["serve", "-", "--die-with", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        *running = Some(Running { child, dir: self._dir.path().to_owned() });
        drop(running);
        // If it died already, the missing address will tell.
        let _ = stdin.map(|mut stdin| stdin.write_all(config.as_bytes()));
        stdout.ok_or_else(|| Failure::Failed("the target has no standard output".to_owned()))
    }

    fn wait_until_it_listens(&self, stdout: ChildStdout) -> Result<String, Failure> {
        let (sender, receiver) = mpsc::channel();
        let read = move || {
            let mut line = String::new();
            if BufReader::new(stdout).read_line(&mut line).is_ok() {
                let _ = sender.send(line);
            }
        };
        std::thread::Builder::new()
            .name("margo-target".to_owned())
            .spawn(read)
            .map_err(|error| Failure::new("cannot start a thread", error))?;
        let line = match receiver.recv_timeout(START_LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                let text = format!("the target process did not start within {START_LIMIT:?}");
                return Err(Failure::Failed(text));
            }
            Err(RecvTimeoutError::Disconnected) => String::new(),
        };
        match line.trim_end().strip_prefix(LISTENING_ON) {
            Some(address) => Ok(address.to_owned()),
            None => Err(self.explain(Failure::Failed("the target process did not start".into()))),
        }
    }

    /// Ends it in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        {
            let mut running = self.slot.running();
            let Some(running) = running.as_mut() else { return Err(Failure::Interrupted) };
            let _ = rustix::process::kill_process(Pid::from_child(&running.child), Signal::TERM);
        }
        match self.ended_within(STOP_LIMIT) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Failure::Failed(format!("the target process ended with {status}"))),
            None => Err(Failure::Failed("the target process does not end".to_owned())),
        }
    }

    /// Adds to `failure` that the target died, if it did.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        match (failure, self.ended_within(DEATH_LIMIT)) {
            (Failure::Failed(text), Some(status)) => {
                Failure::Failed(format!("{text}\nthe target process ended with {status}"))
            }
            (failure, _) => failure,
        }
    }

    fn ended_within(&self, limit: Duration) -> Option<ExitStatus> {
        let pidfd = {
            let running = self.slot.running();
            let pid = Pid::from_child(&running.as_ref()?.child);
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
        };
        if let Some(pidfd) = pidfd {
            let timeout = Timespec::try_from(limit).ok()?;
            // Without the lock, so that an interrupt is not held up. An error means "look now".
            let _ = rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
        }
        self.slot.running().as_mut()?.child.try_wait().ok().flatten()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(mut running) = self.slot.running().take() {
            // Both do nothing when it has ended and been waited for.
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

/// The quickstart configuration, at another address, with a directory of its own, an echo provider
/// to measure with, and a key-value store.
fn configuration(listen: &str, dir: &Path) -> Result<String, Failure> {
    let broken = |why: &str| Failure::new("the quickstart sample", why);
    let (_, sample) = margo_config::samples()
        .iter()
        .find(|(name, _)| *name == "quickstart.json")
        .ok_or_else(|| broken("is missing"))?;
    let mut config = Config::from_json(sample).map_err(|error| broken(&error.to_string()))?;
    config.margo.address = listen.to_owned();
    let dir = dir.to_str().ok_or_else(|| {
        Failure::Failed(format!("the temporary directory {} is not UTF-8", dir.display()))
    })?;
    let store = config
        .margo
        .providers
        .iter_mut()
        .find(|provider| provider.type_name == "blob")
        .ok_or_else(|| broken("has no blob provider"))?;
    store.config.insert("path".to_owned(), format!("{dir}/blobs").into());
    config.margo.providers.push(Provider {
        type_name: "echo".to_owned(),
        name: Some("echo".to_owned()),
        provider_id: Some(ECHO.get()),
        ..Provider::default()
    });
    let mut keys = Provider {
        type_name: "kv".to_owned(),
        provider_id: Some(KEYS.get()),
        ..Provider::default()
    };
    let place = serde_json::json!({ "kind": "redb", "path": format!("{dir}/keys") });
    keys.config.insert("store".to_owned(), place);
    config.margo.providers.push(keys);
    Ok(config.to_json_pretty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::TRANSPORTS;

    #[test]
    fn the_configuration_of_the_target_is_valid() {
        for transport in &TRANSPORTS {
            let dir = tempfile::tempdir().unwrap();
            let text = configuration(transport.listen, dir.path()).unwrap();
            let config = Config::from_json(&text).unwrap();
            assert_eq!(config.margo.address, transport.listen);
            let store = &config.margo.providers[0].config;
            assert_eq!(store["path"], dir.path().join("blobs").to_str().unwrap());
            assert_eq!(config.margo.providers.len(), 3);
        }
    }
}
