//! The objects of UCP that an endpoint has, and its calls, with their results as Rust's.
//!
//! A worker is used by one thread at a time (`UCS_THREAD_MODE_SERIALIZED`): the thread that holds
//! the endpoint's lock. Callbacks are in `callbacks.rs`; UCP makes them within the calls below.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr;

use rustix::net::SocketAddrAny;
use ucx_sys::*;

use super::callbacks;
use super::library::{check, create_context, printed};
use super::packing;
use crate::addressing::{address::Settings, sockaddr};
use crate::operations::inbox::{ConnRequest, Inbox};
use crate::operations::offer::Offer;
use crate::operations::remote_key::{Reach, RemoteKey, RemotePlace};
use crate::operations::slots::Pinned;
use crate::wire::{AM_CONTROL, AM_DATA, AM_EXPECTED, AM_PIECE, AM_UNEXPECTED};
use crate::wire::{GivenKey, PACKED_BYTES_MAX, Place};
use na_core::{Access, Error, RawSegment};
use prim::fork::Process;

/// The outcome of a call that may go on.
pub(crate) enum Posted {
    /// It is over, well; no callback follows.
    Done,
    /// The callback follows; the handle names it until then.
    Pending(*mut c_void),
    /// It is over, or was not begun; no callback follows.
    Failed(ucs_status_t),
}

/// A worker with its context and its listener.
pub(crate) struct Worker {
    pub(crate) ucp: &'static Ucp,
    pub(crate) context: ucp_context_h,
    worker: ucp_worker_h,
    /// They stay as long as the worker: UCX 1.13 uses a listener after its end if somebody who was
    /// calling it goes on (`ucp_cm_server_conn_request_cb`).
    listeners: Vec<ucp_listener_h>,
    inbox: *const Inbox,
    /// How UCX gets at chunks, see `packing.rs`.
    packed: ucp_datatype_t,
    queues: u16,
    detects_failure: bool,
    gives_keys: bool,
    /// Memory that peers could reach until the end.
    mapped: Vec<ucp_mem_h>,
    process: Process,
}

/// Bytes that UCX may look at when it unpacks a key, whatever it says of itself: it is not told how
/// long it is. A mask and a type, and for each of 64 bits of the mask a length of one byte and so
/// much; and as much again for what later versions append.
const UNPACKED_BYTES_MAX: usize = 2 * (9 + 64 * 256);

impl Worker {
    /// Makes a worker that reports to `inbox`.
    ///
    /// # Safety
    ///
    /// `inbox` must be valid until the worker is dropped, and nobody may use it while a call of the
    /// worker is under way.
    pub(crate) unsafe fn open(
        ucp: &'static Ucp,
        settings: &Settings,
        inbox: *const Inbox,
    ) -> Result<Self, Error> {
        // SAFETY: contract of this function.
        let this = unsafe { Self::deaf(ucp, settings, inbox)? };
        this.handle(AM_UNEXPECTED, callbacks::on_am::<AM_UNEXPECTED>)?;
        this.handle(AM_CONTROL, callbacks::on_am::<AM_CONTROL>)?;
        this.handle(AM_DATA, callbacks::on_am::<AM_DATA>)?;
        this.handle(AM_EXPECTED, callbacks::on_am::<AM_EXPECTED>)?;
        this.handle(AM_PIECE, callbacks::on_am::<AM_PIECE>)?;
        // SAFETY: contract of this function.
        unsafe { &*inbox }.keeper.set(this.worker);
        Ok(this)
    }

    /// Makes a worker that has registered no active messages yet.
    ///
    /// # Safety
    ///
    /// As for [`open`](Self::open).
    pub(crate) unsafe fn deaf(
        ucp: &'static Ucp,
        settings: &Settings,
        inbox: *const Inbox,
    ) -> Result<Self, Error> {
        let mut this = Self {
            ucp,
            context: ptr::null_mut(),
            worker: ptr::null_mut(),
            listeners: Vec::new(),
            inbox,
            packed: 0,
            queues: packing::queues(),
            detects_failure: settings.detects_failure,
            gives_keys: settings.remote_keys,
            mapped: Vec::new(),
            process: Process::current(),
        };
        this.context = create_context(ucp, settings)?;
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_worker_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(UCP_WORKER_PARAM_FIELD_THREAD_MODE);
        params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
        // SAFETY: a live context; the parameters live through the call.
        let status = unsafe { ucp.ucp_worker_create(this.context, &params, &mut this.worker) };
        check(ucp, status, "cannot make a worker")?;
        // SAFETY: the operations are copied; the result has room.
        let status = unsafe {
            ucp.ucp_dt_create_generic(&packing::OPERATIONS, ptr::null_mut(), &mut this.packed)
        };
        check(ucp, status, "cannot make a datatype")?;
        Ok(this)
    }

