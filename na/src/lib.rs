//! Network abstraction: endpoints that exchange small messages and move registered memory.
//!
//! A [`Plugin`] opens an [`Endpoint`] for a URI such as `na+sm://` or `na+tcp://127.0.0.1:0`.
//! An endpoint does two things:
//!
//! - **messages**: *unexpected* ones (requests: any source, taken by whichever receive is posted
//!   next) and *expected* ones (replies: taken by the receive that names their source and tag);
//! - **remote memory access**: [`put`](Endpoint::put) and [`get`](Endpoint::get) between memory
//!   that both sides registered.
//!
//! Nothing here blocks and nothing here calls back. A buffer moves *into* an operation and comes
//! back in that operation's [`Completion`], which [`Endpoint::poll`] reports exactly once,
//! whatever happens: success, failure, cancel, death of the peer, close of the endpoint. So no
//! memory is ever borrowed by an operation in flight, and cancelling is sound.
//!
//! # Reading order
//!
//! `endpoint.rs` (the contract) · `message.rs`, `memory.rs`, `addr.rs` (what it is made of) ·
//! `registry.rs` (URI to plugin) · `region.rs`, `keys.rs` (registered memory) · `sm/`, `tcp/`,
//! `sim/`, `ofi/`, `ucx/` (the transports) · `conformance.rs` (the suite that each of them passes).
//!
//! Counterpart: Mercury's NA layer (`na.h`), without per-operation callbacks.

#![cfg_attr(
    not(all(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx")),
    allow(dead_code, reason = "a build without a transport uses only part of what they share")
)]

#[cfg(not(loom))]
mod addr;
#[cfg(not(loom))]
mod alloc;
#[cfg(not(loom))]
mod auto_sm;
#[cfg(all(any(feature = "tcp", feature = "ofi", feature = "ucx"), not(loom)))]
mod budget;
#[cfg(not(loom))]
mod cheap;
#[cfg(all(any(feature = "sm", feature = "tcp", feature = "ofi", feature = "ucx"), not(loom)))]
#[cfg_attr(not(feature = "sm"), allow(dead_code, reason = "sm uses more of it than the others"))]
mod copy;
/// For the layer above, too.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod copy_bytes;
#[cfg(all(any(feature = "sm", feature = "tcp", feature = "ucx"), not(loom)))]
mod descriptors;
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod error;
/// For what the layer above writes.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod file_limit;
#[cfg(all(any(feature = "sm", feature = "tcp"), not(loom)))]
mod fuzz_target;
#[cfg(all(any(feature = "tcp", feature = "ucx"), not(loom)))]
mod host_port;
#[cfg(all(any(feature = "tcp", feature = "ofi", feature = "ucx"), not(loom)))]
mod interface;
#[cfg(not(loom))]
mod keys;
#[cfg(all(any(feature = "sm", feature = "tcp", feature = "ofi", feature = "ucx"), not(loom)))]
mod loopback;
#[cfg(all(
    any(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx"),
    not(loom)
))]
pub(crate) mod matching;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
#[cfg_attr(
    not(any(feature = "tcp", feature = "ofi", feature = "ucx")),
    allow(dead_code, reason = "only some transports have names of hosts")
)]
mod names;
#[cfg(not(loom))]
mod network_options;
#[cfg(all(any(feature = "tcp", feature = "ofi", feature = "ucx"), not(loom)))]
mod own_address;
#[cfg(not(loom))]
#[allow(unreachable_pub, reason = "public for the models only")]
mod parts;
#[cfg(loom)]
pub mod parts;
/// For the layer above, too.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod plain;
#[cfg(not(loom))]
mod principal;
#[cfg(all(any(feature = "sm", feature = "tcp", feature = "ucx"), not(loom)))]
mod ran;

mod random;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod registry;
#[cfg(not(loom))]
mod sm_options;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod tcp_options;
#[cfg(not(loom))]
mod ucx_options;
#[cfg(not(loom))]
mod uri;
#[cfg(all(
    test,
    any(feature = "sm", feature = "tcp", feature = "ofi", feature = "ucx"),
    not(loom)
))]
mod wire_doc;

#[cfg(not(loom))]
#[doc(hidden)]
pub mod conformance;
/// Entry points for fuzzers: whatever bytes they get, they must return. See `fuzz/`.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::uri::fuzzing::addresses;

    #[cfg(feature = "ofi")]
    pub use crate::ofi::fuzzing as ofi;
    #[cfg(feature = "sm")]
    pub use crate::sm::fuzzing as sm;
    #[cfg(feature = "tcp")]
    pub use crate::tcp::fuzzing as tcp;
    #[cfg(feature = "ucx")]
    pub use crate::ucx::fuzzing as ucx;
}
#[cfg(all(feature = "ofi", not(loom)))]
pub mod ofi;
#[cfg(all(feature = "sim", not(loom)))]
pub mod sim;
#[cfg(feature = "sm")]
pub mod sm;
#[cfg(all(feature = "tcp", not(loom)))]
pub mod tcp;
#[cfg(all(feature = "ucx", not(loom)))]
pub mod ucx;

/// Primitives, under the names that the layer above knows them by.
#[doc(hidden)]
pub use prim::{claim, lock, shared};
#[cfg(not(loom))]
#[doc(hidden)]
pub use prim::{fork, lost, standard::keep_standard_descriptors};

#[cfg(not(loom))]
pub use self::{
    addr::Addr,
    alloc::{AllocOptions, SharedBuffer},
    endpoint::{
        Arrival, Completion, CopyHelper, Endpoint, Limits, MemPart, OpId, OpenOptions, PeerUsers,
        Refused, Tag, Transfer,
    },
    error::{DeniedReason, Error},
    memory::{Access, LocalMem, Memory, RawSegment, RemoteMem, WeakMem},
    message::{LargeBuffers, MsgBuf},
    names::{RunBlocking, run_blocking_by},
    network_options::{AddrFormat, Subnet, TrafficClass},
    principal::Principal,
    region::RegionTable,
    registry::{Device, Plugin, check_address, ignored, open, plugin_for, plugins},
    sm_options::SmOptions,
    stats::{EndpointStats, PeerLink, PeerStats},
    tcp_options::TcpOptions,
    ucx_options::{RemoteKeys, UcxOptions},
    uri::Uri,
};

/// What the models in `loom-tests` check.
#[cfg(all(loom, feature = "sm"))]
#[doc(hidden)]
pub mod loom_exports {
    pub use crate::parts;
    pub use crate::sm::{doorbell, gate, lane, reports, ring, turns};
    pub use prim::lock;
    pub use prim::shared::counts;
}
