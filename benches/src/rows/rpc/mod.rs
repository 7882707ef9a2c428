//! Rows of margo: calls and bulk transfers.

pub(crate) mod bulk;
pub(crate) mod null;
pub(crate) mod pair;
pub(crate) mod scale;
pub(crate) mod scale_apart;
pub(crate) mod timer;
