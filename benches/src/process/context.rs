//! The context in which a row is measured, in its process and in its peer's.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::child::{ChildProcess, Role};
use crate::base::{Cores, Deadline, Doing, Result};

/// Handed to each row's measurement, and to the other side of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Context {
    /// The row. Nothing, as long as none is measured.
    pub(crate) id: String,
    /// Where both sides run. The row process is pinned to `cores.origin`, the peer to the other.
    pub(crate) cores: Cores,
    /// As little as shows that the row works.
    pub(crate) quick: bool,
    /// When the row has to be done.
    pub(crate) deadline: Deadline,
    /// Where programs of C Mercury are that shall be measured beside.
    pub(crate) mercury: Option<PathBuf>,
}

impl Context {
    /// The context of the row of that id, whose time begins now.
    pub(crate) fn for_row(&self, id: &str) -> Self {
        let deadline = self.deadline.again(Duration::ZERO);
        Self { id: id.to_owned(), deadline, ..self.clone() }
    }

    /// Starts the row's peer on the target's core: it does what the catalogue says for that row,
    /// with `order`. Main thread of the row process only.
    ///
    /// # Errors
    ///
    /// When there is no such core or no process.
    pub(crate) fn start_peer(&self, order: impl Serialize) -> Result<ChildProcess> {
        self.cores.target()?;
        let order: Value = serde_json::to_value(order).doing("writing an order")?;
        ChildProcess::start(Role::Peer, &(self, order), self.deadline)
    }
}
