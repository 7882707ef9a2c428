//! The RPC core: Mercury's protocol over `na`.
//!
//! It turns an [`na::Endpoint`], which moves messages and memory, into requests, responses and bulk
//! transfers with the bytes of C Mercury and C Margo. It knows neither ULTs nor JSON: an operation
//! takes a token of the caller's choice and gives it back, exactly once, through a [`Sink`].
//!
//! This crate is internal to `margo`, which re-exports what its users see. Other items are public
//! for `margo`, its tests and its benchmarks; they are not covered by semantic versioning.
//!
//! # Reading order
//!
//! - `format.rs`, `checksum.rs`, `header.rs`, `id.rs`, `margo.rs`, `wire.rs`: the frame of
//!   arguments, and whole messages;
//! - `proc/`: how values are encoded;
//! - `bulk/`: how memory is described to peers;
//! - `core.rs`, `options.rs`: the [`Core`], and the rules for all operations;
//! - `registry.rs`: which RPCs there are; `contexts.rs`: several contexts on one
//!   endpoint;
//! - `contact.rs`: the question to a peer before the first call;
//! - `context.rs`: progress and trigger, from a completion of the network to a call of the sink;
//! - `forward.rs`, `handle.rs`, `reply.rs`, `local.rs`, `overflow.rs`, `transfer.rs`: calls,
//!   requests and their answers, responses, calls to ourselves, long arguments and results, bulk
//!   transfers; `endings.rs`: what cancels them;
//! - `ops.rs`, `receives.rs`, `buffers.rs`, `spare.rs`, `slots.rs`: the parts that they are made
//!   of.
//!
//! # Trust
//!
//! Every byte that a peer sent is checked before use: counts against the bytes that are there,
//! lengths against [`HgOptions`]. A malformed message costs its sender an error and costs no other
//! peer anything.
//!
//! Counterpart: `mercury_core.c`, `mercury.c`, `mercury_bulk.c`, `mercury_proc.c`.

#![deny(unsafe_code)]

mod buffers;
pub mod bulk;
mod checksum;
mod clock;
mod code;
mod contact;
mod context;
mod contexts;
mod core;
mod counters;
mod endings;
mod error;
mod extension;
mod format;
mod forward;
/// Entry points for fuzzers: whatever bytes they get, they must return. See `fuzz/`.
#[doc(hidden)]
pub mod fuzzing;
mod handle;
pub mod header;
mod id;
mod inspect;
mod kept;
mod local;
mod log;
pub mod margo;
mod notices;
mod ops;
mod options;
mod overflow;
pub mod proc;
mod raw_request;
mod receives;
mod registry;
mod reply;
mod slots;
mod spare;
#[cfg(test)]
mod tests;
mod too_long;
mod transfer;
#[expect(unsafe_code, reason = "bytes that are ASCII are text")]
mod utf8;
mod watch;
pub mod wire;

pub use self::{
    bulk::{Bulk, BulkDesc, BulkOp, LocalBytes, LocalPart, MemoryAttr, MemoryKind},
    checksum::{ChecksumLevel, PayloadSum},
    clock::Stamp,
    code::ReturnCode,
    context::Sink,
    core::{Core, MESSAGE_BYTES_MIN},
    counters::{Counters, InHand},
    error::{HgError, ProcError, WireError},
    extension::{Extension, TraceParent},
    format::{Accept, Build, Format},
    forward::ForwardOptions,
    handle::{LentRequest, RequestHandle, RequestParts, Response, Sent},
    id::{ProviderId, RpcId},
    inspect::{CallMark, CallNumber, PeerCalls},
    notices::CallKey,
    ops::OpRef,
    options::HgOptions,
    proc::{Bytes, ConstStr, ProcLimits, Raw, Writer},
    raw_request::RawRequest,
    registry::{Registration, Removed},
    watch::Watch,
};
