//! Devices that a search can find, as their providers describe them.

use std::ffi::c_int;

use ofi_sys::raw;

/// A device. Its values are those of the provider's source where they matter for us.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    pub(crate) provider: &'static str,
    pub(crate) domain: &'static str,
    /// The bus, if it tells.
    pub(crate) bus: Option<u8>,
    /// `FI_SOCKADDR_IN`, `FI_ADDR_…`.
    pub(crate) format: u32,
    /// The address, if it has one of IP.
    pub(crate) ip: [u8; 4],
    /// Bytes of an address, where the format does not say.
    pub(crate) name_bytes: usize,
    pub(crate) protocol: u32,
    /// Beside those that all have.
    pub(crate) caps: u64,
    /// Flags of messages and transfers that may be asked for (`op_flags` in `fi_endpoint.3`).
    pub(crate) tx_op_flags: u64,
    /// Requirements on contexts and the like.
    pub(crate) mode: u64,
    /// Requirements on memory.
    pub(crate) mr_mode: u32,
    /// Wants descriptors of its own operations' memory (`FI_MR_LOCAL`) from callers that offer
    /// them.
    pub(crate) takes_local: bool,
    /// Moves memory of GPUs for those who ask for that.
    pub(crate) hmem: bool,
    pub(crate) key_bytes: usize,
    /// Memory within what was registered before gets the key of that, ended or not.
    pub(crate) caches: bool,
    pub(crate) inject_bytes: usize,
    pub(crate) iov_limit: usize,
    pub(crate) message_bytes: usize,
    /// Receives that it takes at a time.
    pub(crate) receives: usize,
    pub(crate) data_bytes: usize,
    /// Has wait descriptors.
    pub(crate) wait_fd: bool,
    /// The end of a buffer for many messages has a completion of its own.
    pub(crate) releases_apart: bool,
    /// Most entries of a completion queue.
    pub(crate) cq_entries: usize,
    /// A transfer that fails ends the connection, which is there again after a while.
    pub(crate) breaks: bool,
    /// The errors of operations with a peer that is not there, or does not allow them.
    pub(crate) faults: Faults,
}

/// `FI_TRANSMIT_COMPLETE`, which nobody here asks for.
const TRANSMIT_COMPLETE: u64 = 1 << 27;

/// The `op_flags` that every device offers.
const OP_FLAGS: u64 = raw::FI_COMPLETION | TRANSMIT_COMPLETE | raw::FI_DELIVERY_COMPLETE;

/// An error: libfabric's number, and the device's own.
pub(crate) type Fault = (c_int, c_int);

/// The errors that a device reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) no_peer: Fault,
    pub(crate) no_key: Fault,
    pub(crate) no_access: Fault,
    pub(crate) out_of_range: Fault,
}

/// That number, with one of the device's which means nothing.
pub(super) fn plain(errno: c_int) -> Fault {
    (errno, errno + 1000)
}

impl Device {
    /// TCP, of libfabric 1.20 and later.
    pub(crate) fn tcp() -> Self {
        Self {
            provider: "tcp",
            domain: "lo",
            bus: None,
            format: raw::FI_SOCKADDR_IN,
            ip: [127, 0, 0, 1],
            name_bytes: 16,
            protocol: raw::FI_PROTO_XNET,
            caps: raw::FI_MULTI_RECV,
            // `TCPX_TX_OP_FLAGS`, `XNET_TX_OP_FLAGS`; of RxM and `cxi`, too (`RXM_TX_OP_FLAGS`,
            // `CXIP_TX_OP_FLAGS`).
            tx_op_flags: OP_FLAGS | raw::FI_INJECT | raw::FI_INJECT_COMPLETE,
            mode: 0,
            mr_mode: 0,
            takes_local: false,
            hmem: false,
            key_bytes: 8,
            caches: false,
            inject_bytes: 128,
            iov_limit: 8,
            message_bytes: 1 << 30,
            receives: 4096,
            data_bytes: 8,
            wait_fd: true,
            releases_apart: false,
            cq_entries: usize::MAX,
            breaks: false,
            faults: Faults {
                no_peer: plain(libc::EHOSTUNREACH),
                no_key: plain(raw::FI_ENOKEY as c_int),
                no_access: plain(libc::EACCES),
                out_of_range: plain(libc::EINVAL),
            },
        }
    }

    /// InfiniBand with RxM.
    pub(crate) fn verbs() -> Self {
        Self {
            provider: "verbs;ofi_rxm",
            domain: "mlx5_0",
            protocol: raw::FI_PROTO_RXM,
            mr_mode: raw::FI_MR_VIRT_ADDR | raw::FI_MR_ALLOCATED | raw::FI_MR_PROV_KEY,
            takes_local: true,
            caches: true,
            inject_bytes: 16 << 10,
            iov_limit: 4,
            breaks: true,
            faults: Faults {
                no_peer: (libc::EIO, 12),
                no_key: (libc::EIO, 10),
                no_access: (libc::EIO, 10),
                out_of_range: (libc::EIO, 10),
            },
            ..Self::tcp()
        }
    }