    pub(crate) fn handle(&self, id: u32, callback: callbacks::AmCallback) -> Result<(), Error> {
        let params = ucp_am_handler_param_t {
            field_mask: u64::from(
                UCP_AM_HANDLER_PARAM_FIELD_ID
                    | UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                    | UCP_AM_HANDLER_PARAM_FIELD_CB
                    | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            ),
            id,
            flags: UCP_AM_FLAG_WHOLE_MSG,
            cb: Some(callback),
            arg: self.inbox.cast_mut().cast(),
        };
        // SAFETY: a live worker; the inbox outlives it (contract of `open`).
        let status = unsafe { self.ucp.ucp_worker_set_am_recv_handler(self.worker, &params) };
        check(self.ucp, status, "cannot receive active messages")
    }

    /// Listens at `address`, of `uri`, too; answers which it is, for a free port. At most two.
    pub(crate) fn listen(&mut self, address: SocketAddr, uri: &str) -> Result<SocketAddr, Error> {
        let raw = SocketAddrAny::from(address);
        let callback = match self.listeners.len() {
            0 => callbacks::on_connection::<0>,
            _ => callbacks::on_connection::<1>,
        };
        debug_assert!(self.listeners.len() < 2, "as many as there are callbacks");
        let mut listener = ptr::null_mut();
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_listener_params_t = unsafe { std::mem::zeroed() };
        params.field_mask =
            u64::from(UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER);
        params.sockaddr = sockaddr::as_ucs(&raw);
        params.conn_handler =
            ucp_listener_conn_handler_t { cb: Some(callback), arg: self.inbox.cast_mut().cast() };
        // SAFETY: a live worker; the address lives through the call, the inbox longer than the
        // worker (contract of `open`).
        let status = unsafe { self.ucp.ucp_listener_create(self.worker, &params, &mut listener) };
        if status == UCS_ERR_BUSY {
            let what = format!(
                "cannot open `{uri}` (its port is in use: take another one, or none for a free \
                 one): UCX cannot listen at {address}"
            );
            return Err(Error::io(what, std::io::Error::from(std::io::ErrorKind::AddrInUse)));
        }
        check(self.ucp, status, &format!("cannot listen at {address} for `{uri}`"))?;
        self.listeners.push(listener);
        // SAFETY: plain data, for which all zero is valid.
        let mut attr: ucp_listener_attr_t = unsafe { std::mem::zeroed() };
        attr.field_mask = u64::from(UCP_LISTENER_ATTR_FIELD_SOCKADDR);
        // SAFETY: a live listener; the result has room.
        let status = unsafe { self.ucp.ucp_listener_query(listener, &mut attr) };
        check(self.ucp, status, "cannot ask for the listener's address")?;
        sockaddr::read(&attr.sockaddr).ok_or_else(|| Error::Unavailable {
            transport: "ucx",
            reason: "the listener has no IP address".into(),
        })
    }

    fn end_listeners(&self) {
        for listener in &self.listeners {
            // SAFETY: made by `listen`, used no more.
            unsafe { self.ucp.ucp_listener_destroy(*listener) };
        }
    }

    /// Returns whether UCX ends what is under way with a peer that is closed by force.
    pub(crate) fn detects_failure(&self) -> bool {
        self.detects_failure
    }

    /// Returns whether peers may get remote keys of memory here.
    pub(crate) fn gives_keys(&self) -> bool {
        self.gives_keys
    }

    /// Keeps memory reachable until all connections are gone.
    pub(crate) fn unmap_at_the_end(&mut self, memory: impl Iterator<Item = ucp_mem_h>) {
        self.mapped.extend(memory);
    }

