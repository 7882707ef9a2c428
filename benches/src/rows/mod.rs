//! Rows: the figures of margo, each beside its floor.

pub(crate) mod argobots;
pub(crate) mod bulk;
pub(crate) mod echo;
pub(crate) mod fabric;
pub(crate) mod hg_proc;
pub(crate) mod na_sm;
pub(crate) mod na_tcp;
pub(crate) mod pair;
pub(crate) mod rpc;
pub(crate) mod rpc_scale;
pub(crate) mod rpc_scale_apart;
pub(crate) mod sweep;
pub(crate) mod timer_callback;
pub(crate) mod ult_fib;
pub(crate) mod ult_idle;
pub(crate) mod ult_memory;
pub(crate) mod ult_switch;
pub(crate) mod ult_sync;
pub(crate) mod ult_tasklet;
pub(crate) mod ult_wake;

mod hg_rtt;
mod na_rtt;
mod on_ult;
