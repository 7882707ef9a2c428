//! A bare worker of UCX with one endpoint: eager active messages, and UCX's own get and put.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "objects that belong together are freed together"
)]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

use ucx_sys::*;

use super::{Bare, MESSAGE_BYTES_MAX, Memory, Verb};
use crate::base::{Deadline, Doing, Failure, Result};

const AM: u32 = 0;

/// Where callbacks leave what has happened. UCX makes them within calls of the worker.
#[derive(Default)]
struct Inbox {
    message: RefCell<Vec<u8>>,
    came: Cell<bool>,
    /// The operation that was under way is over.
    ended: Cell<Option<ucs_status_t>>,
}

/// A message is there.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
unsafe extern "C" fn on_message(
    inbox: *mut c_void,
    _header: *const c_void,
    _header_length: usize,
    data: *mut c_void,
    length: usize,
    _param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: the inbox outlives the worker, which has made this call.
    let inbox = unsafe { &*inbox.cast::<Inbox>() };
    // SAFETY: eager messages come whole (`UCP_AM_FLAG_WHOLE_MSG`), with so many bytes, of which a
    // side sends at least one.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
    let mut message = inbox.message.borrow_mut();
    message.clear();
    message.extend_from_slice(bytes);
    inbox.came.set(true);
    UCS_OK
}

/// An operation is over that was not at once.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
unsafe extern "C" fn on_ended(_request: *mut c_void, status: ucs_status_t, inbox: *mut c_void) {
    // SAFETY: the inbox outlives the worker, which has made this call.
    unsafe { &*inbox.cast::<Inbox>() }.ended.set(Some(status));
}

/// A worker with an endpoint to the other side.
pub(super) struct Endpoint {
    ucp: &'static Ucp,
    context: ucp_context_h,
    worker: ucp_worker_h,
    ep: ucp_ep_h,
    memh: ucp_mem_h,
    rkey: ucp_rkey_h,
    /// Behind a pointer, which UCX has; only shared references are made of it.
    inbox: *mut Inbox,
    outgoing: Memory,
    memory: Option<Memory>,
    /// Address of the other side's.
    remote: u64,
}

// SAFETY: UCX's objects may be used by any thread, one at a time (`UCS_THREAD_MODE_SERIALIZED`);
// the rest is owned.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Over those transports (`UCX_TLS`), and that network device (`UCX_NET_DEVICES`), else all.
    pub(super) fn open(tls: &str, device: Option<&str>) -> Result<Self> {
        let ucp = library().doing("opening UCX")?;
        let mut this = Self {
            ucp,
            context: null_mut(),
            worker: null_mut(),
            ep: null_mut(),
            memh: null_mut(),
            rkey: null_mut(),
            inbox: Box::into_raw(Box::default()),
            outgoing: Memory::new(vec![0; MESSAGE_BYTES_MAX]),
            memory: None,
            remote: 0,
        };
        this.context = context(ucp, tls, device)?;
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_worker_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(UCP_WORKER_PARAM_FIELD_THREAD_MODE);
        params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
        // SAFETY: a live context; the parameters live through the call.
        let made = unsafe { ucp.ucp_worker_create(this.context, &params, &mut this.worker) };
        check(ucp, made, "making a worker")?;
        let params = ucp_am_handler_param_t {
            field_mask: u64::from(
                UCP_AM_HANDLER_PARAM_FIELD_ID
                    | UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                    | UCP_AM_HANDLER_PARAM_FIELD_CB
                    | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            ),
            id: AM,
            flags: UCP_AM_FLAG_WHOLE_MSG,
            cb: Some(on_message),
            arg: this.inbox.cast(),
        };
        // SAFETY: a live worker; `Drop` frees the inbox after it.
        let set = unsafe { ucp.ucp_worker_set_am_recv_handler(this.worker, &params) };
        check(ucp, set, "receiving messages")?;
        Ok(this)
    }

    #[inline]
    fn inbox(&self) -> &Inbox {
        // SAFETY: made by `open`, freed by `Drop`; only shared references exist.
        unsafe { &*self.inbox }
    }

    /// Moves the network.
    #[inline]
    fn progress(&self) {
        // SAFETY: a live worker, and not within one of its callbacks.
        unsafe { self.ucp.ucp_worker_progress(self.worker) };
    }

    fn params(&self) -> ucp_request_param_t {
        ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK
                | UCP_OP_ATTR_FIELD_USER_DATA
                | UCP_OP_ATTR_FIELD_FLAGS,
            flags: 0,
            request: null_mut(),
            cb: ucp_request_param_t__bindgen_ty_1 { send: Some(on_ended) },
            datatype: 0,
            user_data: self.inbox.cast(),
            reply_buffer: null_mut(),
            memory_type: UCS_MEMORY_TYPE_HOST,
            recv_info: ucp_request_param_t__bindgen_ty_2 { length: null_mut() },
            memh: null_mut(),
        }
    }

    /// Waits for the end of what a call of UCX has begun.
    #[inline]
    fn until_ended(&self, begun: ucs_status_ptr_t, what: &str, deadline: Deadline) -> Result<()> {
        const LOWEST: isize = UCS_ERR_LAST as isize;
        match begun as isize {
            0 => return Ok(()),
            status @ LOWEST..0 => return check(self.ucp, status as ucs_status_t, what),
            _ => {}
        }
        deadline.spin_until(what, || {
            let is_over = self.inbox().ended.get().is_some();
            if !is_over {
                self.progress();
            }
            is_over
        })?;
        // SAFETY: UCX gave it, and its callback was made.
        unsafe { self.ucp.ucp_request_free(begun) };
        check(self.ucp, self.inbox().ended.take().unwrap_or(UCS_OK), what)
    }
}

