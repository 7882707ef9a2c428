//! Progress: polling of the network, by its own ULTs and by callers that wait.
//!
//! May import the folders of calls, requests and transfers (`origin`, `target`, `bulk`) and what
//! those import. Read `polling.rs` (the progress ULT), `patience.rs` and `when_needed.rs` (how long
//! it polls), `stand_in.rs` (callers that poll), `contexts.rs` and `company.rs` (several of them),
//! `unwinding.rs`.

pub(crate) mod company;
pub(crate) mod contexts;
pub(crate) mod patience;
pub(crate) mod polling;
pub(crate) mod stand_in;
pub(crate) mod unwinding;
pub(crate) mod when_needed;
