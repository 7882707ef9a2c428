//! Options of a domain of Slingshot (`cxi`), and authorisation.

use std::ffi::c_int;

use ofi_sys::{Version, call, raw};

use na_core::Error;

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

/// The options that C sets in `na_ofi_cxi_set_domain_ops` in `na_ofi.c`, which has the reasons.
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
pub(crate) unsafe fn set_domain_options(
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

/// The service, or the network, of which nothing is said: the one that the job was given is looked
/// up.
const FROM_JOB: u32 = 0;

/// Which of the job's networks, if none is said: as in C, the one of the whole job. The first is
/// that of the job's step.
const INDEX: usize = 1;

/// Authorisation, as a user writes it: `SERVICE:VNI[:INDEX]`. What is 0 is what the job was given:
/// the service of the device, and the network number INDEX.
///
/// Source: `na_ofi_parse_cxi_auth_key`, `na_ofi_cxi_find_svc_id`, `na_ofi_cxi_find_vni` in
/// `na_ofi.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AuthKey {
    service: u32,
    network: u16,
    index: usize,
}

impl AuthKey {
    /// Reads what a user wrote.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`].
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (service, rest) = text.split_once(':')?;
            let (network, index) = match rest.split_once(':') {
                Some((network, index)) => (network, index.parse().ok()?),
                None => (rest, INDEX),
            };
            Some(Self { service: service.parse().ok()?, network: network.parse().ok()?, index })
        };
        let wrong = |reason| Error::BadOption {
            option: "auth_key",
            reason: format!("it is `{text}`; {reason}"),
        };
        let key = parse().ok_or_else(|| {
            wrong("cxi takes `SERVICE:VNI` or `SERVICE:VNI:INDEX`, numbers".to_owned())
        })?;
        // To C, the last of several networks, of which it uses all.
        if key.service != 0 && text.matches(':').count() == 2 && key.index > key.network.into() {
            return Err(wrong(format!(
                "with a service this is the range of virtual networks {} to {}, and an endpoint \
                 has one: give each endpoint its own, as `{}:{}`",
                key.network, key.index, key.service, key.network
            )));
        }
        Ok(key)
    }

    /// C's `struct cxi_auth_key` for a device: u32 service, u16 virtual network, padded.
    /// `variable` reads the environment.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] that names the variable in which something is missing or wrong.
    pub(crate) fn resolve(
        self,
        device: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<[u8; 8], Error> {
        let mut service = self.service;
        if service == FROM_JOB {
            let devices = Listed::read("SLINGSHOT_DEVICES", &variable)?;
            let at = devices.items().position(|name| name == device);
            let at = at.ok_or_else(|| devices.bad(&format!("does not have device `{device}`")))?;
            service = Listed::read("SLINGSHOT_SVC_IDS", &variable)?.number(at)?;
        }
        let mut network = self.network;
        if u32::from(network) == FROM_JOB {
            network = Listed::read("SLINGSHOT_VNIS", &variable)?.number(self.index)?;
        }
        let mut key = [0; 8];
        key[..4].copy_from_slice(&service.to_ne_bytes());
        key[4..6].copy_from_slice(&network.to_ne_bytes());
        Ok(key)
    }
}

/// A variable of the environment that is a list with commas.
struct Listed {
    name: &'static str,
    value: String,
}

