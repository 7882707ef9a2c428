//! The functions of the library itself.

use std::ffi::{CStr, c_char, c_int, c_void};

use ofi_sys::{Library, raw};

use super::device::Device;
use super::{CURRENT, Call, Search, Shared, objects};
use crate::fabrics::fabric::{allocated, text};
use prim::sync::{Arc, lock};

/// Capabilities of all devices.
const CAPS: u64 = raw::FI_MSG | raw::FI_TAGGED | raw::FI_RMA | raw::FI_DIRECTED_RECV;

/// The function of that name and version.
pub(crate) fn symbol(name: &CStr, version: Option<&CStr>) -> *mut c_void {
    match (name.to_bytes(), version.map(CStr::to_bytes)) {
        (b"fi_getinfo", Some(b"FABRIC_1.3")) => getinfo as *mut c_void,
        (b"fi_freeinfo", Some(b"FABRIC_1.3")) => freeinfo as *mut c_void,
        (b"fi_dupinfo", Some(b"FABRIC_1.3")) => dupinfo as *mut c_void,
        (b"fi_fabric", Some(b"FABRIC_1.1")) => fabric as *mut c_void,
        (b"fi_version", None) => version_of as *mut c_void,
        (b"fi_strerror", None) => strerror as *mut c_void,
        _ => std::ptr::null_mut(),
    }
}

/// The library of all fakes, which differ by thread ([`Fake::with`](super::Fake::with)).
pub(super) fn library() -> &'static Library {
    static LIBRARY: std::sync::OnceLock<Library> = std::sync::OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: each of these functions has the type of libfabric's of that name and version.
        let library = unsafe { Library::from_symbols("a library of a test", symbol) };
        library.unwrap_or_else(|error| panic!("{error}"))
    })
}

fn current() -> Option<Arc<Shared>> {
    CURRENT.with_borrow(Clone::clone)
}

extern "C" fn version_of() -> u32 {
    let version = current().map(|shared| shared.version);
    version.unwrap_or(ofi_sys::OLDEST).number()
}

extern "C" fn strerror(errno: c_int) -> *const c_char {
    let text = match errno as u32 {
        raw::FI_EAVAIL => c"Error available",
        raw::FI_ETRUNC => c"Truncation error",
        raw::FI_ENOKEY => c"Required key not available",
        raw::FI_EOVERRUN => c"Queue has been overrun",
        raw::FI_ENODATA => c"No data available",
        raw::FI_ENOMEM => c"Cannot allocate memory",
        raw::FI_EINVAL => c"Invalid argument",
        raw::FI_EACCES => c"Permission denied",
        raw::FI_EBUSY => c"Device or resource busy",
        raw::FI_ECONNREFUSED => c"Connection refused",
        raw::FI_EHOSTUNREACH => c"No route to host",
        _ => c"Some other error",
    };
    text.as_ptr()
}

/// A copy of a part of an info, or one that is zero.
///
/// # Safety
///
/// `part` is null or points to a live value; all zero is a value of it.
unsafe fn part<T: Copy>(part: *const T) -> *mut T {
    // SAFETY: the caller's.
    let value = unsafe { if part.is_null() { std::mem::zeroed() } else { *part } };
    Box::into_raw(Box::new(value))
}

/// A copy of bytes that `free` gives back.
///
/// # Safety
///
/// So many bytes are there.
unsafe fn bytes(from: *const c_void, len: usize) -> *mut c_void {
    if from.is_null() || len == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's; the copy has as many.
    unsafe {
        let copy = libc::malloc(len);
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), copy.cast(), len);
        copy
    }
}

unsafe extern "C" fn dupinfo(info: *const raw::fi_info) -> *mut raw::fi_info {
    // SAFETY: null, or a live info, whose parts and texts are live or null; all zero is a value of
    // each of these structures.
    unsafe {
        let copy = part(info);
        (*copy).next = std::ptr::null_mut();
        (*copy).src_addr = bytes((*copy).src_addr, (*copy).src_addrlen);
        (*copy).dest_addr = bytes((*copy).dest_addr, (*copy).dest_addrlen);
        (*copy).tx_attr = part((*copy).tx_attr);
        (*copy).rx_attr = part((*copy).rx_attr);
        (*copy).ep_attr = part((*copy).ep_attr);
        (*copy).domain_attr = part((*copy).domain_attr);
        (*copy).fabric_attr = part((*copy).fabric_attr);
        for name in [
            &raw mut (*(*copy).domain_attr).name,
            &raw mut (*(*copy).fabric_attr).name,
            &raw mut (*(*copy).fabric_attr).prov_name,
        ] {
            if !(*name).is_null() {
                *name = libc::strdup(*name);
            }
        }
        copy
    }
}

