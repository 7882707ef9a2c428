//! A bare endpoint of libfabric: tagged messages between two, as `fi_pingpong` sends them (one
//! receive posted ahead, short messages injected), and reads and writes of the other's memory.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a structure of libfabric's is filled in, or handed over, as one thing"
)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use ofi_sys::{Library, call, raw};

use super::{Bare, MESSAGE_BYTES_MAX, Memory, Verb};
use crate::base::{Deadline, Doing, Failure, Result};

/// A provider, as `na`'s transport asks for it.
#[derive(Debug)]
pub(super) struct Provider {
    /// Names in libfabric: the first that is there.
    names: &'static [&'static str],
    protocol: u32,
    /// The host to bind to, for providers with IP addresses.
    host: Option<&'static CStr>,
}

/// TCP; `net` is what libfabric 1.17 calls it.
pub(super) const TCP: Provider =
    Provider { names: &["tcp", "net"], protocol: raw::FI_PROTO_XNET, host: Some(c"127.0.0.1") };

/// TCP as C Mercury uses it, with messages by the utility provider `ofi_rxm`.
pub(super) const RXM: Provider =
    Provider { names: &["tcp;ofi_rxm"], protocol: raw::FI_PROTO_RXM, host: Some(c"127.0.0.1") };

/// Shared memory.
pub(super) const SHM: Provider =
    Provider { names: &["shm"], protocol: raw::FI_PROTO_SHM, host: None };

const TAG: u64 = 7;

/// Longest address, in words.
const ADDRESS_WORDS: usize = 32;

fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| Library::open().map_err(|error| error.to_string()));
    opened.as_ref().map_err(|reason| Failure::new(reason.clone()))
}

/// The context of an operation for libfabric, which owns it while that is in flight.
#[repr(C)]
struct Context(raw::fi_context2);

impl Context {
    fn new() -> *mut Self {
        Box::into_raw(Box::new(Self(raw::fi_context2 { internal: [null_mut(); 8] })))
    }
}

/// An endpoint with one receive posted at all times.
pub(super) struct Endpoint {
    lib: &'static Library,
    info: *mut raw::fi_info,
    fabric: *mut raw::fid_fabric,
    domain: *mut raw::fid_domain,
    av: *mut raw::fid_av,
    cq: *mut raw::fid_cq,
    ep: *mut raw::fid_ep,
    mr: *mut raw::fid_mr,
    peer: raw::fi_addr_t,
    inject_bytes_max: usize,
    /// The contexts of the receive, the send and the transfer in flight.
    contexts: [*mut Context; 3],
    /// Which of them have ended.
    ended: [bool; 3],
    /// Libfabric has the first one; the second holds the last message.
    incoming: [Memory; 2],
    outgoing: Memory,
    memory: Option<Memory>,
    /// Address and key of the other side's.
    remote: (u64, u64),
}

const RECEIVE: usize = 0;
const SEND: usize = 1;
const TRANSFER: usize = 2;

// SAFETY: libfabric's objects may be used by any thread, one at a time (`FI_THREAD_DOMAIN`); the
// rest is owned.
unsafe impl Send for Endpoint {}

