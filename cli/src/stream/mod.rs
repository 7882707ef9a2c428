//! `margo stream`: graphs of stages ([`margo_stream::graph`]) as processes, a group in each.
//!
//! `command.rs` makes the words with which a group is started; `plan.rs` has a program show its
//! plan; `lines.rs` takes lines out of pipes, `group.rs` is a group that runs, `table.rs` what is
//! shown of all of them, and `run.rs` the loop that waits for whatever happens.
//!
//! # Who ends the groups
//!
//! | what happens | who ends the other groups |
//! |---|---|
//! | a group fails | `run.rs`: SIGTERM, and after [`GRACE`](run::GRACE) SIGKILL |
//! | another group's failure makes one fail | the groups themselves; after a while as above |
//! | Ctrl-C, SIGTERM; standard output is closed | as above |
//! | a second Ctrl-C, a kill of ours | the kernel: each child asked for that, see [`exec`] |
//! | the same, behind `ssh` and the like | the group, whose standard input ends |
//!
//! Children have process groups of their own, so that Ctrl-C in a terminal reaches only us.

mod command;
mod group;
mod lines;
mod plan;
mod run;
mod table;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use margo::daemon::Failure;
use margo_stream::graph::{GraphDocument, GroupNews};

pub(crate) use self::plan::plan;
pub(crate) use self::run::run;
use crate::support::{document, signals};

/// Reads the document of a graph.
fn read(file: &Path) -> Result<GraphDocument, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    let read = GraphDocument::from_json(&text).map_err(|error| document::invalid(file, error))?;
    match read.groups.is_empty() {
        true => Err(document::invalid(file, "groups: there are none")),
        false => Ok(read),
    }
}

/// `margo stream exec`, for ourselves: a process that dies with us, as it is to be before the
/// program begins.
fn child(words: &[String]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("margo").args(["stream", "exec", "--parent", &std::process::id().to_string()]);
    command.arg("--").args(words);
    command
}

/// `margo stream exec`.
pub(crate) fn exec(parent: i32, words: &[String]) -> Result<(), Failure> {
    signals::die_with(parent)?;
    let error = Command::new(&words[0]).args(&words[1..]).exec();
    GroupNews::Failed { why: format!("cannot start `{}`: {error}", words[0]), peer: None }.tell();
    // As shells do. Nothing more is said.
    std::process::exit(127)
}
