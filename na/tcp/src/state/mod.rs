//! The state of an endpoint, without what is done with it: that stands in `impl` blocks above.
//!
//! - Imports: of `tcp`, `peers/` and what that imports; of the crate below, the matcher.
//! - Reading order: `core.rs` (what all threads share) · `poller.rs` (what the poll alone touches).

pub(crate) mod core;
pub(crate) mod poller;

pub(crate) use self::core::{Core, flush};
pub(crate) use self::poller::{
    BELL, DESK, EVENTS, INBOX, LISTENER, Poller, Redial, TIMER, TIMER_NAME, Ticks, watch_inbox,
};