impl Listed {
    fn read(name: &'static str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let value = variable(name).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "auth_key has a 0 for what the job was given, but {name} is not set; write the \
                 service and the VNI themselves"
            ))
        })?;
        Ok(Self { name, value })
    }

    fn items(&self) -> impl Iterator<Item = &str> {
        self.value.split(',').map(str::trim).filter(|item| !item.is_empty())
    }

    fn number<N: std::str::FromStr>(&self, index: usize) -> Result<N, Error> {
        let item = self.items().nth(index);
        let item = item.ok_or_else(|| self.bad(&format!("has no item {index}, from 0")))?;
        item.parse().map_err(|_| self.bad(&format!("has `{item}`, which is no such number")))
    }

    fn bad(&self, what: &str) -> Error {
        let Self { name, value } = self;
        Error::InvalidArgument(format!("auth_key: {name}, which is `{value}`, {what}"))
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

    /// Returns the options that a domain was given, and the error numbers of those that it refused.
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

    /// The environment of a job with two devices.
    fn job(name: &str) -> Option<String> {
        let value = match name {
            "SLINGSHOT_DEVICES" => "cxi0,cxi1",
            "SLINGSHOT_SVC_IDS" => "5,70000",
            "SLINGSHOT_VNIS" => "16369,16324",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn resolved(text: &str, device: &str) -> Result<(u32, u16), Error> {
        let key = AuthKey::parse(text)?.resolve(device, job)?;
        let [a, b, c, d, e, f, 0, 0] = key else { panic!("{key:?}") };
        Ok((u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f])))
    }

    #[test]
    fn an_authorisation_is_written_or_that_of_the_job() {
        for (text, device, key) in [
            ("1:10", "cxi9", (1, 10)),
            ("1:10:7", "cxi9", (1, 10)),
            ("0:0", "cxi0", (5, 16324)),
            ("0:0:0", "cxi1", (70000, 16369)),
            ("0:0:1", "cxi1", (70000, 16324)),
            ("0:12", "cxi1", (70000, 12)),
            ("3:0:0", "cxi9", (3, 16369)),
        ] {
            assert_eq!(resolved(text, device).unwrap(), key, "{text} {device}");
        }
    }

    #[test]
    fn a_wrong_authorisation_is_told_with_the_variable() {
        for text in ["", "1", "1:", ":1", "x:1", "1:65536", "1:2:", "1:2:-1", "1:2:3:4"] {
            let error = AuthKey::parse(text).unwrap_err().to_string();
            assert!(error.contains("SERVICE:VNI:INDEX"), "{text}: {error}");
        }
        // A range of networks for C.
        for (text, told) in [("1:10:20", "10 to 20"), ("3:0:1", "0 to 1")] {
            let error = AuthKey::parse(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        assert!(AuthKey::parse("1:10:10").is_ok(), "one of one");
        let error = |text, device| resolved(text, device).unwrap_err().to_string();
        let no_device = error("0:0:1", "cxi2");
        assert!(no_device.contains("SLINGSHOT_DEVICES") && no_device.contains("cxi2"));
        let no_network = error("0:0:2", "cxi0");
        assert!(no_network.contains("SLINGSHOT_VNIS") && no_network.contains("no item 2"));
        for missing in ["SLINGSHOT_DEVICES", "SLINGSHOT_SVC_IDS", "SLINGSHOT_VNIS"] {
            let key = AuthKey::parse("0:0:1").unwrap();
            let without = |name: &str| job(name).filter(|_| name != missing);
            let error = key.resolve("cxi0", without).unwrap_err().to_string();
            assert!(error.contains(missing) && error.contains("not set"), "{error}");
        }
        let vnis = ["1,65536", ",", "garbage,more", "1;2,", "16369,-1"];
        let garbled = vnis.map(|value| ("SLINGSHOT_VNIS", value));
        for (garbled, value) in [("SLINGSHOT_SVC_IDS", "a,b")].into_iter().chain(garbled) {
            let key = AuthKey::parse("0:0:1").unwrap();
            let with = |name: &str| if name == garbled { Some(value.into()) } else { job(name) };
            let error = key.resolve("cxi0", with).unwrap_err().to_string();
            assert!(error.contains(garbled) && error.contains(value), "{error}");
        }
        // Fewer services than devices.
        let few = |name: &str| match name {
            "SLINGSHOT_SVC_IDS" => Some("5".to_owned()),
            _ => job(name),
        };
        let error = AuthKey::parse("0:1").unwrap().resolve("cxi1", few).unwrap_err().to_string();
        assert!(error.contains("SLINGSHOT_SVC_IDS") && error.contains("no item 1"), "{error}");
    }
}
