//! Operations in flight: their names, and the state of each kind. A state knows what its parts have
//! come to and which event that leads to. It starts nothing and takes no lock.
//!
//! - Imports: `base`, `memory`, `proc`, `wire`, `bulk`.
//! - Reading order: `slab.rs` (names, roles and slots) · `tags.rs` · `event.rs` (what operations
//!   lead to) · `call.rs` · `response.rs` (what a call ends with) · `request.rs` (a request that
//!   arrived) · `outgoing_response.rs` · `transfer.rs`.

mod call;
mod event;
mod outgoing_response;
mod request;
mod response;
mod slab;
mod tags;
mod transfer;

pub(crate) use self::{
    call::{Asking, Call, ResultFetch, Told},
    event::{Ended, Event, has_token},
    outgoing_response::{Ack, Destination, OutgoingResponse},
    request::{ArgumentsFetch, IncomingRequest, RequestExtension, ResponsePath},
    slab::{OPS_MAX, Role, SHARDS_MAX, Slab},
    tags::{Space, Tags, target_of},
    transfer::{BulkTransfer, WINDOW_MAX},
};
pub use self::{event::CallKey, response::Response, slab::OpRef};
