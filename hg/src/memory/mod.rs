//! Memory of messages and payloads that is used again and again.
//!
//! - Imports: `base`.
//! - Reading order: `buffers.rs` (message buffers, and payloads that give theirs back) · `spare.rs`
//!   (vectors of long payloads) · `slots.rs` (registered memory in which a long payload waits for
//!   its peer) · `kept.rs` (the bytes that wait so, counted).

mod buffers;
mod kept;
pub(crate) mod slots;
pub(crate) mod spare;

pub(crate) use self::{
    buffers::{Buffers, Payload},
    kept::{HeldBytes, Kept, Share},
    slots::{ExposedPayload, Slots},
};
