//! The objects of UCP that an endpoint has, and its calls, with their results as Rust's.
//!
//! A worker is used by one thread at a time (`UCS_THREAD_MODE_SERIALIZED`): the thread that holds
//! the endpoint's lock. Callbacks are in `inbox.rs`; UCP makes them within the calls below.

use std::ffi::{CStr, CString, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr;

use ucx_sys::*;

use super::inbox;
use super::inbox::Inbox;
use super::ip_family::IpFamily;
use super::offer::Offer;
use super::packing;
use super::slots::Pinned;
use super::sockaddr::RawAddress;
use crate::{Error, Uri};
use prim::fork::Process;

/// Active message of an unexpected message, as in Mercury (`NA_UCX_AM_MSG_ID`, na_ucx.c), and of a
/// hello, which may meet Mercury: UCX 1.13 jumps through the entry of a number that its process has
/// not registered, and Mercury registers this one alone.
pub(super) const AM_UNEXPECTED: u32 = 0;
/// Header of a hello: a tag that no message has. Mercury must find a header of that length, or it
/// hands UCX an error, at which a UCX with assertions aborts; then it finds no request in it.
pub(super) static HELLO_TAG: [u8; 8] = [0xFF; 8];
/// Active message of what the two endpoints tell each other after the hello.
pub(super) const AM_CONTROL: u32 = 1;
/// Active message of a chunk of a transfer.
pub(super) const AM_DATA: u32 = 2;
/// Active message of a piece of a transfer, by rendezvous.
pub(super) const AM_PIECE: u32 = 4;
/// Active message of an expected message.
pub(super) const AM_EXPECTED: u32 = 3;

/// Settings of UCX for an endpoint.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// `UCX_TLS`.
    pub(super) tls: String,
    /// `UCX_NET_DEVICES`, if one was named.
    pub(super) device: Option<String>,
    /// True if the transports can tell that a peer fails (`UCP_ERR_HANDLING_MODE_PEER`). Those over
    /// shared memory cannot; there the connection over which they met tells it.
    pub(super) detects_failure: bool,
    /// True if somebody will sleep: see [`fd`](Worker::fd).
    pub(super) wakes: bool,
    /// Class of the packets of InfiniBand and RoCE, as their headers have it.
    pub(super) class: Option<u8>,
    /// True if peers may get remote keys of memory here, see `keys.rs`.
    pub(super) remote_keys: bool,
    /// The family of IP addresses between which the data goes, where it may go by TCP.
    pub(super) family: Option<IpFamily>,
}

/// The outcome of a call that may go on.
pub(super) enum Posted {
    /// It is over, well; no callback follows.
    Done,
    /// The callback follows; the handle names it until then.
    Pending(*mut c_void),
    /// It is over, or was not begun; no callback follows.
    Failed(ucs_status_t),
}

