//! libfabric's objects, each closed once, in the right order, and by nobody but their owner.
//!
//! | object | made of | closed |
//! |---|---|---|
//! | [`Info`] | a search | when dropped |
//! | [`Domain`] (with its fabric and address vector) | an info | when the last that needs it is dropped |
//! | [`Mr`], registered memory | a domain | by [`Mr::end`], which says whether the memory is free of it; when dropped; before its domain |
//! | [`Ep`], the endpoint with its completion queue | a domain | by [`Ep::close`], which says whether no buffer that was posted is touched any more; one to which nothing was posted, when dropped |
//!
//! Everything is opened for use by several threads at once (`FI_THREAD_SAFE`), as C Mercury does.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a structure of libfabric's is filled in, or handed over, as one thing"
)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use ofi_sys::raw::fi_mr_attr__bindgen_ty_1 as DeviceNumber;
use ofi_sys::{Library, call, raw};

use super::cxi;
use crate::providers::address::{RAW_BYTES_MAX, RawAddr};
use na_core::{DeviceKind, Error, TrafficClass};
use prim::fork::Process;
use prim::sync::Arc;

/// Entries of the completion queue, as C Mercury asks for (`NA_OFI_CQ_SIZE`): providers' defaults
/// are smaller than what a busy server has in flight. A device may have less: [`cq_sizes`].
const CQ_ENTRIES: usize = 131_072;

/// A provider that says nothing about its queues has room for so many entries, or an error.
const CQ_ENTRIES_MIN: usize = 1024;

/// Bytes of a tag, which goes as the data of a message (as in `na_ofi_domain_open`).
const TAG_BYTES: usize = 4;

/// The library, opened once in a process.
///
/// # Errors
///
/// [`Error::Unavailable`] with what was tried.
pub(crate) fn library() -> Result<&'static Library, Error> {
    static LIBRARY: std::sync::OnceLock<Result<Library, String>> = std::sync::OnceLock::new();
    let opened = LIBRARY.get_or_init(|| Library::open().map_err(|error| error.to_string()));
    opened.as_ref().map_err(|reason| unavailable(reason.clone()))
}

pub(crate) fn unavailable(reason: String) -> Error {
    Error::Unavailable { transport: "ofi", reason }
}

/// An error number of the library (positive) as an error of ours.
pub(crate) fn failed(library: &Library, what: impl fmt::Display, errno: c_int) -> Error {
    // Below that they are the system's.
    let source = match errno < raw::FI_ERRNO_OFFSET as c_int {
        true => std::io::Error::from_raw_os_error(errno),
        false => std::io::Error::other(format!("{} ({errno})", library.strerror(errno))),
    };
    Error::io(format!("libfabric: {what}"), source)
}

/// `Err` for a negated error number.
pub(crate) fn check(library: &Library, what: &str, result: c_int) -> Result<(), Error> {
    if result < 0 { Err(failed(library, what, -result)) } else { Ok(()) }
}

/// The text that a pointer of the library's leads to, if any.
pub(crate) fn text(pointer: *const std::ffi::c_char) -> String {
    match pointer.is_null() {
        true => String::new(),
        // SAFETY: texts of the library have an end, and live as long as what they are part of,
        // which callers hold; it is copied at once.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned(),
    }
}

/// A list of what a search has found, or what to search for.
pub(crate) struct Info {
    lib: &'static Library,
    first: NonNull<raw::fi_info>,
}

// SAFETY: plain data that this object owns; the library keeps nothing of it.
unsafe impl Send for Info {}
// SAFETY: `&Info` gives read access only.
unsafe impl Sync for Info {}

impl Info {
    /// Returns an info with nothing in it.
    pub(crate) fn empty(library: &'static Library) -> Result<Self, Error> {
        // SAFETY: null stands for a fresh one.
        let first = unsafe { library.dupinfo(std::ptr::null()) };
        let first = NonNull::new(first).ok_or_else(|| unavailable("out of memory".into()))?;
        Ok(Self { lib: library, first })
    }

