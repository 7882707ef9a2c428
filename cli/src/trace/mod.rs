//! `margo trace`: files that instances write with `margo.trace`, put together and read.

#[cfg(feature = "otlp")]
mod export;
mod join;
mod out;
mod read;
mod show;
mod tree;

#[cfg(feature = "otlp")]
pub(crate) use self::export::run as export;
pub(crate) use self::join::run as join;
pub(crate) use self::show::run as show;
