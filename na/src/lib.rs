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
//! # Where it is
//!
//! Everything but this is re-exported: the contract, memory and messages from `na/core`, whose
//! header says more; a transport, with the feature of its name, from a crate of that name.
//!
//! | file | what it has |
//! |---|---|
//! | `auto_sm/` | one endpoint over shared memory and a network |
//! | `registry.rs` | from a URI to its transport |
//! | `fuzz_addresses.rs` | what fuzzers do with addresses and descriptions |
//!
//! Counterpart: Mercury's NA layer (`na.h`), without per-operation callbacks.

#[cfg(not(loom))]
mod auto_sm;
#[cfg(not(loom))]
mod fuzz_addresses;
#[cfg(not(loom))]
mod registry;

#[cfg(all(feature = "ofi", not(loom)))]
pub use na_ofi as ofi;
#[cfg(all(feature = "sim", not(loom)))]
pub use na_sim as sim;
#[cfg(all(feature = "sm", not(loom)))]
pub use na_sm as sm;
#[cfg(all(feature = "tcp", not(loom)))]
pub use na_tcp as tcp;
#[cfg(all(feature = "ucx", not(loom)))]
pub use na_ucx as ucx;

/// Entry points for fuzzers: whatever bytes they get, they must return. See `fuzz/`.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::fuzz_addresses::addresses;

    #[cfg(feature = "ofi")]
    pub use na_ofi::fuzzing as ofi;
    #[cfg(feature = "sm")]
    pub use na_sm::fuzzing as sm;
    #[cfg(feature = "tcp")]
    pub use na_tcp::fuzzing as tcp;
    #[cfg(feature = "tcp")]
    pub use na_tcp::fuzzing_tls as tls;
    #[cfg(feature = "ucx")]
    pub use na_ucx::fuzzing as ucx;
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
pub use na_core::{
    base::plain,
    base::secret,
    limits::file_limit,
    memory::copy_bytes,
    memory::handed,
    memory::region::{Offer, RetiredMemory},
};

/// The suite that every transport passes.
#[cfg(all(feature = "conformance", not(loom)))]
#[doc(hidden)]
pub use na_core::{conformance, group_conformance};

#[cfg(not(loom))]
pub use self::registry::{
    check_address, ignored, moves_device_memory, open, open_group, plugin_for, plugins,
};
#[cfg(not(loom))]
pub use na_core::{
    Access, Addr, AddrFormat, AllocOptions, Arrival, Certificates, Completion, CopyHelper,
    DeniedReason, Device, DeviceKind, DevicePieces, Endpoint, EndpointStats, Error, LargeBuffers,
    Limits, LingeringMemory, LocalMem, MemPart, Memory, MsgBuf, OpId, OpenOptions, PeerLink,
    PeerName, PeerStats, PeerUsers, Plugin, Principal, RawSegment, Refused, RegionTable,
    RemoteKeys, RemoteMem, RunBlocking, SessionChange, SessionNews, SessionObserver, SharedBuffer,
    SmOptions, Subnet, Tag, TcpOptions, TcpSecurity, Terms, TrafficClass, Transfer, UcxOptions,
    Uri, WeakMem, run_blocking_by,
};