impl Endpoint {
    pub(super) fn open(provider: &Provider) -> Result<Self> {
        let lib = library()?;
        let mut this = Self {
            lib,
            info: null_mut(),
            fabric: null_mut(),
            domain: null_mut(),
            av: null_mut(),
            cq: null_mut(),
            ep: null_mut(),
            mr: null_mut(),
            peer: u64::MAX,
            inject_bytes_max: 0,
            contexts: std::array::from_fn(|_| Context::new()),
            ended: [false; 3],
            incoming: std::array::from_fn(|_| Memory::new(vec![0; MESSAGE_BYTES_MAX])),
            outgoing: Memory::new(vec![0; MESSAGE_BYTES_MAX]),
            memory: None,
            remote: (0, 0),
        };
        this.info = find(lib, provider)?;
        // What is opened is stored at once, so that `Drop` closes it.
        // SAFETY: the info of a search, with all its parts; places for the results.
        unsafe {
            this.inject_bytes_max = (*(*this.info).tx_attr).inject_size;
            let opened = lib.fabric((*this.info).fabric_attr, &raw mut this.fabric);
            this.check(opened, "opening the fabric")?;
            let opened = call::domain(this.fabric, this.info, &raw mut this.domain);
            this.check(opened, "opening the domain")?;
            let mut attr: raw::fi_av_attr = std::mem::zeroed();
            let opened = call::av_open(this.domain, &raw mut attr, &raw mut this.av);
            this.check(opened, "opening the address vector")?;
            let mut attr: raw::fi_cq_attr = std::mem::zeroed();
            attr.format = raw::FI_CQ_FORMAT_CONTEXT;
            attr.wait_obj = raw::FI_WAIT_NONE;
            let opened = call::cq_open(this.domain, &raw mut attr, &raw mut this.cq);
            this.check(opened, "opening the completion queue")?;
            let opened = call::endpoint(this.domain, this.info, &raw mut this.ep);
            this.check(opened, "opening the endpoint")?;
            let bound = call::ep_bind(this.ep, this.cq.cast(), raw::FI_SEND | raw::FI_RECV);
            this.check(bound, "binding the completion queue")?;
            let bound = call::ep_bind(this.ep, this.av.cast(), 0);
            this.check(bound, "binding the address vector")?;
            this.check(call::enable(this.ep), "enabling the endpoint")?;
        }
        this.post_receive()?;
        Ok(this)
    }

    fn check(&self, result: c_int, what: &str) -> Result<()> {
        match result {
            0.. => Ok(()),
            errno => Err(self.failed(-errno, what)),
        }
    }

    fn failed(&self, errno: c_int, what: &str) -> Failure {
        Failure::new(format!("libfabric: {what}: {} ({errno})", self.lib.strerror(errno)))
    }

    fn post_receive(&mut self) -> Result<()> {
        let (start, len) = (self.incoming[0].ptr().cast(), self.incoming[0].len());
        let (any, context) = (u64::MAX, self.contexts[RECEIVE].cast());
        // SAFETY: the endpoint is open; buffer and context live until it is closed, and are not
        // looked at before the completion.
        let posted = unsafe { call::trecv(self.ep, start, len, null_mut(), any, TAG, 0, context) };
        self.check(posted as c_int, "posting a receive")
    }

    /// Moves the network, and takes completions.
    #[inline]
    fn progress(&mut self) -> Result<()> {
        let mut ended: [*mut c_void; 4] = [null_mut(); 4];
        // SAFETY: the queue is open; so many entries of its format are there.
        let count = unsafe { call::cq_read(self.cq, ended.as_mut_ptr().cast(), ended.len()) };
        match usize::try_from(count) {
            Ok(count) => {
                for context in &ended[..count.min(ended.len())] {
                    let which = self.contexts.iter().position(|own| own.cast() == *context);
                    self.ended[which.ok_or_else(|| Failure::new("an unknown completion"))?] = true;
                }
                Ok(())
            }
            Err(_) if -count == raw::FI_EAGAIN as isize => Ok(()),
            Err(_) => Err(self.error()),
        }
    }

    /// Why an operation failed.
    fn error(&mut self) -> Failure {
        // SAFETY: numbers and pointers; the queue is open.
        let (entry, count) = unsafe {
            let mut entry: raw::fi_cq_err_entry = std::mem::zeroed();
            let count = call::cq_readerr(self.cq, &raw mut entry, 0);
            (entry, count)
        };
        match count {
            1 => self.failed(entry.err, "an operation"),
            errno => self.failed(-errno as c_int, "the completion queue"),
        }
    }

    /// Calls `post` until libfabric takes it.
    #[inline]
    fn until_taken(
        &mut self,
        what: &str,
        deadline: Deadline,
        mut post: impl FnMut(&Self) -> isize,
    ) -> Result<()> {
        loop {
            match post(self) {
                0 => return Ok(()),
                again if -again == raw::FI_EAGAIN as isize => self.progress()?,
                errno => return Err(self.failed(-errno as c_int, what)),
            }
            deadline.check(what)?;
        }
    }

    #[inline]
    fn until_ended(&mut self, which: usize, what: &str, deadline: Deadline) -> Result<()> {
        let mut moved = Ok(());
        deadline.spin_until(what, || {
            moved = self.progress();
            self.ended[which] || moved.is_err()
        })?;
        self.ended[which] = false;
        moved
    }

