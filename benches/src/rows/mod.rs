//! Rows: the figures of margo, each beside its floor.

pub(crate) mod argobots;
pub(crate) mod net;
pub(crate) mod rpc;
pub(crate) mod sweep;
pub(crate) mod ult;
