//! The types that name each other: units, pools, xstreams and the runtime's shared part.

pub(crate) mod pool;
pub(crate) mod runtime_core;
pub(crate) mod unit;
pub(crate) mod xstream_shared;