unsafe extern "C" fn freeinfo(info: *mut raw::fi_info) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: made by `dupinfo`, or as `dupinfo` does, and given back once; what the caller
        // has put in, it has taken out again or allocated with `malloc`.
        unsafe {
            let info = Box::from_raw(next);
            let domain = Box::from_raw(info.domain_attr);
            let fabric = Box::from_raw(info.fabric_attr);
            for text in [domain.name, fabric.name, fabric.prov_name] {
                libc::free(text.cast());
            }
            libc::free(info.src_addr);
            libc::free(info.dest_addr);
            drop((Box::from_raw(info.tx_attr), Box::from_raw(info.rx_attr)));
            drop(Box::from_raw(info.ep_attr));
            next = info.next;
        }
    }
}

/// The hints of a search, with all their parts.
struct Hints {
    caps: u64,
    mode: u64,
    format: u32,
    protocol: u32,
    tx_op_flags: u64,
    search: Search,
}

/// # Safety
///
/// All are null or live.
unsafe fn hints(
    node: *const c_char,
    service: *const c_char,
    hints: *const raw::fi_info,
) -> Option<Hints> {
    let told = |of: *const c_char| (!of.is_null()).then(|| text(of));
    let mut search = Search { node: told(node), service: told(service), ..Search::default() };
    if hints.is_null() {
        return None;
    }
    // SAFETY: live, with all its parts, as `fi_allocinfo` makes it.
    unsafe {
        let info = &*hints;
        search.provider = told((*info.fabric_attr).prov_name);
        search.mr_mode = (*info.domain_attr).mr_mode as u32;
        search.mode = info.mode;
        search.hmem = info.caps & raw::FI_HMEM != 0;
        search.source_told = info.caps & (raw::FI_SOURCE | raw::FI_SOURCE_ERR) != 0;
        if !info.src_addr.is_null() {
            let source = std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen);
            search.source = Some(source.to_vec());
        }
        let (protocol, tx_op_flags) = ((*info.ep_attr).protocol, (*info.tx_attr).op_flags);
        let (caps, mode, format) = (info.caps, info.mode, info.addr_format);
        Some(Hints { caps, mode, format, protocol, tx_op_flags, search })
    }
}

impl Hints {
    /// `fi_getinfo(3)`: what is asked for must be there, what is wanted must be offered.
    fn fit(&self, device: &Device) -> bool {
        let Self { caps, mode, format, protocol, tx_op_flags, search } = self;
        let is_of_ip = match &search.source {
            Some(source) if device.format == raw::FI_SOCKADDR_IN => source[4..8] == device.ip,
            _ => true,
        };
        let is_node = search.node.as_ref().is_none_or(|node| node == device.domain);
        search.provider.as_ref().is_none_or(|name| name == device.provider)
            && caps & !(CAPS | device.caps_of_all()) == 0
            && (!search.hmem || search.mr_mode & raw::FI_MR_HMEM != 0)
            && tx_op_flags & !device.tx_op_flags == 0
            && device.mode & !mode == 0
            && (*format == raw::FI_FORMAT_UNSPEC || *format == device.format)
            && (*protocol == raw::FI_PROTO_UNSPEC || *protocol == device.protocol)
            && device.mr_mode & !search.mr_mode == 0
            && is_of_ip
            && is_node
    }
}

unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    wanted: *const raw::fi_info,
    found: *mut *mut raw::fi_info,
) -> c_int {
    let Some(shared) = current() else { return -libc::ENODATA };
    let mut state = lock(&shared.state);
    if let Some(errno) = state.refused(Call::GetInfo) {
        return -errno;
    }
    // SAFETY: null or live, as the caller's.
    let mut hints = unsafe { hints(node, service, wanted) };
    if version > shared.version.number() {
        return -libc::ENOSYS;
    }
    if !(node.is_null() && service.is_null()) && flags & raw::FI_SOURCE == 0 {
        state.complain("a node of others was looked for");
    }
    if let Some(hints) = &mut hints {
        hints.search.version = version;
        state.searches.push(hints.search.clone());
    }
    let mut first = std::ptr::null_mut();
    for device in state.devices.iter().rev() {
        if hints.as_ref().is_none_or(|hints| hints.fit(device)) {
            let source = hints.as_ref().and_then(|hints| hints.search.source.as_deref());
            let caps = hints.as_ref().map_or(CAPS | device.caps_of_all(), |hints| hints.caps);
            // SAFETY: it was made by this function, or is null.
            unsafe {
                first = described(device, caps, source.unwrap_or_default(), first);
                if device.takes_local {
                    let offered = hints.as_ref().map_or(0, |hints| hints.search.mr_mode);
                    let local = (offered & raw::FI_MR_LOCAL) as c_int;
                    (*(*first).domain_attr).mr_mode |= local;
                }
                if caps & raw::FI_HMEM != 0 {
                    (*(*first).domain_attr).mr_mode |= raw::FI_MR_HMEM as c_int;
                }
                (*(*first).fabric_attr).api_version = version;
            }
        }
    }
    if first.is_null() {
        return -libc::ENODATA;
    }
    // SAFETY: the caller's place for it.
    unsafe { *found = first };
    0
}

/// An adapter on that bus; never freed.
fn nic(bus_id: u8) -> *mut raw::fid_nic {
    let pci = raw::fi_pci_attr { domain_id: 0, bus_id, device_id: 0, function_id: 0 };
    let attr = raw::fi_bus_attr__bindgen_ty_1 { pci };
    let bus = Box::leak(Box::new(raw::fi_bus_attr { bus_type: raw::FI_BUS_PCI, attr }));
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut nic: raw::fid_nic = unsafe { std::mem::zeroed() };
    nic.bus_attr = bus;
    Box::leak(Box::new(nic))
}

/// # Safety
///
/// `next` is null or the first of a list that is given to the caller with this one.
unsafe fn described(
    device: &Device,
    caps: u64,
    source: &[u8],
    next: *mut raw::fi_info,
) -> *mut raw::fi_info {
    // SAFETY: all parts of a fresh info are there; texts and addresses are `malloc`ed.
    unsafe {
        let info = dupinfo(std::ptr::null());
        (*info).next = next;
        (*info).caps = caps;
        (*info).mode = device.mode;
        (*info).addr_format = device.format;
        let default = match device.format {
            raw::FI_SOCKADDR_IN => {
                let mut any = device.name(0, &[]);
                any[2..4].fill(0);
                any
            }
            _ => Vec::new(),
        };
        let source = if source.is_empty() { &default } else { source };
        (*info).src_addr = bytes(source.as_ptr().cast(), source.len());
        (*info).src_addrlen = source.len();
        (*(*info).tx_attr).op_flags = device.tx_op_flags;
        (*(*info).tx_attr).inject_size = device.inject_bytes;
        (*(*info).tx_attr).iov_limit = device.iov_limit;
        (*(*info).tx_attr).rma_iov_limit = 1;
        (*(*info).tx_attr).size = 1024;
        (*(*info).rx_attr).iov_limit = device.iov_limit;
        (*(*info).rx_attr).size = device.receives;
        (*(*info).ep_attr).type_ = raw::FI_EP_RDM;
        (*(*info).ep_attr).protocol = device.protocol;
        (*(*info).ep_attr).max_msg_size = device.message_bytes;
        (*(*info).domain_attr).name = allocated(device.domain);
        (*(*info).domain_attr).mr_mode = device.mr_mode as c_int;
        (*(*info).domain_attr).mr_key_size = device.key_bytes;
        (*(*info).domain_attr).mr_iov_limit = 1;
        (*(*info).domain_attr).cq_data_size = device.data_bytes;
        (*(*info).fabric_attr).prov_name = allocated(device.provider);
        (*(*info).fabric_attr).name = allocated("fake");
        (*info).nic = device.bus.map_or(std::ptr::null_mut(), nic);
        info
    }
}

unsafe extern "C" fn fabric(
    attr: *mut raw::fi_fabric_attr,
    fabric: *mut *mut raw::fid_fabric,
    _context: *mut c_void,
) -> c_int {
    let Some(shared) = current() else { return -libc::ENODATA };
    // SAFETY: the attributes are those of an info; the place for the object is the caller's.
    unsafe {
        let provider = text((*attr).prov_name);
        lock(&shared.state).api = (*attr).api_version;
        *fabric = objects::open_fabric(&shared, &provider);
        0
    }
}
