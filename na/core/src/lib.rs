//! The contract between `na` and its transports, and what several transports share. Internal to
//! this workspace: for its transports and for `margo-na`, which re-exports what is for users.
//!
//! # Folders
//!
//! Lowest first; a folder imports those above it in this table, and only those. Each says at the
//! head of its `mod.rs` what it imports and in which order it is read.
//!
//! | folder | what it has |
//! |---|---|
//! | `wire_doc.rs` | pages of `docs/`, for tests that compare them with the code |
//! | `base/` | errors, and small tools without a state |
//! | `address/` | URIs, addresses of peers, who is behind a peer |
//! | `limits/` | bounds that the system sets, and those that are set to peers |
//! | `group/` | several endpoints behind one address |
//! | `memory/` | registered memory, its keys, copies |
//! | `message/` | message buffers |
//! | `options/` | how an endpoint is opened |
//! | `endpoint/` | the contract: operations, [`Endpoint`], [`Plugin`] |
//! | `matching/` | which receive takes which message |
//! | `loopback.rs` | messages and transfers to oneself |
//! | `hosts/` | names of hosts, network interfaces, IP addresses |
//! | `conformance/` | the suite that every transport passes, with the feature of that name |
//!
//! # Reading order
//!
//! `endpoint/` (the contract) · `message/`, `memory/`, `address/` (what it is made of) ·
//! `matching/` · `conformance/`.

#![cfg(not(loom))]

pub mod address;
pub mod base;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod conformance;
pub mod endpoint;
pub mod group;
pub mod hosts;
pub mod limits;
pub mod loopback;
pub mod matching;
pub mod memory;
pub mod message;
pub mod options;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod wire_doc;

pub use self::{
    address::{
        addr::Addr,
        principal::{PeerName, Principal},
        uri::{MERCURY_CLASS, Uri, for_mercury_unknown},
        users::PeerUsers,
    },
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
        region::{LingeringMemory, RegionTable},
        segment::{Access, DeviceKind, DevicePieces, RawSegment},
        terms::Terms,
    },
    message::{LargeBuffers, MsgBuf},
    options::{
        network::{AddrFormat, Subnet, TrafficClass},
        open::OpenOptions,
        sessions::{SessionChange, SessionNews, SessionObserver},
        sm::SmOptions,
        tcp::{Certificates, TcpOptions, TcpSecurity},
        ucx::{RemoteKeys, UcxOptions},
    },
};
