//! Endpoints, seen from outside, by transport: the conformance suite over each, what each does
//! beside that, and what hostile, broken and dying peers can do to it.
//!
//! Nothing here owns the process. Tests that do have programs of their own: `alone` (they count,
//! limit or watch what the whole process has, or leave no time for others) and `fork` (they fork
//! children off, which share its descriptors).
#![allow(clippy::unwrap_used, reason = "an unwrap is an assertion here")]

#[path = "../common/mod.rs"]
mod common;

/// Shared memory: `na+sm`.
#[cfg(feature = "sm")]
mod sm {
    mod conformance;
    mod deaths;
    mod early;
    mod faults;
    mod groups;
    mod lacks;
    mod lane;
    mod limits;
    mod many;
    mod offers;
    mod pages;
    mod shares;
    mod users;
}

/// Sockets: `na+tcp`.
#[cfg(feature = "tcp")]
mod tcp {
    #[cfg(feature = "sm")]
    mod early;
    mod endpoint;
    mod faults;
    mod groups;
    mod names;
    mod net;
    mod private;
}

/// Simulated networks within the process: `na+sim`.
#[cfg(feature = "sim")]
mod sim {
    mod conformance;
    mod crashes;
    mod faults;
    mod groups;
    mod program;
    mod runs;
    mod support;
}

/// Libraries for networks, where they are asked for: `ofi+…` and `ucx+…`.
mod fabric {
    #[cfg(all(feature = "ofi", feature = "ucx"))]
    mod addresses;
    #[cfg(feature = "ofi")]
    mod ofi;
    #[cfg(feature = "ucx")]
    mod ucx;
}

// Several transports.
#[cfg(all(feature = "sm", feature = "tcp"))]
mod auto_sm;
#[cfg(all(feature = "tcp", feature = "ofi", feature = "ucx"))]
mod own_address;
#[cfg(all(feature = "tcp", feature = "sm", feature = "sim", feature = "ucx"))]
mod successors;
#[cfg(all(feature = "sm", feature = "tcp"))]
mod wire_corpora;
