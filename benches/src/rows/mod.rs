//! Rows: the figures of margo, each beside its floor.
//!
//! Imports from `base`, `process` and `floors`. From the bottom up: `ult/`, `argobots/` (the same
//! by C Argobots' programs), `net/` (below the ULTs), `sweep/` (the same by C Mercury's programs),
//! `rpc/` (margo itself), `device.rs` (memory of GPUs), `services/` (the providers), `streams/`
//! (margo-stream).

pub(crate) mod argobots;
pub(crate) mod device;
pub(crate) mod net;
pub(crate) mod rpc;
pub(crate) mod services;
pub(crate) mod streams;
pub(crate) mod sweep;
pub(crate) mod ult;
