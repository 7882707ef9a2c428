//! `margo trace`: files that instances write with `margo.trace`, put together and read.

mod join;
mod out;
mod read;
mod show;
mod tree;

pub(crate) use self::join::run as join;
pub(crate) use self::show::run as show;