fn context(ucp: &Ucp, tls: &str, device: Option<&str>) -> Result<ucp_context_h> {
    let tls = CString::new(tls).doing("a transport's name")?;
    let device = device.map(CString::new).transpose().doing("a device's name")?;
    let mut config = null_mut();
    // SAFETY: neither prefix nor file are asked for; the result has room.
    let read = unsafe { ucp.ucp_config_read(null(), null(), &mut config) };
    check(ucp, read, "reading the configuration")?;
    // SAFETY: a configuration that was read; both strings live through the call.
    let mut chosen = unsafe { ucp.ucp_config_modify(config, c"TLS".as_ptr(), tls.as_ptr()) };
    if let Some(device) = device.filter(|_| chosen == UCS_OK) {
        let name = c"NET_DEVICES".as_ptr();
        // SAFETY: as above.
        chosen = unsafe { ucp.ucp_config_modify(config, name, device.as_ptr()) };
    }
    // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
    let mut params: ucp_params_t = unsafe { std::mem::zeroed() };
    params.field_mask = u64::from(UCP_PARAM_FIELD_FEATURES);
    params.features = u64::from(UCP_FEATURE_AM | UCP_FEATURE_RMA);
    let (major, minor) = (UCP_API_MAJOR, UCP_API_MINOR);
    let mut context = null_mut();
    // SAFETY: the version is that of the declarations; the parameters live through the call.
    let made = unsafe { ucp.ucp_init_version(major, minor, &params, config, &mut context) };
    // SAFETY: it was read above and is used no more.
    unsafe { ucp.ucp_config_release(config) };
    check(ucp, chosen, "choosing transports")?;
    check(ucp, made, "starting UCX")?;
    Ok(context)
}

fn check(ucp: &Ucp, status: ucs_status_t, what: &str) -> Result<()> {
    if status == UCS_OK {
        return Ok(());
    }
    // SAFETY: takes any number; texts of the library have an end and live as long as it does.
    let said = unsafe { CStr::from_ptr(ucp.ucs_status_string(status)) };
    Err(Failure::new(format!("UCX: {what}: {}", said.to_string_lossy())))
}

impl Bare for Endpoint {
    fn address(&self) -> Result<Vec<u8>> {
        let (mut address, mut len) = (null_mut(), 0);
        // SAFETY: a live worker; the results have room.
        let got = unsafe { self.ucp.ucp_worker_get_address(self.worker, &mut address, &mut len) };
        check(self.ucp, got, "asking for the worker's address")?;
        // SAFETY: so many bytes are there, until they are released below.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) }.to_vec();
        // SAFETY: it came from this worker, and is used no more.
        unsafe { self.ucp.ucp_worker_release_address(self.worker, address) };
        Ok(bytes)
    }

    fn reach(&mut self, address: &[u8]) -> Result<()> {
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_ep_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
        params.address = address.as_ptr().cast();
        // SAFETY: a live worker; an address of the same program, which lives through the call.
        let made = unsafe { self.ucp.ucp_ep_create(self.worker, &params, &mut self.ep) };
        check(self.ucp, made, "connecting")
    }