    /// Returns whether UCX fetches chunks when it has room for them, see `packing.rs`: over shared
    /// memory. Over others it sends them from where they are.
    pub(crate) fn packs(&self) -> bool {
        !self.detects_failure
    }

    /// Returns the fingerprint of its queues of shared memory, see `packing.rs`; 0: it has none.
    pub(crate) fn queues(&self) -> u16 {
        if self.packs() { self.queues } else { 0 }
    }

    /// Becomes readable when there is work, after [`arm`](Self::arm). Only for workers that
    /// [wake](Settings::wakes).
    pub(crate) fn fd(&self) -> Result<RawFd, Error> {
        let mut fd = -1;
        // SAFETY: a live worker with the wake-up feature; the result has room.
        let status = unsafe { self.ucp.ucp_worker_get_efd(self.worker, &mut fd) };
        check(self.ucp, status, "cannot get the wait descriptor")?;
        Ok(fd)
    }

    /// Moves things forward; whether anything moved.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        // SAFETY: a live worker, used by this thread alone, and not from one of its callbacks.
        unsafe { self.ucp.ucp_worker_progress(self.worker) != 0 }
    }

    /// Asks for the descriptor to become readable; `false` when there is work already. Only after
    /// [`fd`](Self::fd).
    pub(crate) fn arm(&self) -> bool {
        // SAFETY: as for `progress`; the worker has the wake-up feature.
        unsafe { self.ucp.ucp_worker_arm(self.worker) == UCS_OK }
    }

    /// Begins to connect with the listener at `to`.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<ucp_ep_h, ucs_status_t> {
        let raw = SocketAddrAny::from(to);
        let mut params = self.endpoint_params();
        params.field_mask |= u64::from(UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR);
        params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
        params.sockaddr = sockaddr::as_ucs(&raw);
        self.create_endpoint(&params)
    }

    /// Takes a connection that somebody has asked for.
    pub(crate) fn accept(&self, request: ConnRequest) -> Result<ucp_ep_h, ucs_status_t> {
        let mut params = self.endpoint_params();
        params.field_mask |= u64::from(UCP_EP_PARAM_FIELD_CONN_REQUEST);
        params.conn_request = request.handle;
        self.create_endpoint(&params)
    }

    fn endpoint_params(&self) -> ucp_ep_params_t {
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_ep_params_t = unsafe { std::mem::zeroed() };
        params.field_mask =
            u64::from(UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER);
        params.err_mode = match self.detects_failure {
            true => UCP_ERR_HANDLING_MODE_PEER,
            false => UCP_ERR_HANDLING_MODE_NONE,
        };
        params.err_handler = ucp_err_handler_t {
            cb: Some(callbacks::on_failure),
            arg: self.inbox.cast_mut().cast(),
        };
        params
    }

    fn create_endpoint(&self, params: &ucp_ep_params_t) -> Result<ucp_ep_h, ucs_status_t> {
        let mut endpoint = ptr::null_mut();
        // SAFETY: a live worker; what the parameters refer to lives through the call, and the inbox
        // longer than the worker (contract of `open`).
        match unsafe { self.ucp.ucp_ep_create(self.worker, params, &mut endpoint) } {
            UCS_OK => Ok(endpoint),
            status => Err(status),
        }
    }

    /// Turns a request for a connection away.
    pub(crate) fn reject(&self, request: ConnRequest) {
        let Some(listener) = self.listeners.get(request.listener) else { return };
        // SAFETY: a live listener, whose request this is, and which is neither accepted nor
        // rejected yet. A failure leaves nothing to do.
        let _ = unsafe { self.ucp.ucp_listener_reject(*listener, request.handle) };
    }

    /// Returns the address that a connection comes from.
    pub(crate) fn client(&self, request: ConnRequest) -> Option<SocketAddr> {
        // SAFETY: plain data, for which all zero is valid.
        let mut attr: ucp_conn_request_attr_t = unsafe { std::mem::zeroed() };
        attr.field_mask = u64::from(UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR);
        // SAFETY: a live request, neither accepted nor rejected yet; the result has room.
        let status = unsafe { self.ucp.ucp_conn_request_query(request.handle, &mut attr) };
        (status == UCS_OK).then(|| sockaddr::read(&attr.client_address)).flatten()
    }

    /// Ends a connection; `force`: at once, without the peer.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed; `pinned` lives until the callback.
    pub(crate) unsafe fn close(
        &self,
        endpoint: ucp_ep_h,
        force: bool,
        pinned: *const Pinned,
    ) -> Posted {
        let mut params = request_params(pinned);
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        // Only with that kind of error handling may it be forced.
        params.flags = match force && self.detects_failure {
            true => UCP_EP_CLOSE_FLAG_FORCE,
            false => 0,
        };
        // SAFETY: contract of this function.
        posted(unsafe { self.ucp.ucp_ep_close_nbx(endpoint, &params) })
    }

    /// Sends an active message.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed; `header`, `data` and `pinned` live
    /// until the callback.
    #[inline]
    pub(crate) unsafe fn send_am(
        &self,
        endpoint: ucp_ep_h,
        id: u32,
        header: (*const u8, usize),
        data: (*const u8, usize),
        pinned: *const Pinned,
    ) -> Posted {
        let mut params = request_params(pinned);
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        // Only pieces of transfers are long enough for a rendezvous.
        params.flags = match id {
            AM_PIECE => UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_RNDV,
            _ => UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
        };
        let (header, header_len) = (header.0.cast(), header.1);
        // SAFETY: contract of this function.
        posted(unsafe {
            let (data, len) = (data.0.cast(), data.1);
            self.ucp.ucp_am_send_nbx(endpoint, id, header, header_len, data, len, &params)
        })
    }

    /// Sends a chunk that UCX fetches from a slot, see `packing.rs`.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed; `pinned`, and the memory that it
    /// names, live until the callback, the latter at least until the slot names none.
    #[inline]
    pub(crate) unsafe fn send_packed(&self, endpoint: ucp_ep_h, pinned: *const Pinned) -> Posted {
        let mut params = request_params(pinned);
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE;
        params.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
        params.datatype = self.packed;
        let (header, chunk) = (ptr::null(), pinned.cast());
        // SAFETY: contract of this function; the datatype is of this worker's.
        posted(unsafe { self.ucp.ucp_am_send_nbx(endpoint, AM_DATA, header, 0, chunk, 1, &params) })
    }

    /// Sends a short active message if UCX takes it at once, which then has copied it; whether it
    /// has.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed.
    #[inline]
    pub(crate) unsafe fn send_am_now(
        &self,
        endpoint: ucp_ep_h,
        id: u32,
        header: &[u8],
        data: &[u8],
    ) -> bool {
        let mut params = request_params(ptr::null());
        params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
        params.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
        let (header, header_len) = (header.as_ptr().cast(), header.len());
        // SAFETY: contract of this function; header and data live through the call, and are not
        // used after it: what cannot end at once is not begun.
        let result = unsafe {
            let (data, len) = (data.as_ptr().cast(), data.len());
            self.ucp.ucp_am_send_nbx(endpoint, id, header, header_len, data, len, &params)
        };
        matches!(posted(result), Posted::Done)
    }

    /// Receives what was offered by rendezvous.
    ///
    /// # Safety
    ///
    /// The offer is of this worker and of `places`' length together. `places`, their memory, and
    /// `pinned` live until the callback; nobody makes references to that memory meanwhile.
    pub(crate) unsafe fn receive(
        &self,
        offer: Offer,
        places: &[ucp_dt_iov_t],
        pinned: *const Pinned,
    ) -> Posted {
        let mut params = request_params(pinned);
        params.cb.recv_am = Some(callbacks::on_received);
        let (buffer, count) = match places {
            [only] => (only.buffer, only.length),
            several => {
                params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
                params.datatype = u64::from(UCP_DATATYPE_IOV);
                (several.as_ptr().cast_mut().cast(), several.len())
            }
        };
        let desc = offer.take().as_ptr();
        // SAFETY: contract of this function; the offer was neither received nor refused yet.
        posted(unsafe { self.ucp.ucp_am_recv_data_nbx(self.worker, desc, buffer, count, &params) })
    }

    /// Makes memory reachable for peers that are told what is returned.
    ///
    /// # Errors
    ///
    /// It cannot be; whether UCX knows nothing of the memory.
    ///
    /// # Safety
    ///
    /// The memory stays until it was [unmapped](Self::unmap), and nobody makes references to it.
    pub(crate) unsafe fn map(
        &self,
        piece: RawSegment,
        access: Access,
    ) -> Result<(ucp_mem_h, Place), bool> {
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_mem_map_params_t = unsafe { std::mem::zeroed() };
        params.field_mask = u64::from(
            UCP_MEM_MAP_PARAM_FIELD_ADDRESS
                | UCP_MEM_MAP_PARAM_FIELD_LENGTH
                | UCP_MEM_MAP_PARAM_FIELD_PROT,
        );
        (params.address, params.length) = (piece.ptr.cast(), piece.len);
        params.prot = protection(access);
        let mut memory = ptr::null_mut();
        // SAFETY: a live context; the memory is there (contract of this function), the parameters
        // live through the call, and the result has room.
        let status = unsafe { self.ucp.ucp_mem_map(self.context, &params, &mut memory) };
        if status != UCS_OK {
            return Err(true);
        }
        let (mut packed, mut len) = (ptr::null_mut(), 0);
        // SAFETY: mapped above; both results have room.
        let status = unsafe { self.ucp.ucp_rkey_pack(self.context, memory, &mut packed, &mut len) };
        if status != UCS_OK {
            return Err(self.unmap(memory));
        }
        // SAFETY: UCX has packed so many bytes there, which are ours until they are released.
        let bytes = unsafe { std::slice::from_raw_parts(packed.cast::<u8>(), len) }.to_vec();
        // SAFETY: of the call above; used no more.
        unsafe { self.ucp.ucp_rkey_buffer_release(packed) };
        if bytes.is_empty() || bytes.len() > PACKED_BYTES_MAX {
            return Err(self.unmap(memory));
        }
        Ok((memory, Place { address: piece.ptr as u64, len: piece.len as u64, packed: bytes }))
    }

    /// Ends what [`map`](Self::map) has begun; whether it has ended.
    pub(crate) fn unmap(&self, memory: ucp_mem_h) -> bool {
        // SAFETY: of `map`, which is called for each once: by who has the driver, which forgets it.
        unsafe { self.ucp.ucp_mem_unmap(self.context, memory) == UCS_OK }
    }

    /// Takes a key that the peer at the other end of `endpoint` gives.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed.
    pub(crate) unsafe fn unpack(
        &self,
        endpoint: ucp_ep_h,
        given: &GivenKey,
    ) -> Result<RemoteKey, ucs_status_t> {
        let mut key = RemoteKey { ucp: Some(self.ucp), access: given.access, places: Vec::new() };
        let mut room = vec![0; UNPACKED_BYTES_MAX];
        let mut at = 0;
        for Place { address, len, packed } in &given.places {
            room[..packed.len()].copy_from_slice(packed);
            room[packed.len()..].fill(0);
            let mut rkey = ptr::null_mut();
            // SAFETY: contract of this function; behind what the peer gives are as many zeros as
            // UCX may look at, and the result has room.
            let status =
                unsafe { self.ucp.ucp_ep_rkey_unpack(endpoint, room.as_ptr().cast(), &mut rkey) };
            if status != UCS_OK {
                return Err(status);
            }
            key.places.push(RemotePlace { at, address: *address, len: *len, rkey });
            at += len;
        }
        Ok(key)
    }

    /// Moves bytes between memory here and a peer's. A put is over when the local memory is free;
    /// [`flush`](Self::flush) tells that it has arrived.
    ///
    /// # Safety
    ///
    /// `endpoint` is the one for which the key of `reach` was unpacked, and was not closed. The
    /// local memory, of `reach`'s length, the key and `pinned` live until the callback; nobody
    /// makes references to that memory meanwhile.
    pub(crate) unsafe fn access(
        &self,
        endpoint: ucp_ep_h,
        put: bool,
        local: *mut u8,
        reach: Reach,
        pinned: *const Pinned,
    ) -> Posted {
        let params = request_params(pinned);
        let Reach { address, rkey, len } = reach;
        let (local, len) = (local.cast::<c_void>(), len as usize);
        posted(match put {
            // SAFETY: contract of this function.
            true => unsafe { self.ucp.ucp_put_nbx(endpoint, local, len, address, rkey, &params) },
            // SAFETY: contract of this function.
            false => unsafe { self.ucp.ucp_get_nbx(endpoint, local, len, address, rkey, &params) },
        })
    }

    /// UCX's description of an endpoint, see `lanes.rs`.
    pub(crate) fn lanes(&self, endpoint: ucp_ep_h) -> String {
        // SAFETY: an open endpoint of this worker, and an open stream.
        printed(|stream| unsafe { self.ucp.ucp_ep_print_info(endpoint, stream) })
    }

    /// Waits until everything that was sent has left.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed; `pinned` lives until the callback.
    pub(crate) unsafe fn flush(&self, endpoint: ucp_ep_h, pinned: *const Pinned) -> Posted {
        let params = request_params(pinned);
        // SAFETY: contract of this function.
        posted(unsafe { self.ucp.ucp_ep_flush_nbx(endpoint, &params) })
    }

    /// Waits until everything that was sent has left, and connections that were closed have ended.
    ///
    /// # Safety
    ///
    /// `pinned` lives until the callback, or until the worker is gone.
    pub(crate) unsafe fn flush_all(&self, pinned: *const Pinned) -> Posted {
        let params = request_params(pinned);
        // SAFETY: a live worker; for the rest contract of this function.
        posted(unsafe { self.ucp.ucp_worker_flush_nbx(self.worker, &params) })
    }
}

