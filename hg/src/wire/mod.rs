//! The bytes of messages: headers, the frame of arguments and results, whole messages.
//!
//! - Imports: `base`, `memory`, `proc`.
//! - Reading order: `format.rs` (which build of Mercury, which checksums) · `checksum.rs` ·
//!   `header.rs` · `extension.rs` (what our own peers add) · `introduction.rs` (what members of a
//!   cluster say first) · `on_behalf.rs` ·
//!   `margo.rs` (Margo's frame) · `message.rs`.

pub(crate) mod checksum;
pub(crate) mod extension;
pub(crate) mod format;
pub mod header;
pub(crate) mod introduction;
pub mod margo;
mod message;
pub(crate) mod on_behalf;

pub use self::message::{
    Body, Unencoded, decode_request, decode_response, encode_extended_request, encode_refusal,
    encode_request, encode_response, finish_overflow, is_own_refusal,
};
pub(crate) use self::message::{OWN, finish_overflow_at};