    /// The first one. Its parts are there: the library makes them all.
    pub(crate) fn first(&self) -> &raw::fi_info {
        // SAFETY: owned, and nobody changes it while it is borrowed.
        unsafe { self.first.as_ref() }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &raw::fi_info> {
        let mut next: *const raw::fi_info = self.first.as_ptr();
        std::iter::from_fn(move || {
            // SAFETY: null, or an element of the list that `self` owns.
            let info = unsafe { next.as_ref() }?;
            next = info.next;
            Some(info)
        })
    }

    /// A copy of one.
    pub(crate) fn copy_of(library: &'static Library, info: &raw::fi_info) -> Result<Self, Error> {
        // SAFETY: `info` is live.
        let first = unsafe { library.dupinfo(info) };
        let first = NonNull::new(first).ok_or_else(|| unavailable("out of memory".into()))?;
        Ok(Self { lib: library, first })
    }

    /// To change it, and its parts.
    pub(crate) fn as_ptr(&self) -> *mut raw::fi_info {
        self.first.as_ptr()
    }

    pub(crate) fn domain_attr(&self) -> &raw::fi_domain_attr {
        domain_attr(self.first())
    }

    pub(crate) fn ep_attr(&self) -> &raw::fi_ep_attr {
        // SAFETY: every info has this part, and it lives as long.
        unsafe { &*self.first().ep_attr }
    }

    /// Says what kind of traffic the domain, and the endpoint if it `looks` at that, will make: as
    /// C does, after the search (`na_ofi_domain_open`, `na_ofi_tclass`), since providers do not say
    /// beforehand which classes they have.
    pub(crate) fn set_class(&mut self, class: TrafficClass, looks: bool) {
        let class = match class {
            TrafficClass::Unspec => return,
            TrafficClass::BestEffort => raw::FI_TC_BEST_EFFORT,
            TrafficClass::LowLatency => raw::FI_TC_LOW_LATENCY,
            TrafficClass::BulkData => raw::FI_TC_BULK_DATA,
            TrafficClass::DedicatedAccess => raw::FI_TC_DEDICATED_ACCESS,
            TrafficClass::Scavenger => raw::FI_TC_SCAVENGER,
            TrafficClass::NetworkCtrl => raw::FI_TC_NETWORK_CTRL,
        };
        let (info, class) = (self.as_ptr(), class as u32);
        // SAFETY: owned, borrowed mutably, and every info has these parts.
        unsafe {
            (*(*info).domain_attr).tclass = class;
            if looks {
                (*(*info).tx_attr).tclass = class;
            }
        }
    }

    pub(crate) fn tx_attr(&self) -> &raw::fi_tx_attr {
        // SAFETY: every info has this part, and it lives as long.
        unsafe { &*self.first().tx_attr }
    }

    pub(crate) fn rx_attr(&self) -> &raw::fi_rx_attr {
        // SAFETY: every info has this part, and it lives as long.
        unsafe { &*self.first().rx_attr }
    }

    /// Our own address, as far as it is known before the endpoint is open.
    pub(crate) fn source(&self) -> Option<RawAddr> {
        source(self.first())
    }
}

/// The address of the device that an info describes.
pub(crate) fn source(info: &raw::fi_info) -> Option<RawAddr> {
    let is_there = !info.src_addr.is_null() && info.src_addrlen <= RAW_BYTES_MAX;
    is_there.then(|| {
        // SAFETY: the library says that so many bytes are there; they live as long as the info.
        let bytes =
            unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) };
        RawAddr::from_library(bytes)
    })
}

pub(crate) fn domain_attr(info: &raw::fi_info) -> &raw::fi_domain_attr {
    // SAFETY: every info has this part, and it lives as long.
    unsafe { &*info.domain_attr }
}

pub(crate) fn fabric_attr(info: &raw::fi_info) -> &raw::fi_fabric_attr {
    // SAFETY: every info has this part, and it lives as long.
    unsafe { &*info.fabric_attr }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: came from `dupinfo` or `getinfo`; what was put into it (`search.rs`) is taken out
        // again or was allocated as the library does.
        unsafe { self.lib.freeinfo(self.first.as_ptr()) };
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Info(..)")
    }
}

/// The result of a search.
pub(crate) enum Found {
    Some(Info),
    /// Nothing, with the number of the error.
    Nothing(c_int),
}

