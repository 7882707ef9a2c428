//! The report: the process of each row, its line in the table, and the header with the machine.
//!
//! Imports from everything but the command line. Read `supervise.rs`, `table.rs`, `machine.rs`.

pub(crate) mod machine;
pub(crate) mod supervise;
pub(crate) mod table;
