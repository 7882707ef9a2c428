//! What is particular about Slingshot (`cxi`): options of its domain, and authorisation.

use std::ffi::c_int;

use ofi_sys::{Version, call, raw};

use crate::Error;

/// The first library whose provider has the options below.
const OPTIONS_SINCE: Version = Version { major: 1, minor: 20 };

/// `-FI_PROV_SPECIFIC_CXI` in `fi_cxi_ext.h`: the first of the provider's own commands, in order.
const COMMANDS: c_int = -(0xccc << 16);
const SET_MR_MATCH_EVENTS: c_int = COMMANDS + 3;
const SET_OPTIMIZED_MRS: c_int = COMMANDS + 5;
const SET_PROV_KEY_CACHE: c_int = COMMANDS + 7;

/// Something that the domain should do or not, and what it means if it cannot be told.
struct DomainOption {
    command: c_int,
    value: bool,
    /// Only where the provider chooses the keys of memory (`FI_MR_PROV_KEY`).
    of_provider_keys: bool,
    otherwise: &'static str,
}

/// As `na_ofi_cxi_set_domain_ops` in `na_ofi.c`, which says why.
const DOMAIN_OPTIONS: [DomainOption; 3] = [
    DomainOption {
        command: SET_PROV_KEY_CACHE,
        value: false,
        of_provider_keys: true,
        otherwise: "memory stays within reach of peers after its key was taken back",
    },
    DomainOption {
        command: SET_OPTIMIZED_MRS,
        value: false,
        of_provider_keys: true,
        otherwise: "the key of memory that is gone may come to stand for other memory",
    },
    DomainOption {
        command: SET_MR_MATCH_EVENTS,
        value: true,
        of_provider_keys: false,
        otherwise: "taking a key back costs a call into the kernel",
    },
];

/// Tells a domain that was just opened that taking back a key shall end access: by default the
/// provider keeps registrations for the next use of the same memory. What cannot be set goes to
/// `refused`, with the error number and what it means.
///
/// # Safety
///
/// The domain is open, of provider `cxi`, and nothing was opened in it.
pub(super) unsafe fn set_domain_options(
    domain: *mut raw::fid_domain,
    version: Version,
    mr_mode: u32,
    mut refused: impl FnMut(c_int, &'static str),
) {
    for option in &DOMAIN_OPTIONS {
        if option.of_provider_keys && mr_mode & raw::FI_MR_PROV_KEY == 0 {
            continue;
        }
        let mut value = option.value;
        let set = match version >= OPTIONS_SINCE {
            // SAFETY: the domain is open, and begins with its `fid`; the argument is a `bool`.
            true => unsafe {
                call::control(domain.cast(), option.command, (&raw mut value).cast())
            },
            false => call::NO_SYS,
        };
        if set != 0 {
            refused(-set, option.otherwise);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::c_void;

    use super::*;

    thread_local! {
        static TOLD: RefCell<Vec<(c_int, bool)>> = const { RefCell::new(Vec::new()) };
    }

    /// A domain's `control` that knows of no optimised registrations.
    unsafe extern "C" fn control(_: *mut raw::fid, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the argument of each of these commands is a `bool`.
        let value = unsafe { arg.cast::<bool>().read() };
        TOLD.with_borrow_mut(|told| told.push((command, value)));
        if command == SET_OPTIMIZED_MRS { -libc::EINVAL } else { 0 }
    }

    /// What a domain is told, and what it refused.
    fn told(major: u16, minor: u16, mr_mode: u32) -> (Vec<(c_int, bool)>, Vec<c_int>) {
        let mut ops = raw::fi_ops {
            size: size_of::<raw::fi_ops>(),
            close: None,
            bind: None,
            control: Some(control),
            ops_open: None,
            tostr: None,
            ops_set: None,
        };
        let context = std::ptr::null_mut();
        let fid = raw::fid { fclass: 0, context, ops: &raw mut ops };
        let (ops, mr) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut domain = raw::fid_domain { fid, ops, mr };
        let mut refused = Vec::new();
        // SAFETY: a domain with what is asked of it.
        unsafe {
            let version = Version { major, minor };
            set_domain_options(&raw mut domain, version, mr_mode, |errno, _| refused.push(errno));
        }
        (TOLD.take(), refused)
    }

    /// The numbers are those of the C enumeration.
    #[test]
    fn memory_shall_not_be_kept_registered() {
        let provider_keys = [(-0x0ccb_fff9, false), (-0x0ccb_fffb, false), (-0x0ccb_fffd, true)];
        let (set, refused) = told(1, 20, raw::FI_MR_PROV_KEY);
        assert_eq!((&set[..], &refused[..]), (&provider_keys[..], &[libc::EINVAL][..]));
        assert_eq!(told(2, 4, raw::FI_MR_ENDPOINT), (vec![(-0x0ccb_fffd, true)], vec![]));
        let too_old = told(1, 19, raw::FI_MR_PROV_KEY);
        assert_eq!(too_old, (vec![], vec![libc::ENOSYS; 3]));
    }
}