/// Looks for what `hints` describe (`None`: everything).
pub(crate) fn search(
    library: &'static Library,
    node: Option<(Option<&CStr>, &CStr, u64)>,
    hints: Option<&Info>,
) -> Found {
    let (node, service, flags) =
        node.map_or((std::ptr::null(), std::ptr::null(), 0), |(node, service, flags)| {
            (node.map_or(std::ptr::null(), CStr::as_ptr), service.as_ptr(), flags)
        });
    let hints = hints.map_or(std::ptr::null_mut(), Info::as_ptr);
    let mut first = std::ptr::null_mut();
    // SAFETY: texts with an end and hints that live here, or null.
    let result = unsafe { library.getinfo(node, service, flags, hints, &raw mut first) };
    match NonNull::new(first).filter(|_| result == 0) {
        Some(first) => Found::Some(Info { lib: library, first }),
        None => Found::Nothing(-result),
    }
}

/// A domain with its fabric and address vector.
pub(crate) struct Domain {
    pub(crate) lib: &'static Library,
    pub(crate) info: Info,
    fabric: *mut raw::fid_fabric,
    domain: *mut raw::fid_domain,
    av: *mut raw::fid_av,
    /// Authorisation, to which `info` points as long as it is used.
    auth_key: Option<Box<[u8]>>,
    /// The process that opened it: in a child that was forked off, all of this is its parent's.
    process: Process,
}

// SAFETY: the objects were opened for any thread (`FI_THREAD_SAFE`).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn open(
        library: &'static Library,
        info: Info,
        mut auth_key: Option<Box<[u8]>>,
        class: TrafficClass,
    ) -> Result<Arc<Self>, Error> {
        let data_bytes = domain_attr(info.first()).cq_data_size;
        if data_bytes < TAG_BYTES {
            return Err(unavailable(format!(
                "the provider carries {data_bytes} bytes of data with a message; tags need \
                 {TAG_BYTES}"
            )));
        }
        if let Some(key) = &mut auth_key {
            let info = info.as_ptr();
            // SAFETY: both parts are there; the key lives as long as `info` is used: its `Drop`
            // takes the pointers out again.
            unsafe {
                (*(*info).domain_attr).auth_key = key.as_mut_ptr();
                (*(*info).domain_attr).auth_key_size = key.len();
            }
        }
        let null = std::ptr::null_mut();
        let mut this = Self {
            lib: library,
            info,
            fabric: null,
            domain: null.cast(),
            av: null.cast(),
            auth_key,
            process: Process::current(),
        };
        let info = this.info.as_ptr();
        // SAFETY: the attributes are those of a search; what is opened is stored at once, so that
        // `Drop` closes it.
        let opened = unsafe { library.fabric((*info).fabric_attr, &raw mut this.fabric) };
        check(library, "cannot open the fabric", opened)?;
        // SAFETY: the fabric is open, the info that of a search.
        let opened = unsafe { call::domain(this.fabric, info, &raw mut this.domain) };
        let name = text(this.info.domain_attr().name);
        let of_class = match class {
            TrafficClass::Unspec => String::new(),
            class => format!(" for the traffic class {class:?}, which it may not have"),
        };
        check(library, &format!("cannot open the domain `{name}`{of_class}"), opened)?;
        if text(fabric_attr(this.info.first()).prov_name) == "cxi" {
            let mr_mode = this.info.domain_attr().mr_mode as u32;
            // SAFETY: the domain is open, of that provider, and nothing is opened in it yet.
            unsafe {
                cxi::set_domain_options(this.domain, library.version(), mr_mode, |errno, what| {
                    let error = library.strerror(errno);
                    tracing::warn!(domain = name, error, "cxi does not take an option: {what}");
                });
            }
        }
        let mut attr: raw::fi_av_attr = zeroed();
        // SAFETY: the domain is open, the attributes are those of a default one.
        let opened = unsafe { call::av_open(this.domain, &raw mut attr, &raw mut this.av) };
        check(library, "cannot open the address vector", opened)?;
        Ok(Arc::new(this))
    }

    /// Returns whether the provider wants that of registered memory (`FI_MR_…`).
    pub(crate) fn has_mr_mode(&self, bit: u32) -> bool {
        self.info.domain_attr().mr_mode as u32 & bit != 0
    }

    /// Makes a peer reachable; what libfabric calls it from now on.
    pub(crate) fn insert(&self, addr: &RawAddr) -> Result<u64, Error> {
        let mut fi_addr = u64::MAX;
        let bytes = addr.bytes();
        // Aligned as any kind of address needs, and with zeros behind it.
        let mut aligned = [0u64; RAW_BYTES_MAX / 8];
        for (word, bytes) in aligned.iter_mut().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(value);
        }
        // SAFETY: the address vector is open; the address has the format of this domain
        // (`RawAddr`), and no more bytes are read than the largest format has.
        let inserted =
            unsafe { call::av_insert(self.av, aligned.as_ptr().cast(), &raw mut fi_addr) };
        match inserted {
            1 => Ok(fi_addr),
            0 => Err(unavailable("libfabric does not take the peer's address".into())),
            errno => Err(failed(self.lib, "cannot insert an address", -errno)),
        }
    }

    /// Forgets a peer, with which nothing may be in flight: what libfabric does with it then is
    /// undefined (`fi_av_remove` in `fi_av.3`).
    pub(crate) fn remove(&self, mut fi_addr: u64) {
        // SAFETY: the address vector is open. Nothing is in flight with that peer: operations with
        // a completion keep its address until then, and messages without one (`inject`) are older
        // than a provider keeps trying to send them (`Peers::sweep`).
        let _ = unsafe { call::av_remove(self.av, &raw mut fi_addr) };
    }

    /// Returns whether the objects may be closed here.
    fn is_ours(&self) -> bool {
        !self.process.is_other()
    }

    fn close(&mut self) {
        let objects: [*mut raw::fid; 3] = [self.av.cast(), self.domain.cast(), self.fabric.cast()];
        for object in objects.into_iter().filter(|object| !object.is_null()) {
            // SAFETY: opened by `open`, not closed before; each begins with its `fid`; those that
            // need it (endpoints, memory) hold this object, so they are gone.
            let closed = unsafe { call::close(object) };
            if closed != 0 {
                tracing::debug!(closed, "libfabric refused to close an object");
            }
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.is_ours() {
            self.close();
        }
        if self.auth_key.is_some() {
            let info = self.info.as_ptr();
            // SAFETY: the part is there. The key is ours, not the library's to free.
            unsafe {
                (*(*info).domain_attr).auth_key = std::ptr::null_mut();
                (*(*info).domain_attr).auth_key_size = 0;
            }
        }
    }
}

