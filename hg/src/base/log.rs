//! The log of the instance that a core belongs to. Events keep the targets `margo::hg::…`, so a
//! subscriber that listens to `margo` hears the RPC core as well.

pub(crate) use tracing::Log;

/// As [`tracing::log!`], with the module's target below `margo`.
macro_rules! log {
    ($log:expr, $level:ident, $($event:tt)+) => {
        ::tracing::log!(
            target: concat!("margo::", module_path!()), $log, $level, $($event)+
        )
    };
}
pub(crate) use log;
