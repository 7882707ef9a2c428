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
//! One folder after the other, lowest first; each `mod.rs` says in which order to read its files:
//!
//! - `base/`, `memory/`, `proc/` (how values are encoded), `wire/` (headers and whole messages),
//!   `bulk/` (how memory is described to peers): data, without a core;
//! - `ops/`: the states of operations in flight;
//! - `core/`: the [`Core`], and the rules for all operations; `options.rs`;
//! - `overflow/`: arguments and results that do not fit into a message;
//! - `origin/`, `requests/`, `transfer/`: calls, their targets, bulk transfers;
//! - `progress/`: from a completion of the network to a call of the [`Sink`].
//!
//! # Trust
//!
//! Every byte that a peer sent is checked before use: counts against the bytes that are there,
//! lengths against [`HgOptions`]. A malformed message costs its sender an error and costs no other
//! peer anything.
//!
//! Counterpart: `mercury_core.c`, `mercury.c`, `mercury_bulk.c`, `mercury_proc.c`.

#![deny(unsafe_code)]

mod base;
pub mod bulk;
mod core;
/// Entry points for fuzzers: whatever bytes they get, they must return. See `fuzz/`.
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod ops;
mod options;
mod origin;
mod overflow;
pub mod proc;
mod progress;
mod requests;
mod transfer;
pub mod wire;

pub use self::{
    base::{
        clock::Stamp,
        code::ReturnCode,
        counters::{Counters, InHand},
        error::{HgError, ProcError, WireError},
        id::{ProviderId, RpcId},
        membership::Membership,
    },
    bulk::{Bulk, BulkDesc, BulkOp, LocalBytes, LocalPart, MemoryAttr, MemoryKind},
    core::{
        inspect::{CallMark, CallNumber, PeerCalls},
        registry::{Holders, Registration, Removed},
        rpc_core::{Core, MESSAGE_BYTES_MIN},
        watch::Watch,
    },
    ops::{CallKey, OpRef, Response},
    options::HgOptions,
    origin::forward::ForwardOptions,
    proc::{Bytes, ConstStr, ProcLimits, Raw, Writer},
    progress::sink::Sink,
    requests::{
        raw_request::RawRequest,
        request::{LentRequest, RequestHandle, RequestParts, Sent, TakenPayload},
    },
    wire::{
        checksum::{ChecksumLevel, PayloadSum},
        extension::{Extension, OwnSecret, Proof, TraceParent},
        format::{Accept, Build, Format},
        header, margo,
        on_behalf::OnBehalfOf,
    },
};

#[cfg(test)]
mod tests;