/// All zero.
pub(crate) fn zeroed<T: PlainAttr>() -> T {
    // SAFETY: `PlainAttr` is only for types for which that is a value.
    unsafe { std::mem::zeroed() }
}

/// Structures of numbers and pointers.
///
/// # Safety
///
/// All zero is a value of it.
pub(crate) unsafe trait PlainAttr {}
// SAFETY: numbers and pointers.
unsafe impl PlainAttr for raw::fi_av_attr {}
// SAFETY: numbers and pointers.
unsafe impl PlainAttr for raw::fi_cq_attr {}
// SAFETY: numbers and pointers, and a union of numbers.
unsafe impl PlainAttr for raw::fi_mr_attr {}
// SAFETY: numbers and pointers.
unsafe impl PlainAttr for raw::fi_cq_tagged_entry {}
// SAFETY: numbers and pointers.
unsafe impl PlainAttr for raw::fi_cq_err_entry {}

/// An endpoint with its completion queue.
pub(crate) struct Ep {
    pub(crate) domain: Arc<Domain>,
    pub(crate) ep: *mut raw::fid_ep,
    pub(crate) cq: *mut raw::fid_cq,
    /// The wait descriptor of the completion queue.
    fd: Option<c_int>,
}

// SAFETY: the objects were opened for any thread (`FI_THREAD_SAFE`).
unsafe impl Send for Ep {}

