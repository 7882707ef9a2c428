//! [`GraphError`].

use std::fmt;
use std::sync::Arc;

use margo::config::Errors;

use super::stop::BoxError;

/// The reason why a graph does not run, or has not run to its end.
///
/// ```
/// use margo_stream::graph::{Graph, GraphError};
///
/// let graph = Graph::new();
/// let _ports = graph.source("read", ["80", "http"]).try_map(str::parse::<u16>).collect();
/// match graph.run() {
///     Err(GraphError::Stage { stage, .. }) => assert_eq!(&*stage, "read"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(thiserror::Error)]
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
    /// An edge to another group is broken: that group has failed, or cannot be reached.
    #[error("stage `{stage}`, edge {edge}, group `{group}`: {cause}")]
    Peer {
        /// The stage here.
        stage: Arc<str>,
        /// The edge, as documents name it.
        edge: String,
        /// The other group.
        group: String,
        /// The error.
        #[source]
        cause: BoxError,
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
    /// The document cannot be read, or does not fit the graph.
    #[error("the graph cannot be cut so: {0}")]
    Document(#[source] Errors),
    /// The arguments of the program are not understood.
    #[error(
        "`{0}`: no arguments, `--group NAME FILE`, or `--plan FILE [--svg OUT]`, are understood"
    )]
    Arguments(String),
    /// The plan cannot be written.
    #[error("cannot write {path}: {cause}")]
    Output {
        /// The file.
        path: String,
        /// The reason.
        #[source]
        cause: BoxError,
    },
    /// An endpoint of a group could not be started, or others have it.
    #[error("endpoint {address}: {cause}")]
    Endpoint {
        /// The address in the document.
        address: String,
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

/// As `Display` has it: a `main` that returns the error says it in words.
impl fmt::Debug for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error of an edge between groups, on its way to [`GraphError::Peer`].
#[derive(Debug, thiserror::Error)]
#[error("edge {edge}, group `{group}`: {cause}")]
pub(crate) struct PeerError {
    pub(crate) edge: String,
    pub(crate) group: String,
    #[source]
    pub(crate) cause: BoxError,
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
