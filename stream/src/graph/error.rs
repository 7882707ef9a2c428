//! [`GraphError`].

use std::sync::Arc;

use super::stop::BoxError;

/// The reason why a graph does not run, or has not run to its end.
///
/// ```
/// use margo_stream::graph::{Graph, GraphError};
///
/// let graph = Graph::new();
/// let _ports = graph.source("read", ["80", "http"]).try_map(str::parse::<u16>).collect();
/// match graph.run() {
///     Err(GraphError::Stage { stage, .. }) => assert_eq!(stage, "read"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The graph is not complete, or contradicts itself.
    #[error("the graph cannot run: {0}")]
    Plan(PlanErrors),
    /// A stage has failed: its code has returned an error.
    #[error("stage `{stage}`, replica {replica}: {cause}")]
    Stage {
        /// The stage.
        stage: Arc<str>,
        /// The replica of the stage.
        replica: usize,
        /// The error.
        #[source]
        cause: BoxError,
    },
    /// The code of a stage has panicked.
    #[error("stage `{stage}`, replica {replica}: panicked: {message}")]
    Panicked {
        /// The stage.
        stage: Arc<str>,
        /// The replica of the stage.
        replica: usize,
        /// The message of the panic.
        message: String,
    },
    /// A ULT of the graph has not started, or was ended from outside.
    #[error("stage `{stage}`, replica {replica}: its ULT has not run to its end")]
    Lost {
        /// The stage.
        stage: Arc<str>,
        /// The replica of the stage.
        replica: usize,
    },
    /// A stage could not be started.
    #[error("stage `{stage}`: {cause}")]
    Start {
        /// The stage.
        stage: Arc<str>,
        /// The reason.
        #[source]
        cause: BoxError,
    },
    /// The runtime for the graph could not be started, or ended.
    #[error("the runtime of the graph: {0}")]
    Runtime(#[source] BoxError),
    /// The run was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The run has not ended in time.
    #[error("the run has not ended by its deadline")]
    Late,
}

/// All that is wrong with a graph. Never empty; prints one thing per line.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let _ = graph.source("numbers", [1, 2]);
/// let errors = graph.plan().check().unwrap_err();
/// assert!(errors.to_string().contains("`numbers`"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanErrors(pub(crate) Vec<String>);

impl PlanErrors {
    /// The complaints.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl std::fmt::Display for PlanErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for PlanErrors {}