impl Ep {
    /// Opens one that waits on a descriptor if `wait_fd` and the provider has one, and whose
    /// buffers for many messages are given back when less than `multi_recv_min` bytes are left.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        wait_fd: bool,
        multi_recv_min: Option<usize>,
    ) -> Result<Self, Error> {
        let library = domain.lib;
        let (ep, cq) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut this = Self { domain: domain.clone(), ep, cq, fd: None };
        // SAFETY: the domain is open, the info that of a search for it.
        let opened =
            unsafe { call::endpoint(domain.domain, domain.info.as_ptr(), &raw mut this.ep) };
        check(library, "cannot open the endpoint", opened)?;
        let waits = this.open_cq(wait_fd)?;
        let both = raw::FI_SEND | raw::FI_RECV;
        // SAFETY: both are open; a completion queue begins with its `fid`.
        let bound = unsafe { call::ep_bind(this.ep, this.cq.cast(), both) };
        check(library, "cannot bind the completion queue", bound)?;
        // SAFETY: as above, for an address vector.
        let bound = unsafe { call::ep_bind(this.ep, domain.av.cast(), 0) };
        check(library, "cannot bind the address vector", bound)?;
        if let Some(min) = multi_recv_min {
            let name = raw::FI_OPT_MIN_MULTI_RECV as c_int;
            // SAFETY: the option is a `size_t`.
            let set =
                unsafe { call::setopt(this.ep, name, (&raw const min).cast(), size_of::<usize>()) };
            check(library, "cannot set the least room of a receive buffer", set)?;
        }
        // SAFETY: open and bound.
        let enabled = unsafe { call::enable(this.ep) };
        check(library, "cannot enable the endpoint", enabled)?;
        if waits {
            let mut fd = -1;
            // SAFETY: the queue is open and waits on a descriptor.
            let got = unsafe { call::cq_wait_fd(this.cq, &raw mut fd) };
            this.fd = (got >= 0 && fd >= 0).then_some(fd);
            if got < 0 {
                told_polled(library, got);
            }
        }
        Ok(this)
    }

    /// Opens the completion queue; whether it waits on a descriptor.
    fn open_cq(&mut self, wait_fd: bool) -> Result<bool, Error> {
        let library = self.domain.lib;
        let mut tried = Vec::new();
        let waits = wait_fd.then(|| self.open_cq_with(raw::FI_WAIT_FD, &mut tried));
        if waits == Some(0) {
            return Ok(true);
        }
        let opened = self.open_cq_with(raw::FI_WAIT_NONE, &mut tried);
        let sizes: Vec<_> = tried.iter().map(|size| size_text(*size)).collect();
        let what = format!("cannot open the completion queue; sizes tried: {}", sizes.join(", "));
        check(library, &what, opened)?;
        if let Some(refused) = waits {
            told_polled(library, refused);
        }
        Ok(false)
    }

    /// Opens the completion queue with that wait object. Returns 0, or the negated number of the
    /// last error; `tried` gets the sizes that were refused.
    fn open_cq_with(&mut self, wait_obj: u32, tried: &mut Vec<usize>) -> c_int {
        let info = &self.domain.info;
        let mut opened = 0;
        for size in cq_sizes(info.tx_attr().size, info.rx_attr().size) {
            // Each time anew: providers write to it.
            let mut attr: raw::fi_cq_attr = zeroed();
            (attr.size, attr.wait_obj, attr.format) = (size, wait_obj, raw::FI_CQ_FORMAT_TAGGED);
            // SAFETY: the domain is open.
            opened = unsafe { call::cq_open(self.domain.domain, &raw mut attr, &raw mut self.cq) };
            if opened == 0 {
                if size != CQ_ENTRIES {
                    let size = size_text(size);
                    tracing::debug!(size, "the completion queue is smaller than was asked for");
                }
                break;
            }
            if !tried.contains(&size) {
                tried.push(size);
            }
            // What a kernel, or a provider, says of a queue that is too long.
            if !matches!(-opened, libc::EINVAL | libc::ENOMEM) {
                break;
            }
        }
        opened
    }

    /// Becomes readable when there may be something to read; see [`may_wait`](Self::may_wait).
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the library keeps it open as long as the queue is, which this object keeps.
        self.fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Returns whether nothing is there, so that the wait descriptor will tell of what comes.
    pub(crate) fn may_wait(&self) -> bool {
        // SAFETY: fabric and queue are open; a completion queue begins with its `fid`.
        unsafe { call::trywait(self.domain.fabric, self.cq.cast()) == 0 }
    }

    /// Our address.
    pub(crate) fn name(&self) -> Result<RawAddr, Error> {
        let mut bytes = [0u64; RAW_BYTES_MAX / 8];
        let mut len = RAW_BYTES_MAX;
        // SAFETY: the endpoint is enabled; so many bytes are there.
        let got = unsafe { call::getname(self.ep, bytes.as_mut_ptr().cast(), &raw mut len) };
        check(self.domain.lib, "cannot get the endpoint's address", got)?;
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
        Ok(RawAddr::from_library(&bytes))
    }

    /// Asks for the end of an operation that was posted with `context`. Whether it can be ended
    /// shows in the completion.
    pub(crate) fn cancel(&self, context: *mut c_void) -> bool {
        // SAFETY: the endpoint is open; an unknown context is refused.
        unsafe { call::cancel(self.ep, context) == 0 }
    }

    /// Closes it. Then nothing that was posted is touched any more, unless this says `false`: then
    /// libfabric has refused, and the endpoint with its domain is left open for good.
    pub(crate) fn close(mut self) -> bool {
        let closed = self.close_endpoint();
        if !closed {
            std::mem::forget(self);
        }
        closed
    }

    /// Returns whether there is none, or not any more.
    fn close_endpoint(&mut self) -> bool {
        let ep = std::mem::replace(&mut self.ep, std::ptr::null_mut());
        if ep.is_null() || !self.domain.is_ours() {
            return true;
        }
        // SAFETY: opened by `open`, and taken out of its place, so closed once; it begins with its
        // `fid`.
        let closed = unsafe { call::close(ep.cast()) };
        if closed != 0 {
            let error = self.domain.lib.strerror(-closed);
            tracing::warn!(error, "libfabric refused to close an endpoint");
        }
        closed == 0
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        // The endpoint first: it writes to the queue. Nothing is posted, or `close` was called.
        if !self.close_endpoint() || self.cq.is_null() || !self.domain.is_ours() {
            return;
        }
        // SAFETY: opened by `open`, not closed before; it begins with its `fid`.
        let closed = unsafe { call::close(self.cq.cast()) };
        if closed != 0 {
            let error = self.domain.lib.strerror(-closed);
            tracing::warn!(error, "libfabric refused to close a completion queue");
        }
    }
}

