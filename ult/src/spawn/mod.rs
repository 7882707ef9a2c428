//! The life of a unit as the program sees it: spawn and join.
//!
//! It may import [`wait`](crate::wait) and what is below it.
//!
//! Read `ult_builder.rs` first (what a spawn does), then `join.rs`. `join_any.rs` joins the first
//! of several, `scope.rs` lets units borrow, and `future.rs` makes futures of joins and waits.
//! `fork.rs` forks without a spawn, and `par.rs` has loops that do so.

pub(crate) mod fork;
pub(crate) mod future;
pub(crate) mod join;
pub(crate) mod join_any;
pub mod par;
pub(crate) mod scope;
pub(crate) mod ult_builder;
