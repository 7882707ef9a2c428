//! Graphs of stages: a dataflow program in one process, or cut into groups.
//!
//! A *stage* is a source, or what takes the items of other stages, with the operators that they go
//! through. It has one or more *replicas*, each of which is a ULT. The operators of a stage are
//! fused: an item goes through them by plain calls. Between stages are *edges*, on which items
//! travel in bundles, through channels with room for a few of them; a replica that finds no room
//! waits, so that a slow stage holds up those before it and nothing grows.
//!
//! ```
//! use margo_stream::graph::Graph;
//!
//! let graph = Graph::new();
//! let counts = graph
//!     .source("read", ["to be or not", "to be"].map(str::to_owned))
//!     .expand(|line, words| words.extend(line.split(' ').map(|word| (word.to_owned(), 1))))
//!     .keyed()
//!     .farm("count", 2) // all of a word go to one of the two
//!     .fold(0, |count, one| *count += one)
//!     .collect();
//! graph.run()?;
//! let mut counts = counts.take();
//! counts.sort();
//! assert_eq!(counts[3], ("to".to_owned(), 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **The end.** A stage ends when all its producers have ended, and gives on what its operators
//! have kept. A stage that fails or panics ends the whole graph, and the run returns the error with
//! its name. A stage that returns early is no failure: its producers go on for others, or end if
//! there are none.
//!
//! **Order.** The items of a producer that go to the same replica keep their order, and those of a
//! key all go to the same replica.
//!
//! **Large data** beside an item is a [`Blob`], which edges do not copy.
//!
//! **Groups.** A [document](GraphDocument) in JSON cuts a graph into groups: between stages, and
//! across the replicas of one. Each group is a process, and all of them run the same program, each
//! with its own name ([`Graph::run_from_args`], [`Graph::run_group`]); they may start in any order.
//! An edge to another group is a [stream](crate::Receiver) for each queue there, named
//! `GRAPH/FROM->TO/REPLICA` (without the replica where all share a queue), whose senders are the
//! replicas of the other groups. The results are those of one process. A group that fails or dies
//! ends its neighbours with [`GraphError::Peer`], and these end theirs. `margo stream run` of
//! margo-cli starts all groups of a document, and [`GroupNews`] is what they tell it.
//!
//! Imports all of the crate. Read `stop.rs`, `operator.rs`; `edge.rs`, `state.rs`, `outlet.rs`,
//! `body.rs`, `feedback.rs`, `wiring.rs`, `head.rs`; `blob.rs`, `builder.rs`, `keyed.rs`,
//! `window.rs`, `order.rs`, `join.rs`, `split.rs`; `error.rs`, `plan.rs`, `run.rs`; `document.rs`,
//! `fastflow.rs`, `resolve.rs`, `draw.rs`; `links.rs`, `life.rs`, `remote.rs`, `launched.rs`,
//! `group.rs`.

mod blob;
mod body;
mod builder;
mod document;
mod draw;
mod edge;
mod error;
mod fastflow;
mod feedback;
mod group;
mod head;
mod join;
mod keyed;
mod launched;
mod life;
mod links;
mod operator;
mod order;
mod outlet;
mod plan;
mod remote;
mod resolve;
mod run;
mod split;
mod state;
mod stop;
mod window;
mod wiring;

pub use blob::Blob;
pub use builder::{Collected, Flow, Graph, Outcome, ReplicaAt};
pub use document::{ChannelOptions, GraphDocument, Group, GroupEndpoint, Launcher};
pub use edge::Spread;
pub use error::{GraphError, PlanErrors};
pub use head::{Emit, StageIo};
pub use join::Side;
pub use keyed::KeyedFlow;
pub use launched::GroupNews;
pub use operator::{Next, Operator, Pass};
pub use plan::{Plan, PlannedEdge, PlannedStage};
pub use resolve::{Cut, CutChannel, CutGroup};
pub use run::{EdgeFigures, Report, Run, RunCanceler, StageFigures};
pub use stop::{BoxError, Stop};
pub use window::{Pane, Window, Windowed};