fn protection(access: Access) -> u32 {
    let (reads, writes) = (
        UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ,
        // Whoever lets others write must be able to, says verbs.
        UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE,
    );
    match access {
        Access::ReadOnly => reads,
        Access::WriteOnly => UCP_MEM_MAP_PROT_LOCAL_READ | writes,
        Access::ReadWrite => reads | writes,
    }
}

#[inline]
pub(crate) fn request_params(pinned: *const Pinned) -> ucp_request_param_t {
    ucp_request_param_t {
        op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        flags: 0,
        request: ptr::null_mut(),
        cb: ucp_request_param_t__bindgen_ty_1 { send: Some(callbacks::on_sent) },
        datatype: 0,
        user_data: pinned.cast_mut().cast(),
        reply_buffer: ptr::null_mut(),
        memory_type: UCS_MEMORY_TYPE_HOST,
        recv_info: ucp_request_param_t__bindgen_ty_2 { length: ptr::null_mut() },
        memh: ptr::null_mut(),
    }
}

/// Reads the result of a call that may go on (`UCS_PTR_STATUS`, `UCS_PTR_IS_ERR` of
/// ucs/type/status.h).
#[inline]
pub(crate) fn posted(result: ucs_status_ptr_t) -> Posted {
    const LOWEST: isize = UCS_ERR_LAST as isize;
    match result as isize {
        0 => Posted::Done,
        status @ LOWEST..0 => Posted::Failed(status as ucs_status_t),
        _ => Posted::Pending(result),
    }
}

impl Worker {
    /// Stops listening, and leaves the rest as it is: nobody moves it any more.
    pub(crate) fn abandon(self) {
        let this = std::mem::ManuallyDrop::new(self);
        this.end_listeners();
        this.unmap_all();
    }

    /// Makes memory unreachable that was left for the end.
    fn unmap_all(&self) {
        for memory in &self.mapped {
            if !self.unmap(*memory) {
                tracing::warn!("ucx: memory that peers could reach stays registered");
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.process.is_other() {
            // The copy of a child process: sockets, threads and segments are its parent's.
            return;
        }
        self.end_listeners();
        if !self.worker.is_null() {
            // SAFETY: made by `open`, used no more; its endpoints, closed or not, go with it.
            unsafe { self.ucp.ucp_worker_destroy(self.worker) };
        }
        self.unmap_all();
        if self.packed != 0 {
            // SAFETY: made by `open`; what was sent with it has ended with the worker.
            unsafe { self.ucp.ucp_dt_destroy(self.packed) };
        }
        if !self.context.is_null() {
            // SAFETY: made by `open`, and its only worker is gone.
            unsafe { self.ucp.ucp_cleanup(self.context) };
        }
    }
}
