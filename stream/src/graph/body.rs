//! [`Body`].

use super::stop::Stop;

/// A replica of a stage whose types are forgotten.
pub(crate) trait Body: Send {
    /// Runs to its end. What it has of the graph, such as ends of edges, lives until it is dropped.
    fn run(&mut self) -> Result<(), Stop>;
}
