//! The context in which a row is measured.

use std::path::PathBuf;

use crate::base::wait::Deadline;
use crate::report::machine::Cores;

/// Handed to each row's measurement.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// Where both sides run. The row process is pinned to `cores.origin`.
    pub(crate) cores: Cores,
    /// As little as shows that the row works.
    pub(crate) quick: bool,
    /// When the row has to be done.
    pub(crate) deadline: Deadline,
    /// Where programs of C Mercury are that shall be measured beside.
    pub(crate) mercury: Option<PathBuf>,
}
