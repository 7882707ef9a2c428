//! The instance that users hold, and the state that its parts share.
//!
//! May import the folders below: the state of each chapter stands there and knows no instance; what
//! a chapter does with it stands above. Read `inner.rs`, then `address_file.rs`.

pub(crate) mod address_file;
pub(crate) mod inner;
