//! The observation of calls: their spans, and the monitors that are told of them.
//!
//! Each call can have a *span* at its origin and another one at its target, each bulk transfer one
//! where it was asked for: a record of its moments, sizes and outcome, filled in as the call goes
//! on (`span.rs`), and handed out once, when nothing can be added any more (`cell.rs`), to those
//! who are attached ([`Monitor`]).
//!
//! | end | hooks | called in |
//! |---|---|---|
//! | origin | `origin.rs` | `forward.rs`, `driver.rs`, `call.rs` |
//! | target | `target.rs` | `run_handler.rs`, `error_response.rs`, `admit.rs`, `driver.rs` |
//! | bulk | `transfer.rs` | `bulk/transfer.rs`, `driver.rs` |
//!
//! One byte decides, when a call begins, whether it has a span. Every call reads that byte: while
//! it is zero, nothing else happens here.

mod c_layout;
mod cell;
pub(crate) mod files;
mod histogram;
mod monitoring;
mod of_call;
mod origin;
mod progress_sampler;
mod row_cache;
mod rows;
mod series;
mod served;
mod slot;
mod source;
mod statistics;
mod target;
mod transfer;
mod user;

pub use self::histogram::Figures;
pub(crate) use self::monitoring::Monitoring;
pub(crate) use self::origin::{CallAbout, CallWatch};
pub(crate) use self::progress_sampler::ProgressSampler;
pub(crate) use self::served::Served;
pub(crate) use self::source::{Source, dump, read};
pub use self::statistics::{
    BulkFigures, BulkStatistics, OriginFigures, OriginStatistics, ProgressStatistics, RpcName,
    Statistics, TargetFigures, TargetStatistics,
};
pub(crate) use self::target::{RequestWatch, Serving, SpanOfRequest};
pub(crate) use self::transfer::BulkWatch;
pub(crate) use self::user::InitialMonitors;
pub use self::user::{AttachedMonitor, LifeEvent, Monitor};
pub use super::clock::Moment;
pub use super::parent::{current_rpc_id, set_current_rpc_id};
pub use super::span::{
    BulkDirection, BulkOfRequest, BulkOutcome, BulkSpan, CallOutcome, OriginSpan, RequestOfBulk,
    RequestOutcome, TargetSpan,
};
