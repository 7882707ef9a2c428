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
//! # Folders
//!
//! Lowest first; a folder imports those above it in this table, and only those. Each says at the
//! head of its `mod.rs` what it imports and in which order it is read.
//!
//! | folder | what it has |
//! |---|---|
//! | `base/` | errors, and small tools without a state |
//! | `address/` | URIs, addresses of peers, who is behind a peer |
//! | `limits/` | bounds that the system sets, and those that are set to peers |
//! | `memory/` | registered memory, its keys, copies |
//! | `message/` | message buffers |
//! | `options/` | how an endpoint is opened |
//! | `endpoint/` | the contract: operations, [`Endpoint`], [`Plugin`] |
//! | `matching/` | which receive takes which message |
//! | `loopback.rs` | messages and transfers to oneself |
//! | `hosts/` | names of hosts, network interfaces, IP addresses |
//! | `sm/`, `tcp/`, `sim/`, `ofi/`, `ucx/` | the transports, which do not know each other |
//! | `auto_sm/` | one endpoint over shared memory and a network |
//! | `registry.rs` | from a URI to its transport |
//! | `conformance/` | the suite that every transport passes |
//!
//! # Reading order
//!
//! `endpoint/` (the contract) · `message/`, `memory/`, `address/` (what it is made of) ·
//! `registry.rs` (URI to plugin) · `matching/` · a transport: `sm/`, `tcp/`, `sim/`, `ofi/` or
//! `ucx/` · `conformance/`.
//!
//! Counterpart: Mercury's NA layer (`na.h`), without per-operation callbacks.

#[cfg(not(loom))]
mod auto_sm;
#[cfg(not(loom))]
mod fuzz_addresses;
#[cfg(all(feature = "ofi", not(loom)))]
pub mod ofi;
#[cfg(not(loom))]
mod registry;
#[cfg(all(feature = "ucx", not(loom)))]
pub mod ucx;

#[cfg(all(test, not(loom)))]
use na_core::wire_doc;
#[cfg(not(loom))]
use na_core::{address, base, endpoint, hosts, limits, loopback, matching, memory};

#[cfg(all(feature = "sim", not(loom)))]
pub use na_sim as sim;
#[cfg(all(feature = "sm", not(loom)))]
pub use na_sm as sm;
#[cfg(all(feature = "tcp", not(loom)))]
pub use na_tcp as tcp;

/// Entry points for fuzzers: whatever bytes they get, they must return. See `fuzz/`.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::fuzz_addresses::addresses;

    #[cfg(feature = "ofi")]
    pub use crate::ofi::fuzzing as ofi;
    #[cfg(feature = "ucx")]
    pub use crate::ucx::fuzzing as ucx;
    #[cfg(feature = "sm")]
    pub use na_sm::fuzzing as sm;
    #[cfg(feature = "tcp")]
    pub use na_tcp::fuzzing as tcp;
}

/// Primitives, under the names that the layer above knows them by.
#[doc(hidden)]
pub use prim::{claim, lock, shared};
#[cfg(not(loom))]
#[doc(hidden)]
pub use prim::{fork, lost, standard::keep_standard_descriptors};

/// For the layer above, too.
#[cfg(not(loom))]
#[doc(hidden)]
pub use na_core::{base::plain, limits::file_limit, memory::copy_bytes};

/// The suite that every transport passes.
#[cfg(all(any(test, feature = "conformance"), not(loom)))]
#[doc(hidden)]
pub use na_core::conformance;

#[cfg(not(loom))]
pub use self::registry::{check_address, ignored, open, plugin_for, plugins};
#[cfg(not(loom))]
pub use na_core::{
    Access, Addr, AddrFormat, AllocOptions, Arrival, Completion, CopyHelper, DeniedReason, Device,
    Endpoint, EndpointStats, Error, LargeBuffers, Limits, LocalMem, MemPart, Memory, MsgBuf, OpId,
    OpenOptions, PeerLink, PeerStats, PeerUsers, Plugin, Principal, RawSegment, Refused,
    RegionTable, RemoteKeys, RemoteMem, RunBlocking, SharedBuffer, SmOptions, Subnet, Tag,
    TcpOptions, TrafficClass, Transfer, UcxOptions, Uri, WeakMem, run_blocking_by,
};

/// The parts that the models in `loom-tests` check.
#[cfg(all(loom, feature = "sm"))]
#[doc(hidden)]
pub mod loom_exports {
    pub use na_sm::link::{gate, lane, ring, turns};
    pub use na_sm::wake::{doorbell, reports};
}
