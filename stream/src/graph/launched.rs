//! The side of a group that a launcher has started: its figures, why it failed, and that it ends
//! with its launcher.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::error::GraphError;
use super::run::{Figures, Report, Run};

/// News that a group has for the launcher that has started it, such as `margo stream run`: a line
/// of standard error that begins with the character RS (0x1e), and is JSON after that.
///
/// A group tells them if the variable [`VARIABLE`](Self::VARIABLE) of its environment has a number
/// of milliseconds: the figures of its edges so often, and in the end.
///
/// ```
/// use margo_stream::graph::GroupNews;
///
/// let line = b"\x1e{\"failed\":{\"why\":\"no such file\",\"peer\":null}}";
/// assert!(matches!(GroupNews::parse(line), Some(GroupNews::Failed { peer: None, .. })));
/// assert_eq!(GroupNews::parse(b"a message of the program"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupNews {
    /// Figures of an edge since the start; see [`EdgeFigures`](super::EdgeFigures).
    Edge {
        /// The edge, as documents name it.
        edge: String,
        /// Items that this group has sent.
        items: u64,
        /// Bytes that have come from other groups.
        bytes: u64,
        /// Bundles that wait here.
        queued: usize,
        /// Bytes of credit that are in use.
        held: u64,
        /// Bytes of credit.
        credit: u64,
    },
    /// The group has failed.
    Failed {
        /// The reason.
        why: String,
        /// The other group whose failure or end is the reason.
        peer: Option<String>,
    },
}

impl GroupNews {
    /// The variable that says that a launcher listens, and how often.
    pub const VARIABLE: &str = "MARGO_STREAM_LAUNCHER";

    /// The first byte of a line that has news.
    pub const MARK: u8 = 0x1e;

    /// Reads a line, without its end. `None`: it is something else.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line.strip_prefix(&[Self::MARK])?).ok()
    }

    /// Tells the launcher, by standard error.
    pub fn tell(&self) {
        let Ok(json) = serde_json::to_string(self) else { return };
        // In one piece, so that the lines of other threads are not in its midst; lost if nobody
        // listens.
        let line = format!("{}{json}\n", char::from(Self::MARK));
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn tell_all(report: &Report) {
        for edge in &report.edges {
            let name = format!("{}->{}", edge.from, edge.to);
            let (items, bytes, queued) = (edge.items, edge.bytes, edge.queued);
            Self::Edge { edge: name, items, bytes, queued, held: edge.held, credit: edge.credit }
                .tell();
        }
    }
}

/// Time between two figures, if there is a launcher that wants them.
fn interval() -> Option<Duration> {
    let text = std::env::var(GroupNews::VARIABLE).ok()?;
    text.parse().ok().map(|msec: u64| Duration::from_millis(msec.max(10)))
}

/// Tells the launcher, if there is one, why a group has failed.
pub(crate) fn told<T>(outcome: Result<T, GraphError>) -> Result<T, GraphError> {
    if let Err(error) = &outcome
        && interval().is_some()
    {
        let peer = match error {
            GraphError::Peer { group, .. } => Some(group.clone()),
            _ => None,
        };
        GroupNews::Failed { why: error.to_string(), peer }.tell();
    }
    outcome
}

/// Waits for the end of a run, and tells the launcher, if there is one, how far it is.
pub(crate) fn join(run: Run) -> Result<Report, GraphError> {
    let Some(interval) = interval() else { return run.join() };
    let (end, ended) = mpsc::channel::<()>();
    let figures: Arc<Figures> = run.figures();
    let tell = move || {
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            GroupNews::tell_all(&figures.report());
        }
    };
    let start = |name: &str| thread::Builder::new().name(name.to_owned());
    let teller = start("stream-figures").spawn(tell);
    // Not waited for: it may read until the process ends.
    let _ = start("stream-stdin").spawn(end_with_standard_input);
    let outcome = run.join();
    drop(end);
    // It has nothing to return, and a thread that did not start has nothing to tell.
    let _ = teller.map(thread::JoinHandle::join);
    outcome.inspect(GroupNews::tell_all)
}

/// Ends this process, as SIGTERM does, with a standard input that had a byte: behind `ssh` and the
/// like that is how the end of a launcher is known. Others have no input at all.
fn end_with_standard_input() {
    let mut has_begun = false;
    loop {
        match rustix::io::read(std::io::stdin(), &mut [0; 64]) {
            Ok(0) => break,
            Ok(_) => has_begun = true,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    if has_begun {
        let _ = kill_process(getpid(), Signal::TERM);
    }
}