    fn mr_mode(&self) -> u32 {
        // SAFETY: the info is there, with all its parts.
        unsafe { (*(*self.info).domain_attr).mr_mode as u32 }
    }
}

/// The first device of the provider.
fn find(lib: &'static Library, provider: &Provider) -> Result<*mut raw::fi_info> {
    let mut errno = libc::ENODATA;
    for name in provider.names {
        let name = CString::new(*name).doing("a provider's name")?;
        // SAFETY: null stands for a fresh one, with all its parts; the name is copied as the
        // library frees it; a place for the result.
        let (result, found) = unsafe {
            let hints = lib.dupinfo(null());
            if hints.is_null() {
                return Err(Failure::new("libfabric: out of memory"));
            }
            (*hints).caps = raw::FI_MSG | raw::FI_TAGGED | raw::FI_RMA;
            (*hints).mode = raw::FI_CONTEXT | raw::FI_CONTEXT2 | raw::FI_ASYNC_IOV;
            (*(*hints).ep_attr).type_ = raw::FI_EP_RDM;
            (*(*hints).ep_attr).protocol = provider.protocol;
            let domain = &mut *(*hints).domain_attr;
            domain.threading = raw::FI_THREAD_DOMAIN;
            domain.mr_mode =
                (raw::FI_MR_VIRT_ADDR | raw::FI_MR_ALLOCATED | raw::FI_MR_PROV_KEY) as c_int;
            domain.control_progress = raw::FI_PROGRESS_MANUAL;
            domain.data_progress = raw::FI_PROGRESS_MANUAL;
            (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            let node = provider.host.map_or(null(), CStr::as_ptr);
            let service = provider.host.map_or(null(), |_| c"0".as_ptr());
            let flags = provider.host.map_or(0, |_| raw::FI_SOURCE | raw::FI_NUMERICHOST);
            let mut found = null_mut();
            let result = lib.getinfo(node, service, flags, hints, &raw mut found);
            lib.freeinfo(hints);
            (result, found)
        };
        if result == 0 && !found.is_null() {
            return Ok(found);
        }
        errno = -result;
    }
    let (names, said) = (provider.names.join("`, `"), lib.strerror(errno));
    Err(Failure::new(format!("libfabric has no provider `{names}` here: {said}")))
}

impl Bare for Endpoint {
    fn address(&self) -> Result<Vec<u8>> {
        let mut words = [0u64; ADDRESS_WORDS];
        let mut len = size_of_val(&words);
        // SAFETY: the endpoint is enabled; so many bytes are there.
        let got = unsafe { call::getname(self.ep, words.as_mut_ptr().cast(), &raw mut len) };
        self.check(got, "asking for the endpoint's address")?;
        Ok(words.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect())
    }

    fn reach(&mut self, address: &[u8]) -> Result<()> {
        // Aligned as any kind of address needs.
        let mut words = [0u64; ADDRESS_WORDS];
        for (word, bytes) in words.iter_mut().zip(address.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(value);
        }
        let peer = &raw mut self.peer;
        // SAFETY: the address vector is open; an address of its own kind, from the same program.
        let inserted = unsafe { call::av_insert(self.av, words.as_ptr().cast(), peer) };
        match inserted {
            1 => Ok(()),
            other => Err(self.failed(-other, "inserting an address")),
        }
    }

    #[inline]
    fn send(&mut self, message: &[u8], deadline: Deadline) -> Result<()> {
        let (start, len) = (message.as_ptr().cast(), message.len());
        if len <= self.inject_bytes_max {
            // SAFETY: the endpoint is open, the peer was inserted; the bytes are copied.
            let inject = |own: &Self| unsafe { call::tinject(own.ep, start, len, own.peer, TAG) };
            return self.until_taken("sending a message", deadline, inject);
        }
        self.outgoing.bytes()[..len].copy_from_slice(message);
        self.until_taken("sending a message", deadline, |own| {
            let (start, context) = (own.outgoing.ptr().cast(), own.contexts[SEND].cast());
            // SAFETY: as above; buffer and context are not used again before the completion, which
            // is awaited next.
            unsafe { call::tsend(own.ep, start, len, null_mut(), own.peer, TAG, context) }
        })?;
        self.until_ended(SEND, "the end of a message", deadline)
    }

    #[inline]
    fn has_message(&mut self) -> Result<bool> {
        if !self.ended[RECEIVE] {
            self.progress()?;
        }
        let came = std::mem::take(&mut self.ended[RECEIVE]);
        if came {
            self.incoming.swap(0, 1);
            self.post_receive()?;
        }
        Ok(came)
    }

    /// The received message, with the bytes behind it in its buffer.
    fn message(&mut self) -> &[u8] {
        self.incoming[1].bytes()
    }

    fn expose(&mut self, memory: Vec<u8>) -> Result<Vec<u8>> {
        let memory = self.memory.insert(Memory::new(memory));
        let iov = libc::iovec { iov_base: memory.ptr().cast(), iov_len: memory.len() };
        let base = memory.ptr().addr() as u64;
        // SAFETY: numbers and pointers; the domain is open, and the memory outlives the
        // registration, which `Drop` ends first.
        let registered = unsafe {
            let mut attr: raw::fi_mr_attr = std::mem::zeroed();
            attr.mr_iov = &raw const iov;
            attr.iov_count = 1;
            attr.access = raw::FI_REMOTE_READ | raw::FI_REMOTE_WRITE | raw::FI_READ | raw::FI_WRITE;
            attr.requested_key = 1;
            call::mr_regattr(self.domain, &raw const attr, 0, &raw mut self.mr)
        };
        self.check(registered, "registering memory")?;
        // SAFETY: registered.
        let key = unsafe { (*self.mr).key };
        let from = if self.mr_mode() & raw::FI_MR_VIRT_ADDR != 0 { base } else { 0 };
        Ok([from, key].iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    fn exposed(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], Memory::bytes)
    }

    fn aim(&mut self, name: &[u8]) -> Result<()> {
        let word = |at: usize| {
            let bytes = name.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_ne_bytes).ok_or_else(|| Failure::new("no name of memory"))
        };
        self.remote = (word(0)?, word(8)?);
        Ok(())
    }

    #[inline]
    fn transfer(&mut self, verb: Verb, deadline: Deadline) -> Result<()> {
        let Some(memory) = &self.memory else { return Err(Failure::new("nothing is exposed")) };
        let iov = libc::iovec { iov_base: memory.ptr().cast(), iov_len: memory.len() };
        let (addr, key) = self.remote;
        let remote = raw::fi_rma_iov { addr, len: memory.len(), key };
        let mut desc = null_mut();
        let message = raw::fi_msg_rma {
            msg_iov: &raw const iov,
            desc: &raw mut desc,
            iov_count: 1,
            addr: self.peer,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: self.contexts[TRANSFER].cast(),
            data: 0,
        };
        let message = &raw const message;
        // SAFETY: the endpoint is open, the peer was inserted and has exposed as much; the
        // description and its parts live until the end of the transfer, which is awaited here.
        self.until_taken("a transfer", deadline, |own| unsafe {
            match verb {
                Verb::Get => call::readmsg(own.ep, message, raw::FI_COMPLETION),
                Verb::Put => {
                    let flags = raw::FI_COMPLETION | raw::FI_DELIVERY_COMPLETE;
                    call::writemsg(own.ep, message, flags)
                }
            }
        })?;
        self.until_ended(TRANSFER, "the end of a transfer", deadline)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let objects: [*mut raw::fid; 6] = [
            self.ep.cast(),
            self.mr.cast(),
            self.cq.cast(),
            self.av.cast(),
            self.domain.cast(),
            self.fabric.cast(),
        ];
        for object in objects.into_iter().filter(|object| !object.is_null()) {
            // SAFETY: opened by `open` or `expose`, closed once, users before what they use; each
            // begins with its `fid`. A refusal leaves nothing to do: the process ends soon.
            let _ = unsafe { call::close(object) };
        }
        if !self.info.is_null() {
            // SAFETY: from `getinfo`, used no more.
            unsafe { self.lib.freeinfo(self.info) };
        }
        for context in self.contexts {
            // SAFETY: made by `Context::new`; the endpoint that knew it is closed.
            drop(unsafe { Box::from_raw(context) });
        }
    }
}
