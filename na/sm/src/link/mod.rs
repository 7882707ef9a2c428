//! The link between two processes: the memory that they share, what is said in it, and how they
//! find each other.
//!
//! - Imports: of `sm`, `address.rs`, `mapping.rs` and `wake/`; of the crate, `address`, `base`,
//!   `group`, `limits`, `memory` and `options`.
//! - Reading order: `ring.rs`, `lane.rs`, `gate.rs`, `turns.rs` (protocols of plain atomics,
//!   model-checked) · `segment.rs` (the memory) · `record.rs` (what a ring carries) ·
//!   `handshake.rs`, `socket.rs`, `closer.rs`, `listener.rs` (how peers meet) · `accepted.rs` (how
//!   many may come) · `group.rs` (the endpoints behind one name) · `conn.rs`, `alive.rs` (a
//!   connection).

#[cfg(not(loom))]
pub(super) mod accepted;
#[cfg(not(loom))]
pub(super) mod alive;
#[cfg(not(loom))]
pub(super) mod closer;
#[cfg(not(loom))]
pub(super) mod conn;
#[allow(unreachable_pub, reason = "public for the models only")]
pub mod gate;
#[cfg(not(loom))]
pub(super) mod group;
#[cfg(not(loom))]
pub(super) mod handshake;
#[allow(unreachable_pub, reason = "public for the models only")]
pub mod lane;
#[cfg(not(loom))]
pub(super) mod listener;
#[cfg(not(loom))]
pub(super) mod record;
#[allow(unreachable_pub, reason = "public for the models only")]
pub mod ring;
#[cfg(not(loom))]
pub(super) mod segment;
#[cfg(not(loom))]
pub(super) mod socket;
#[allow(unreachable_pub, reason = "public for the models only")]
pub mod turns;

#[cfg(not(loom))]
pub(crate) use self::{
    conn::{CONTROL_WAITING_MAX, Conn, Control, Fault, sleep_reasons},
    ring::{Consumer, LINE, Producer, Record, RingMemory, Violation, capacity_for, payload_max},
    segment::{MappedRing, OFFERS_MAX, RING_BYTES, Segment, check_ring_bytes, total_bytes},
};