    /// Slingshot.
    pub(crate) fn cxi() -> Self {
        Self {
            provider: "cxi",
            domain: "cxi0",
            format: raw::FI_ADDR_CXI,
            name_bytes: 8,
            protocol: raw::FI_PROTO_CXI,
            caps: raw::FI_MULTI_RECV | raw::FI_SOURCE | raw::FI_SOURCE_ERR,
            mr_mode: raw::FI_MR_ENDPOINT | raw::FI_MR_ALLOCATED | raw::FI_MR_PROV_KEY,
            inject_bytes: 192,
            iov_limit: 1,
            receives: 1024,
            faults: Faults {
                no_peer: (libc::EIO, 26),
                no_key: (libc::EIO, 18),
                no_access: (libc::EIO, 6),
                out_of_range: (libc::EIO, 18),
            },
            ..Self::tcp()
        }
    }

    /// AWS' adapter.
    pub(crate) fn efa() -> Self {
        Self {
            provider: "efa",
            domain: "rdmap0s6-rdm",
            format: raw::FI_ADDR_EFA,
            name_bytes: 32,
            protocol: raw::FI_PROTO_EFA,
            caps: 0,
            // `RXR_TX_OP_FLAGS`, `EFA_RDM_TX_OP_FLAGS`: 1.15 to 2.x.
            tx_op_flags: OP_FLAGS | raw::FI_INJECT,
            mr_mode: raw::FI_MR_VIRT_ADDR | raw::FI_MR_ALLOCATED | raw::FI_MR_PROV_KEY,
            takes_local: true,
            key_bytes: 4,
            inject_bytes: 32,
            iov_limit: 4,
            receives: 8192,
            data_bytes: 4,
            wait_fd: false,
            cq_entries: 32_768,
            faults: Faults {
                no_peer: (libc::ENOTCONN, 9),
                no_key: (libc::EINVAL, 7),
                no_access: (libc::EINVAL, 7),
                out_of_range: (libc::EINVAL, 7),
            },
            ..Self::tcp()
        }
    }

    /// Omni-Path, of libfabric before 2.1.
    pub(crate) fn opx() -> Self {
        Self {
            provider: "opx",
            domain: "opx0",
            format: raw::FI_ADDR_OPX,
            name_bytes: 8,
            protocol: raw::FI_PROTO_OPX,
            caps: 0,
            mode: raw::FI_CONTEXT2,
            mr_mode: 0,
            key_bytes: 2,
            inject_bytes: 16,
            data_bytes: 4,
            wait_fd: false,
            ..Self::tcp()
        }
    }

    /// Shared memory.
    pub(crate) fn shm() -> Self {
        Self {
            provider: "shm",
            domain: "shm",
            format: raw::FI_ADDR_STR,
            name_bytes: 0,
            protocol: raw::FI_PROTO_SHM,
            caps: 0,
            // `SMR_TX_OP_FLAGS`.
            tx_op_flags: OP_FLAGS | raw::FI_INJECT_COMPLETE,
            mr_mode: raw::FI_MR_VIRT_ADDR,
            receives: 1024,
            wait_fd: false,
            ..Self::tcp()
        }
    }

    /// All that may be asked for, beside what all devices have.
    pub(super) fn caps_of_all(&self) -> u64 {
        self.caps | if self.hmem { raw::FI_HMEM } else { 0 }
    }

    /// The name of the endpoint with that number, of which so much was asked for.
    pub(super) fn name(&self, number: u64, asked: &[u8]) -> Vec<u8> {
        match self.format {
            raw::FI_SOCKADDR_IN => {
                let mut name = vec![0; 16];
                name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                name[4..8].copy_from_slice(&self.ip);
                let port = asked.get(2..4).filter(|port| *port != [0, 0]);
                let own = (20_000 + number as u16).to_be_bytes();
                name[2..4].copy_from_slice(port.unwrap_or(&own));
                name
            }
            raw::FI_ADDR_STR => match asked {
                [] => format!("fi_shm://fake-{number}\0").into_bytes(),
                asked => asked.to_vec(),
            },
            raw::FI_ADDR_CXI => {
                [&(number as u32).to_ne_bytes()[..], &1337u16.to_ne_bytes(), &[0; 2]].concat()
            }
            _ => {
                let mut name = vec![0x11; self.name_bytes];
                name[..8].copy_from_slice(&(0x0a00_0000_0000_0000 + number).to_le_bytes());
                name
            }
        }
    }
}
