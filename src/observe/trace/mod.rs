//! Traces: calls that belong together, across processes, and files that show them.
//!
//! A call that is made outside of any handler begins a *trace*, if it is sampled. Everything that
//! its handler does, in whatever process, is part of the trace, and so is the work of handlers that
//! it calls, and so on. [`current`] names the trace that the caller is part of, for logs. Instances
//! whose configuration says so (`margo.trace`, or the environment variable `MARGO_ENABLE_TRACE`)
//! record their part of a trace in a file; `margo trace join` makes one of several, for
//! `ui.perfetto.dev`. See `docs/tracing.md`.
//!
//! | | file |
//! |---|---|
//! | ids; how they go from unit to unit | `context.rs` |
//! | who is sampled; from spans to records | `tracer.rs` |
//! | records, and the thread that writes them | `record.rs`, `observe/queue.rs` |
//! | the file: events, on which track, at what time | `file.rs`, `lanes.rs`, `clock.rs` |
//!
//! A call that is not traced pays for one look: whether the caller has inherited something, or its
//! instance records. A request that is part of a trace says so beside its header
//! (`hg/src/wire/extension.rs`). An instance that does not record passes on what it got.

mod call_span;
mod clock;
mod context;
mod file;
mod lanes;
mod record;
mod tracer;

pub use self::call_span::SpanOfTrace;
pub(crate) use self::call_span::{Recorded, SliceStart, Within};
pub use self::context::{SpanId, TraceContext, TraceId, current, within};
pub(crate) use self::context::{begin_unit, to_wire};
pub(crate) use self::tracer::Tracer;