/// Sizes of a completion queue that are asked for, one after the other; 0 stands for what the
/// provider thinks right. `efa` hands the size to the device, whose kernel driver refuses more than
/// it has (`efa_create_cq`), while other providers have queues that grow, or take what there is.
///
/// The least is what a provider says that it has in hand of messages and receives at a time: it
/// takes no more than there will be room for, whatever the size (`FI_RM_ENABLED` in
/// `fi_domain.3`), so a smaller queue makes operations wait, and loses none.
fn cq_sizes(sends: usize, receives: usize) -> Vec<usize> {
    let least = sends.saturating_add(receives).max(CQ_ENTRIES_MIN);
    let halves = std::iter::successors(Some(CQ_ENTRIES), |size| Some(size / 2));
    let mut sizes: Vec<usize> = halves.take_while(|size| *size >= least).collect();
    if sizes.is_empty() {
        sizes.push(CQ_ENTRIES);
    }
    sizes.push(0);
    sizes
}

fn size_text(size: usize) -> String {
    if size == 0 { "the provider's default".to_owned() } else { size.to_string() }
}

/// There is no wait descriptor, as a call has just returned.
fn told_polled(library: &Library, refused: c_int) {
    let error = library.strerror(-refused);
    tracing::warn!(error, "no wait descriptor: an idle endpoint keeps a processor busy");
}

/// Registered memory.
pub(crate) struct Mr {
    mr: NonNull<raw::fid_mr>,
    domain: Arc<Domain>,
    closed: bool,
}

// SAFETY: the object was opened for any thread (`FI_THREAD_SAFE`).
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// The place of memory that is registered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Host,
    /// With the number of the device.
    Device(DeviceKind, u32),
}

/// A request to register memory.
#[derive(Clone, Copy)]
pub(crate) struct MrRequest {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    /// libfabric's bits.
    pub(crate) access: u64,
    pub(crate) place: Place,
    /// Wanted, where keys are chosen here.
    pub(crate) key: u64,
}

