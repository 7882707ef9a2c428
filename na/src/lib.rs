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

#![cfg_attr(
    not(all(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx")),
    allow(dead_code, reason = "a build without a transport uses only part of what they share")
)]

#[cfg(not(loom))]
mod address;
#[cfg(not(loom))]
mod auto_sm;
#[cfg(not(loom))]
mod base;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod conformance;
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod fuzz_addresses;
#[cfg(not(loom))]
mod hosts;
#[cfg(not(loom))]
mod limits;
#[cfg(all(any(feature = "sm", feature = "tcp", feature = "ofi", feature = "ucx"), not(loom)))]
mod loopback;
#[cfg(all(
    any(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx"),
    not(loom)
))]
mod matching;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod message;
#[cfg(all(feature = "ofi", not(loom)))]
pub mod ofi;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod registry;
#[cfg(all(feature = "sim", not(loom)))]
pub mod sim;
#[cfg(feature = "sm")]
pub mod sm;
#[cfg(all(feature = "tcp", not(loom)))]
pub mod tcp;
#[cfg(all(feature = "ucx", not(loom)))]
pub mod ucx;
#[cfg(all(
    test,
    any(feature = "sm", feature = "tcp", feature = "ofi", feature = "ucx"),
    not(loom)
))]
mod wire_doc;

/// Entry points for fuzzers: whatever bytes they get, they must return. See `fuzz/`.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::fuzz_addresses::addresses;

    #[cfg(feature = "ofi")]
    pub use crate::ofi::fuzzing as ofi;
    #[cfg(feature = "sm")]
    pub use crate::sm::fuzzing as sm;
    #[cfg(feature = "tcp")]
    pub use crate::tcp::fuzzing as tcp;
    #[cfg(feature = "ucx")]
    pub use crate::ucx::fuzzing as ucx;
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
pub use self::{base::plain, limits::file_limit, memory::copy_bytes};

#[cfg(not(loom))]
pub use self::{
    address::{addr::Addr, principal::Principal, uri::Uri, users::PeerUsers},
    base::error::{DeniedReason, Error},
    endpoint::{
        contract::{Endpoint, Limits},
        operation::{Arrival, Completion, MemPart, OpId, Refused, Tag, Transfer},
        plugin::{Device, Plugin},
        stats::{EndpointStats, PeerLink, PeerStats},
    },
    hosts::names::{RunBlocking, run_blocking_by},
    memory::{
        alloc::{AllocOptions, SharedBuffer},
        handles::{LocalMem, Memory, RemoteMem, WeakMem},
        helper::CopyHelper,
        region::RegionTable,
        segment::{Access, RawSegment},
    },
    message::{LargeBuffers, MsgBuf},
    options::{
        network::{AddrFormat, Subnet, TrafficClass},
        open::OpenOptions,
        sm::SmOptions,
        tcp::TcpOptions,
        ucx::{RemoteKeys, UcxOptions},
    },
    registry::{check_address, ignored, open, plugin_for, plugins},
};

/// The parts that the models in `loom-tests` check.
#[cfg(all(loom, feature = "sm"))]
#[doc(hidden)]
pub mod loom_exports {
    pub use crate::sm::link::{gate, lane, ring, turns};
    pub use crate::sm::wake::{doorbell, reports};
}
