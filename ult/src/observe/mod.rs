//! Observers of a running program: dumps, recordings, event sinks, and the watchdog.
//!
//! They may import every folder, and none imports them. What the engine calls for them is in
//! `engine/xstream/diag.rs`; events and rings are in [`trace`](crate::trace).
//!
//! `backtrace.rs` lists units with their stacks; `record.rs` and `chrome.rs` write a timeline;
//! `sink.rs` calls back for events; `monitor.rs` and `starve.rs` find units that hold up others,
//! `system_call.rs` says what a thread is blocked in, and `report_log.rs` logs what they found;
//! `panic_hook.rs` names the unit in a panic message.

pub(crate) mod backtrace;
pub(crate) mod chrome;
pub(crate) mod monitor;
pub(crate) mod panic_hook;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod report_log;
pub(crate) mod sink;
pub(crate) mod starve;
pub(crate) mod system_call;