impl Mr {
    /// Registers memory. Negated error number of the library on failure.
    ///
    /// # Safety
    ///
    /// The memory is valid for that access, for peers too, until the result is dropped, or
    /// [ended](Self::end); for good if that says `false`.
    pub(crate) unsafe fn register(
        domain: &Arc<Domain>,
        request: &MrRequest,
    ) -> Result<Self, c_int> {
        let iov = libc::iovec { iov_base: request.ptr.cast(), iov_len: request.len };
        // Room behind it: later libraries have more in this structure, and RxM and others copy all
        // of it, whichever interface version they were asked for.
        #[repr(C)]
        struct Attr(raw::fi_mr_attr, [u64; 8]);
        let mut attr = Attr(zeroed(), [0; 8]);
        attr.0.mr_iov = &raw const iov;
        attr.0.iov_count = 1;
        attr.0.access = request.access;
        attr.0.requested_key = request.key;
        // As C does (`na_ofi_mem_register`), which names no device of AMD's.
        if let Place::Device(kind, number) = request.place {
            let number = c_int::try_from(number).map_err(|_too_large| libc::EINVAL)?;
            (attr.0.iface, attr.0.device) = match kind {
                DeviceKind::Cuda => (raw::FI_HMEM_CUDA, DeviceNumber { cuda: number }),
                DeviceKind::Rocm => (raw::FI_HMEM_ROCR, DeviceNumber { reserved: 0 }),
                DeviceKind::LevelZero => (raw::FI_HMEM_ZE, DeviceNumber { ze: number }),
            };
        }
        let mut mr = std::ptr::null_mut();
        // SAFETY: the domain is open; the memory is the caller's.
        let registered =
            unsafe { call::mr_regattr(domain.domain, (&raw const attr).cast(), 0, &raw mut mr) };
        let mr = NonNull::new(mr).filter(|_| registered == 0).ok_or(-registered)?;
        Ok(Self { mr, domain: domain.clone(), closed: false })
    }

    /// Makes it of use where registrations are bound to the endpoint (`FI_MR_ENDPOINT`), and has to
    /// be ended before that is closed from now on. Negated error number of the library on failure.
    pub(crate) fn bind_to(&self, endpoint: &Ep) -> Result<(), c_int> {
        if !self.domain.has_mr_mode(raw::FI_MR_ENDPOINT) {
            return Ok(());
        }
        // SAFETY: both are open, of one domain.
        let bound = unsafe { call::mr_bind(self.mr.as_ptr(), endpoint.ep.cast(), 0) };
        if bound < 0 {
            // Nobody can use it, whether it can be closed or not.
            return Err(-bound);
        }
        // SAFETY: bound.
        let enabled = unsafe { call::mr_enable(self.mr.as_ptr()) };
        if enabled < 0 { Err(-enabled) } else { Ok(()) }
    }

    /// Returns the descriptor by which our own operations name the memory (`fi_mr_desc`).
    pub(crate) fn desc(&self) -> *mut c_void {
        // SAFETY: open.
        unsafe { self.mr.as_ref().mem_desc }
    }

    /// Returns the key by which peers name the memory.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: open.
        unsafe { self.mr.as_ref().key }
    }

    /// Ends the registration. `false`: libfabric has refused, so that the memory may be accessed
    /// for as long as the process lives, and must stay where it is.
    pub(crate) fn end(mut self) -> bool {
        self.close()
    }

    /// Closes it, once.
    fn close(&mut self) -> bool {
        if std::mem::replace(&mut self.closed, true) || !self.domain.is_ours() {
            return true;
        }
        // SAFETY: opened by `register`, not closed before; it begins with its `fid`.
        let closed = unsafe { call::close(self.mr.as_ptr().cast()) };
        if closed != 0 {
            let error = self.domain.lib.strerror(-closed);
            tracing::warn!(
                error,
                "libfabric refused to end a registration: peers may go on using the memory, which \
                 is not given back"
            );
            // What it is of must not be closed before it (`fi_domain.3`), so never.
            std::mem::forget(self.domain.clone());
        }
        closed == 0
    }
}

impl Drop for Mr {
    /// Ends a registration whose memory lives on anyway; others are [ended](Self::end).
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns a text for hints, which the library frees.
pub(crate) fn allocated(text: &str) -> *mut std::ffi::c_char {
    let Ok(text) = CString::new(text) else { return std::ptr::null_mut() };
    // SAFETY: a text with an end; the copy is `malloc`ed, as the library expects.
    unsafe { libc::strdup(text.as_ptr()) }
}
