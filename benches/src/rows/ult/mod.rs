//! Rows of user-level threads.

pub(crate) mod fib;
pub(crate) mod idle;
pub(crate) mod memory;
pub(crate) mod on_ult;
pub(crate) mod switch;
pub(crate) mod sync;
pub(crate) mod tasklet;
pub(crate) mod wake;