    #[inline]
    fn send(&mut self, message: &[u8], deadline: Deadline) -> Result<()> {
        // Where it stays until UCX has sent it.
        self.outgoing.bytes()[..message.len()].copy_from_slice(message);
        let (data, len) = (self.outgoing.ptr().cast(), message.len());
        let mut params = self.params();
        params.flags = UCP_AM_SEND_FLAG_EAGER;
        // SAFETY: a live endpoint; the bytes are not touched before the end, which is awaited next.
        let begun = unsafe { self.ucp.ucp_am_send_nbx(self.ep, AM, null(), 0, data, len, &params) };
        self.until_ended(begun, "sending a message", deadline)
    }

    #[inline]
    fn has_message(&mut self) -> Result<bool> {
        if !self.inbox().came.get() {
            self.progress();
        }
        Ok(self.inbox().came.take())
    }

    fn message(&mut self) -> &[u8] {
        // SAFETY: no call of the worker, which alone changes it, is made while `self` is borrowed.
        unsafe { &*self.inbox().message.as_ptr() }
    }

    fn expose(&mut self, memory: Vec<u8>) -> Result<Vec<u8>> {
        let memory = self.memory.insert(Memory::new(memory));
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_mem_map_params_t = unsafe { std::mem::zeroed() };
        params.field_mask =
            u64::from(UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH);
        (params.address, params.length) = (memory.ptr().cast(), memory.len());
        let mut name = (memory.ptr().addr() as u64).to_ne_bytes().to_vec();
        // SAFETY: a live context; the memory outlives the mapping, which `Drop` ends first.
        let mapped = unsafe { self.ucp.ucp_mem_map(self.context, &params, &mut self.memh) };
        check(self.ucp, mapped, "registering memory")?;
        let (mut packed, mut len) = (null_mut(), 0);
        // SAFETY: a live mapping; the results have room.
        let got = unsafe { self.ucp.ucp_rkey_pack(self.context, self.memh, &mut packed, &mut len) };
        check(self.ucp, got, "asking for the key of memory")?;
        // SAFETY: so many bytes are there, until they are released below.
        name.extend_from_slice(unsafe { std::slice::from_raw_parts(packed.cast::<u8>(), len) });
        // SAFETY: it came from `ucp_rkey_pack`, and is used no more.
        unsafe { self.ucp.ucp_rkey_buffer_release(packed) };
        Ok(name)
    }

    fn exposed(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], Memory::bytes)
    }

    fn aim(&mut self, name: &[u8]) -> Result<()> {
        let Some((address, key)) = name.split_first_chunk() else {
            return Err(Failure::new("no name of memory"));
        };
        self.remote = u64::from_ne_bytes(*address);
        // SAFETY: a live endpoint, whose other side has packed the key.
        let read =
            unsafe { self.ucp.ucp_ep_rkey_unpack(self.ep, key.as_ptr().cast(), &mut self.rkey) };
        check(self.ucp, read, "reading a key")
    }

    #[inline]
    fn transfer(&mut self, verb: Verb, deadline: Deadline) -> Result<()> {
        let Some(memory) = &self.memory else { return Err(Failure::new("nothing is exposed")) };
        let (at, len, params) = (memory.ptr().cast(), memory.len(), self.params());
        let (ep, remote, rkey) = (self.ep, self.remote, self.rkey);
        // SAFETY: a live endpoint and key; the other side has exposed as much. The memory is not
        // touched before the end, which is awaited next.
        let begun = unsafe {
            match verb {
                Verb::Get => self.ucp.ucp_get_nbx(ep, at, len, remote, rkey, &params),
                Verb::Put => self.ucp.ucp_put_nbx(ep, at, len, remote, rkey, &params),
            }
        };
        self.until_ended(begun, "a transfer", deadline)?;
        if verb == Verb::Put {
            // The bytes have left; now until they are there.
            // SAFETY: a live endpoint.
            let begun = unsafe { self.ucp.ucp_ep_flush_nbx(ep, &params) };
            self.until_ended(begun, "the end of a put", deadline)?;
        }
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: each was made by `open`, `reach`, `expose` or `aim`, and is used no more; the
        // endpoint goes with its worker, the inbox after what has its address. Nothing is under
        // way: every operation was awaited.
        unsafe {
            if !self.rkey.is_null() {
                self.ucp.ucp_rkey_destroy(self.rkey);
            }
            if !self.worker.is_null() {
                self.ucp.ucp_worker_destroy(self.worker);
            }
            if !self.memh.is_null() {
                let _ = self.ucp.ucp_mem_unmap(self.context, self.memh);
            }
            if !self.context.is_null() {
                self.ucp.ucp_cleanup(self.context);
            }
            drop(Box::from_raw(self.inbox));
        }
    }
}