/// A worker with its context and its listener.
pub(super) struct Worker {
    pub(super) ucp: &'static Ucp,
    pub(super) context: ucp_context_h,
    worker: ucp_worker_h,
    listener: ucp_listener_h,
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

/// Returns UCX's text for a status.
pub(super) fn text(ucp: &Ucp, status: ucs_status_t) -> String {
    // SAFETY: may be asked for any number.
    let text = unsafe { ucp.ucs_status_string(status) };
    // SAFETY: a constant string, or one in a buffer of the calling thread, which is read before the
    // next call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Which UCX it is.
pub(super) fn version(ucp: &Ucp) -> String {
    // SAFETY: takes nothing, and may be asked at any time.
    let version = unsafe { ucp.ucp_get_version_string() };
    // SAFETY: a constant string of the library's, which stays.
    let version = unsafe { CStr::from_ptr(version) };
    version.to_string_lossy().into_owned()
}

fn check(ucp: &Ucp, status: ucs_status_t, what: &str) -> Result<(), Error> {
    match status {
        UCS_OK => Ok(()),
        status => Err(Error::Unavailable {
            transport: "ucx",
            reason: format!("{what}: {}", text(ucp, status)),
        }),
    }
}

impl Worker {
    /// Makes a worker that reports to `inbox`.
    ///
    /// # Safety
    ///
    /// `inbox` must be valid until the worker is dropped, and nobody may use it while a call of the
    /// worker is under way.
    pub(super) unsafe fn open(
        ucp: &'static Ucp,
        settings: &Settings,
        inbox: *const Inbox,
    ) -> Result<Self, Error> {
        // SAFETY: contract of this function.
        let this = unsafe { Self::deaf(ucp, settings, inbox)? };
        this.handle(AM_UNEXPECTED, inbox::on_unexpected)?;
        this.handle(AM_CONTROL, inbox::on_control)?;
        this.handle(AM_DATA, inbox::on_data)?;
        this.handle(AM_EXPECTED, inbox::on_expected)?;
        this.handle(AM_PIECE, inbox::on_piece)?;
        // SAFETY: contract of this function.
        unsafe { &*inbox }.keep_at(this.worker);
        Ok(this)
    }

    /// Makes a worker that has registered no active messages yet.
    ///
    /// # Safety
    ///
    /// As for [`open`](Self::open).
    pub(super) unsafe fn deaf(
        ucp: &'static Ucp,
        settings: &Settings,
        inbox: *const Inbox,
    ) -> Result<Self, Error> {
        let mut this = Self {
            ucp,
            context: ptr::null_mut(),
            worker: ptr::null_mut(),
            listener: ptr::null_mut(),
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

    pub(super) fn handle(&self, id: u32, callback: inbox::AmCallback) -> Result<(), Error> {
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

    /// Listens at `address`, of `uri`; answers which it is, for a free port.
    pub(super) fn listen(
        &mut self,
        address: SocketAddr,
        uri: &Uri<'_>,
    ) -> Result<SocketAddr, Error> {
        let raw = RawAddress::new(address);
        // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
        let mut params: ucp_listener_params_t = unsafe { std::mem::zeroed() };
        params.field_mask =
            u64::from(UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER);
        params.sockaddr = raw.as_ucs();
        params.conn_handler = ucp_listener_conn_handler_t {
            cb: Some(inbox::on_connection),
            arg: self.inbox.cast_mut().cast(),
        };
        // SAFETY: a live worker; the address lives through the call, the inbox longer than the
        // worker (contract of `open`).
        let status =
            unsafe { self.ucp.ucp_listener_create(self.worker, &params, &mut self.listener) };
        if status == UCS_ERR_BUSY {
            let what = format!(
                "cannot open `{}` (its port is in use: take another one, or none for a free one): \
                 UCX cannot listen at {address}",
                uri.text
            );
            return Err(Error::io(what, std::io::Error::from(std::io::ErrorKind::AddrInUse)));
        }
        check(self.ucp, status, &format!("cannot listen at {address} for `{}`", uri.text))?;
        // SAFETY: plain data, for which all zero is valid.
        let mut attr: ucp_listener_attr_t = unsafe { std::mem::zeroed() };
        attr.field_mask = u64::from(UCP_LISTENER_ATTR_FIELD_SOCKADDR);
        // SAFETY: a live listener; the result has room.
        let status = unsafe { self.ucp.ucp_listener_query(self.listener, &mut attr) };
        check(self.ucp, status, "cannot ask for the listener's address")?;
        RawAddress::read(&attr.sockaddr).ok_or_else(|| Error::Unavailable {
            transport: "ucx",
            reason: "the listener has no IP address".into(),
        })
    }

    /// Returns whether UCX ends what is under way with a peer that is closed by force.
    pub(super) fn detects_failure(&self) -> bool {
        self.detects_failure
    }

    /// Returns whether peers may get remote keys of memory here.
    pub(super) fn gives_keys(&self) -> bool {
        self.gives_keys
    }

    /// Keeps memory reachable until all connections are gone.
    pub(super) fn unmap_at_the_end(&mut self, memory: impl Iterator<Item = ucp_mem_h>) {
        self.mapped.extend(memory);
    }

    /// Returns whether UCX fetches chunks when it has room for them, see `packing.rs`: over shared
    /// memory. Over others it sends them from where they are.
    pub(super) fn packs(&self) -> bool {
        !self.detects_failure
    }

    /// Returns the fingerprint of its queues of shared memory, see `packing.rs`; 0: it has none.
    pub(super) fn queues(&self) -> u16 {
        if self.packs() { self.queues } else { 0 }
    }

    /// Becomes readable when there is work, after [`arm`](Self::arm). Only for workers that
    /// [wake](Settings::wakes).
    pub(super) fn fd(&self) -> Result<RawFd, Error> {
        let mut fd = -1;
        // SAFETY: a live worker with the wake-up feature; the result has room.
        let status = unsafe { self.ucp.ucp_worker_get_efd(self.worker, &mut fd) };
        check(self.ucp, status, "cannot get the wait descriptor")?;
        Ok(fd)
    }

    /// Moves things forward; whether anything moved.
    #[inline]
    pub(super) fn progress(&self) -> bool {
        // SAFETY: a live worker, used by this thread alone, and not from one of its callbacks.
        unsafe { self.ucp.ucp_worker_progress(self.worker) != 0 }
    }

    /// Asks for the descriptor to become readable; `false` when there is work already. Only after
    /// [`fd`](Self::fd).
    pub(super) fn arm(&self) -> bool {
        // SAFETY: as for `progress`; the worker has the wake-up feature.
        unsafe { self.ucp.ucp_worker_arm(self.worker) == UCS_OK }
    }

    /// Begins to connect with the listener at `to`.
    pub(super) fn connect(&self, to: SocketAddr) -> Result<ucp_ep_h, ucs_status_t> {
        let raw = RawAddress::new(to);
        let mut params = self.endpoint_params();
        params.field_mask |= u64::from(UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR);
        params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
        params.sockaddr = raw.as_ucs();
        self.create_endpoint(&params)
    }

    /// Takes a connection that somebody has asked for.
    pub(super) fn accept(&self, request: ucp_conn_request_h) -> Result<ucp_ep_h, ucs_status_t> {
        let mut params = self.endpoint_params();
        params.field_mask |= u64::from(UCP_EP_PARAM_FIELD_CONN_REQUEST);
        params.conn_request = request;
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
        params.err_handler =
            ucp_err_handler_t { cb: Some(inbox::on_failure), arg: self.inbox.cast_mut().cast() };
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
    pub(super) fn reject(&self, request: ucp_conn_request_h) {
        // SAFETY: a live listener, whose request this is, and which is neither accepted nor
        // rejected yet. A failure leaves nothing to do.
        let _ = unsafe { self.ucp.ucp_listener_reject(self.listener, request) };
    }

    /// Returns the address that a connection comes from.
    pub(super) fn client(&self, request: ucp_conn_request_h) -> Option<SocketAddr> {
        // SAFETY: plain data, for which all zero is valid.
        let mut attr: ucp_conn_request_attr_t = unsafe { std::mem::zeroed() };
        attr.field_mask = u64::from(UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR);
        // SAFETY: a live request, neither accepted nor rejected yet; the result has room.
        let status = unsafe { self.ucp.ucp_conn_request_query(request, &mut attr) };
        (status == UCS_OK).then(|| RawAddress::read(&attr.client_address)).flatten()
    }

    /// Ends a connection; `force`: at once, without the peer.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed; `pinned` lives until the callback.
    pub(super) unsafe fn close(
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
    pub(super) unsafe fn send_am(
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
    pub(super) unsafe fn send_packed(&self, endpoint: ucp_ep_h, pinned: *const Pinned) -> Posted {
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
    pub(super) unsafe fn send_am_now(
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
    pub(super) unsafe fn receive(
        &self,
        offer: Offer,
        places: &[ucp_dt_iov_t],
        pinned: *const Pinned,
    ) -> Posted {
        let mut params = request_params(pinned);
        params.cb.recv_am = Some(inbox::on_received);
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

    /// UCX's description of an endpoint, its lanes among it.
    pub(super) fn lanes(&self, endpoint: ucp_ep_h) -> String {
        // SAFETY: an open endpoint of this worker, and an open stream.
        printed(|stream| unsafe { self.ucp.ucp_ep_print_info(endpoint, stream) })
    }

    /// Waits until everything that was sent has left.
    ///
    /// # Safety
    ///
    /// `endpoint` is one of this worker's that was not closed; `pinned` lives until the callback.
    pub(super) unsafe fn flush(&self, endpoint: ucp_ep_h, pinned: *const Pinned) -> Posted {
        let params = request_params(pinned);
        // SAFETY: contract of this function.
        posted(unsafe { self.ucp.ucp_ep_flush_nbx(endpoint, &params) })
    }

    /// Waits until everything that was sent has left, and connections that were closed have ended.
    ///
    /// # Safety
    ///
    /// `pinned` lives until the callback, or until the worker is gone.
    pub(super) unsafe fn flush_all(&self, pinned: *const Pinned) -> Posted {
        let params = request_params(pinned);
        // SAFETY: a live worker; for the rest contract of this function.
        posted(unsafe { self.ucp.ucp_worker_flush_nbx(self.worker, &params) })
    }
}

/// Returns the text that `print` writes into the stream that it gets, which is open until `print`
/// returns; empty if there is no memory for it.
pub(super) fn printed(print: impl FnOnce(*mut libc::FILE)) -> String {
    let (mut text, mut len) = (ptr::null_mut(), 0);
    // SAFETY: both stay where they are until the stream is closed, below.
    let stream = unsafe { libc::open_memstream(&mut text, &mut len) };
    if stream.is_null() {
        return String::new();
    }
    print(stream);
    // SAFETY: opened above, closed once; then the text is complete.
    let closed = unsafe { libc::fclose(stream) };
    if closed != 0 || text.is_null() {
        return String::new();
    }
    // SAFETY: the stream has left a string that ends with a zero, and is ours.
    let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: allocated by the stream, for us to free; used no more.
    unsafe { libc::free(text.cast()) };
    copy
}

/// UCX's description of what it finds here with these settings (`ucp_context_print_info`).
pub(super) fn described(ucp: &Ucp, settings: &Settings) -> Result<String, Error> {
    let context = create_context(ucp, settings)?;
    // SAFETY: a context that was made, and an open stream.
    let text = printed(|stream| unsafe { ucp.ucp_context_print_info(context, stream) });
    // SAFETY: made above, and nothing was made of it.
    unsafe { ucp.ucp_cleanup(context) };
    Ok(text)
}

/// The library.
pub(super) fn library() -> Result<&'static Ucp, Error> {
    let unavailable = |problem: String| Error::Unavailable {
        transport: "ucx",
        reason: format!(
            "{problem}; install UCX 1.13 or later (Debian: libucx0), or name its libucp in \
             MARGO_LIBUCP"
        ),
    };
    let ucp = ucx_sys::library().map_err(|error| unavailable(error.to_string()))?;
    let version = version(ucp);
    match is_too_old(&version) {
        true => Err(unavailable(format!("UCX {version} is older than 1.13"))),
        false => Ok(ucp),
    }
}

/// Returns whether a version is known to be older than the declarations. The functions are all
/// there since 1.10, and UCX would only warn.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < (UCP_API_MAJOR, UCP_API_MINOR),
        _ => false,
    }
}

/// Returns whether UCX's description of an endpoint (`ucp_ep_print_info`; later versions have a
/// query for it) names a transport other than TCP among those that move memory (`rma_bw`).
pub(super) fn names_rdma(description: &str) -> bool {
    let lanes =
        description.lines().filter(|line| line.contains("lane[") && line.contains("rma_bw"));
    let transport = |lane: &str| {
        let (_, resource) = lane.split_once("]:")?;
        let (_, name) = resource.split_once(':')?;
        Some(name.split_once('/')?.0.to_owned())
    };
    lanes.filter_map(transport).any(|name| !matches!(name.as_str(), "tcp" | "self"))
}

/// Traffic class of all transports over InfiniBand and RoCE, without the prefix `UCX_`. Source:
/// `uct_ib_iface_config_table` in `ib_iface.c`.
const CLASS: &CStr = c"IB_TRAFFIC_CLASS";

/// Returns whether the environment says it, for these or for one of them
/// (`UCX_RC_VERBS_TRAFFIC_CLASS` …): it knows better.
fn class_is_in_environment() -> bool {
    std::env::vars_os().any(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("UCX_") && name.ends_with("_TRAFFIC_CLASS")
    })
}

/// Sets of which family of IP interfaces have their address, whatever the environment says: see
/// `ip_family.rs`.
fn set_family(ucp: &Ucp, config: *mut ucp_config_t, family: IpFamily) -> Result<(), Error> {
    let priorities = CString::new(family.priorities()).unwrap_or_default();
    // Settings of UCT are named without the transport before 1.17, and with it since.
    let statuses = [c"AF_PRIO", c"TCP_AF_PRIO"].map(|name| {
        // SAFETY: a configuration that was read; both strings live through the call.
        unsafe { ucp.ucp_config_modify(config, name.as_ptr(), priorities.as_ptr()) }
    });
    let status = statuses.into_iter().find(|status| *status != UCS_OK);
    match statuses.contains(&UCS_OK) {
        true => Ok(()),
        false => check(ucp, status.unwrap_or(UCS_OK), "UCX_TCP_AF_PRIO cannot be set"),
    }
}

fn create_context(ucp: &Ucp, settings: &Settings) -> Result<ucp_context_h, Error> {
    let mut config = ptr::null_mut();
    // SAFETY: neither prefix nor file are asked for; the result has room.
    let status = unsafe { ucp.ucp_config_read(ptr::null(), ptr::null(), &mut config) };
    check(ucp, status, "cannot read the configuration (the variables UCX_… of the environment)")?;
    let mut changes = vec![("TLS", settings.tls.as_str())];
    changes.extend(settings.device.as_deref().map(|device| ("NET_DEVICES", device)));
    // As na_ucx.c (`na_ucp_config_init`), unless the environment says otherwise: no handlers of
    // fatal signals, a port can be listened at again at once, and what fails is told by us.
    let defaults = [("HANDLE_ERRORS", "none"), ("LOG_LEVEL", "fatal"), ("CM_REUSEADDR", "y")];
    let packing = packing::settings();
    let packing = packing.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in defaults.into_iter().chain(packing) {
        if std::env::var_os(format!("UCX_{name}")).is_none() {
            changes.push((name, value));
        }
    }
    let mut result = Ok(());
    for (name, value) in changes {
        let what = format!("UCX_{name} cannot be `{value}`");
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
        // SAFETY: a configuration that was read; both strings live through the call.
        let status = unsafe { ucp.ucp_config_modify(config, name.as_ptr(), value.as_ptr()) };
        result = result.and(check(ucp, status, &what));
    }
    if let Some(family) = settings.family {
        result = result.and(set_family(ucp, config, family));
    }
    if let Some(class) = settings.class.filter(|_| !class_is_in_environment())
        && let Ok(value) = CString::new(class.to_string())
    {
        // A setting of UCT's transports, which UCP keeps for those that have it. Later versions
        // than 1.20 do not know it where UCX has no InfiniBand; then nothing here has classes.
        // SAFETY: a configuration that was read; both strings live through the call.
        let status = unsafe { ucp.ucp_config_modify(config, CLASS.as_ptr(), value.as_ptr()) };
        tracing::debug!(class, status = text(ucp, status), "UCX_{}", CLASS.to_string_lossy());
    }
    // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
    let mut params: ucp_params_t = unsafe { std::mem::zeroed() };
    params.field_mask = u64::from(UCP_PARAM_FIELD_FEATURES);
    // With the feature every message over shared memory asks whether the peer sleeps.
    let wakes = if settings.wakes { UCP_FEATURE_WAKEUP } else { 0 };
    let reaches = if settings.remote_keys { UCP_FEATURE_RMA } else { 0 };
    params.features = u64::from(UCP_FEATURE_AM | wakes | reaches);
    let mut context = ptr::null_mut();
    let result = result.and_then(|()| {
        // SAFETY: the version is that of the declarations; the parameters live through the call.
        let status = unsafe {
            ucp.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &mut context)
        };
        let device = settings.device.as_deref().unwrap_or("all");
        let what = format!(
            "there is no transport for UCX_TLS={} and UCX_NET_DEVICES={device} here (`ucx_info -d` \
             lists what there is)",
            settings.tls
        );
        check(ucp, status, &what)
    });
    // SAFETY: it was read above and is used no more.
    unsafe { ucp.ucp_config_release(config) };
    result.map(|()| context)
}

#[inline]
pub(super) fn request_params(pinned: *const Pinned) -> ucp_request_param_t {
    ucp_request_param_t {
        op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        flags: 0,
        request: ptr::null_mut(),
        cb: ucp_request_param_t__bindgen_ty_1 { send: Some(inbox::on_sent) },
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
pub(super) fn posted(result: ucs_status_ptr_t) -> Posted {
    const LOWEST: isize = UCS_ERR_LAST as isize;
    match result as isize {
        0 => Posted::Done,
        status @ LOWEST..0 => Posted::Failed(status as ucs_status_t),
        _ => Posted::Pending(result),
    }
}

impl Worker {
    /// Stops listening, and leaves the rest as it is: nobody moves it any more.
    pub(super) fn abandon(self) {
        let this = std::mem::ManuallyDrop::new(self);
        if !this.listener.is_null() {
            // SAFETY: made by `listen`, used no more.
            unsafe { this.ucp.ucp_listener_destroy(this.listener) };
        }
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
        if !self.listener.is_null() {
            // SAFETY: made by `listen`, used no more.
            unsafe { self.ucp.ucp_listener_destroy(self.listener) };
        }
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

#[cfg(test)]
mod tests {
    use super::{is_too_old, names_rdma};

    #[test]
    fn older_versions_than_the_declarations_are_known() {
        for old in ["1.10.0", "1.11.2", "1.12.1", "0.99"] {
            assert!(is_too_old(old), "{old}");
        }
        // What says something else is taken at the word of its functions.
        for taken in ["1.13.0", "1.13.1", "1.22.0-rc1", "2.0.0", "1.13", "1.x", "", "main"] {
            assert!(!is_too_old(taken), "{taken}");
        }
    }

    /// As UCX 1.13 and 1.22 print them.
    #[test]
    fn transports_that_move_memory_are_told_from_tcp() {
        let tcp = "#  lane[0]: cm rdmacm\n\
            #  lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] rma_bw#0 am am_bw#0 wireup\n\
            #  lane[2]:  1:tcp/eth0.0 md[0] -> md[0]/tcp/sysdev[255] seg 4294967295 rma_bw#1\n\
            #  rma_bw: mds [0] rndv_rkey_size 10\n";
        assert!(!names_rdma(tcp));
        let rc = "#  lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] rma_bw#0 am\n";
        assert!(names_rdma(&[tcp, rc].concat()));
        let messages = "#  lane[1]:  6:ud_verbs/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[1] am wireup\n";
        assert!(!names_rdma(messages));
        assert!(!names_rdma(""));
    }
}
