//! The meaning of errors for the peer: by libfabric's number, where that tells it, else by the
//! device's own (`prov_errno` in `fi_cq.3`), which each provider numbers in its own way.

use std::ffi::c_int;

use ofi_sys::raw;

use na_core::DeniedReason;

/// The meaning that the failure of an operation has for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It cannot be reached, or not any more.
    Gone,
    /// It does not allow that: of transfers only.
    Denied(DeniedReason),
}

/// A number of a device that says more than libfabric's.
#[derive(Debug)]
pub(crate) struct Code {
    /// libfabric's number with which it comes.
    errno: c_int,
    device: c_int,
    means: Meaning,
}

const fn code(errno: c_int, device: c_int, means: Meaning) -> Code {
    Code { errno, device, means }
}

const NO_KEY: Meaning = Meaning::Denied(DeniedReason::NoSuchKey);
const NO_ACCESS: Meaning = Meaning::Denied(DeniedReason::Access);

/// `verbs`: `enum ibv_wc_status` (rdma-core, `libibverbs/verbs.h`), which comes with `FI_EIO`,
/// whatever it is but a flush (`vrb_report_wc` in `verbs_cq.c`); RxM passes it on.
pub(crate) static VERBS: [Code; 3] = [
    // IBV_WC_REM_ACCESS_ERR: also a key that there is not, and memory that is too short.
    code(libc::EIO, 10, NO_ACCESS),
    // IBV_WC_RETRY_EXC_ERR: nobody acknowledges.
    code(libc::EIO, 12, Meaning::Gone),
    // IBV_WC_RNR_RETRY_EXC_ERR: its receives are gone; it would be waited for without an end.
    code(libc::EIO, 13, Meaning::Gone),
];

/// `cxi`: `enum c_return_code` (`cassini_user_defs.h`). libfabric's number is `FI_EIO` but for two
/// (`proverr2errno` in `cxip_cq.c`).
///
/// A key is looked for among those that are linked to one table of the endpoint (standard
/// registrations, as all are here, see `cxi.rs`): without the key the table has no such entry,
/// without the process no such table. A peer that makes optimized registrations has a table for
/// each, so that one of its keys which is void looks like its end.
pub(crate) static CXI: [Code; 7] = [
    // UNDELIVERABLE: the node or the way to it is down.
    code(libc::EIO, 2, Meaning::Gone),
    // PERM_VIOLATION
    code(libc::EIO, 5, NO_ACCESS),
    // OP_VIOLATION: the entry is not for puts, or not for gets.
    code(libc::EIO, 6, NO_ACCESS),
    // ENTRY_NOT_FOUND
    code(libc::EIO, 18, NO_KEY),
    // VNI_NOT_FOUND: no process of this job is there.
    code(libc::EIO, 25, Meaning::Gone),
    // PTLTE_NOT_FOUND
    code(libc::EIO, 26, Meaning::Gone),
    // MST_CANCELLED: the key was taken back under way (`cxil_invalidate_pte_le`).
    code(libc::EIO, 29, NO_KEY),
];

/// `efa`: `EFA_IO_COMP_STATUS_…` and, from 4096 on, `FI_EFA_ERR_…` (`efa_errno.h`). Since libfabric
/// 1.22 that has a number of libfabric's for each (`to_fi_errno`); from 1.16 on all came with
/// `FI_EIO`, and before, the device's number was not told.
pub(crate) static EFA: [Code; 9] = [
    // REMOTE_ERROR_BAD_ADDRESS: no such key, no such access, or out of its range.
    code(libc::EINVAL, 7, NO_ACCESS),
    code(libc::EIO, 7, NO_ACCESS),
    // REMOTE_ERROR_ABORT
    code(libc::EIO, 8, Meaning::Gone),
    // REMOTE_ERROR_BAD_DEST_QPN: its endpoint is closed.
    code(libc::EIO, 9, Meaning::Gone),
    // LOCAL_ERROR_UNRESP_REMOTE
    code(libc::EIO, 13, Meaning::Gone),
    // REMOTE_ERROR_UNKNOWN_PEER: another one is there that does not know us.
    code(libc::EIO, 14, Meaning::Gone),
    // LOCAL_ERROR_UNREACH_REMOTE
    code(libc::EIO, 15, Meaning::Gone),
    // ESTABLISHED_RECV_UNRESP
    code(libc::EIO, 4124, Meaning::Gone),
    // UNESTABLISHED_RECV_UNRESP
    code(libc::EIO, 4126, Meaning::Gone),
];

/// Returns the meaning that an error has for the peer, if any. `codes` are those of the provider's
/// devices.
pub(crate) fn meaning(codes: &[Code], errno: c_int, device: c_int) -> Option<Meaning> {
    match errno as u32 {
        _ if means_gone(errno) => Some(Meaning::Gone),
        raw::FI_EACCES | raw::FI_EPERM => Some(NO_ACCESS),
        raw::FI_ENOKEY | raw::FI_EKEYREJECTED => Some(NO_KEY),
        _ => {
            let is_it = |code: &&Code| code.errno == errno && code.device == device;
            codes.iter().find(is_it).map(|code| code.means)
        }
    }
}

/// Returns whether an error says that the peer cannot be reached, or not any more.
pub(crate) fn means_gone(errno: c_int) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ENOTCONN
            | libc::EPIPE
            | libc::ESHUTDOWN
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::EADDRNOTAVAIL
            | libc::ETIMEDOUT
            | libc::ENODEV
            | libc::ENXIO
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::provider::named;

    #[test]
    fn the_numbers_of_a_device_mean_something_for_its_provider_alone() {
        let meaning =
            |provider: &str, errno, device| named(provider).unwrap().meaning(errno, device);
        let gone = Some(Meaning::Gone);
        for (provider, errno, device, means) in [
            ("verbs", libc::EIO, 10, Some(NO_ACCESS)),
            ("verbs", libc::EIO, 12, gone),
            ("verbs", libc::EIO, 13, gone),
            // A flush, an error of ours, and what RxM says by itself.
            ("verbs", libc::ECANCELED, 5, None),
            ("verbs", libc::EIO, 4, None),
            ("verbs", libc::EIO, -libc::ENOMEM, None),
            ("verbs", libc::ENOMEM, 12, None),
            ("tcp;ofi_rxm", libc::EIO, 12, None),
            ("tcp", libc::EIO, 10, None),
            ("cxi", libc::EIO, 5, Some(NO_ACCESS)),
            ("cxi", libc::EIO, 6, Some(NO_ACCESS)),
            ("cxi", libc::EIO, 18, Some(NO_KEY)),
            ("cxi", libc::EIO, 29, Some(NO_KEY)),
            ("cxi", libc::EIO, 26, gone),
            ("cxi", libc::EHOSTUNREACH, 2, gone),
            ("cxi", libc::ENOTCONN, 25, gone),
            ("cxi", libc::EIO, 10, None),
            ("efa", libc::EINVAL, 7, Some(NO_ACCESS)),
            ("efa", libc::EIO, 7, Some(NO_ACCESS)),
            ("efa", libc::EINVAL, 5, None),
            ("efa", libc::EIO, 12, None),
            ("efa", libc::EIO, 15, gone),
            ("efa", libc::EIO, 4124, gone),
            ("efa", libc::ENOTCONN, 9, gone),
            ("shm", libc::EIO, 26, None),
            ("opx", libc::EACCES, 0, Some(NO_ACCESS)),
            ("opx", libc::EIO, 10, None),
        ] {
            assert_eq!(meaning(provider, errno, device), means, "{provider} {errno} {device}");
        }
    }
}
