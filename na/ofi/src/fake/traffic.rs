//! Messages and transfers, and their completions.
//!
//! Data moves in the call that sends it, or in the call that posts the receive for it. No memory of
//! a caller is touched after its completion was put in the queue.

use std::ffi::{c_int, c_void};

use libc::{iovec, ssize_t};
use ofi_sys::raw;

use super::device::{Fault, Faults, plain};
use super::objects::{Object, functions};
use super::{Call, Place, Queue, Registered, RemoteAccess, State};

/// Messages that an endpoint keeps for which there is no receive.
const HELD_MAX: usize = 512;

/// Entries of a completion queue that one operation may need.
const ROOM_MIN: usize = 2;

/// How often an endpoint is asked for completions until a connection that has ended is replaced.
const BROKEN_FOR: usize = 20;

/// `IBV_WC_WR_FLUSH_ERR`: how operations end over a connection that has.
const FLUSHED: Fault = (libc::ECANCELED, 5);

/// The value of fields that are not valid by the man pages.
const RUBBISH: usize = 0x5a5a_5a5a_5a5a_5a58;

functions! { OF_MESSAGES: fi_ops_msg {
    recv: Some(recv), recvv: None, recvmsg: Some(recvmsg), send: None, sendv: None,
    sendmsg: Some(sendmsg), inject: None, senddata: None, injectdata: Some(injectdata),
} }
functions! { OF_TAGGED: fi_ops_tagged {
    recv: Some(trecv), recvv: None, recvmsg: None, send: Some(tsend), sendv: None,
    sendmsg: Some(tsendmsg),
    inject: Some(tinject), senddata: None, injectdata: None,
} }
functions! { OF_TRANSFERS: fi_ops_rma {
    read: None, readv: None, readmsg: Some(readmsg), write: None, writev: None,
    writemsg: Some(writemsg), inject: None, writedata: None, injectdata: None,
} }

type Ep = Object<raw::fid_ep>;

/// A receive.
#[derive(Debug)]
pub(super) struct Posted {
    context: usize,
    place: Place,
    len: usize,
    /// Bytes that have messages in them, in a buffer for many messages.
    used: usize,
    multi: bool,
    /// The name of the sender; `None`: anybody.
    from: Option<Vec<u8>>,
    tag: Option<u64>,
}

/// A message without a receive.
#[derive(Debug, Clone)]
pub(super) struct Held {
    from: Vec<u8>,
    bytes: Vec<u8>,
    tag: Option<u64>,
    data: Option<u64>,
}

/// A completion.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) context: usize,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) place: Place,
    pub(super) data: u64,
    pub(super) tag: u64,
    /// libfabric's name of the sender.
    pub(super) source: u64,
    /// The error, with its data.
    pub(super) error: Option<(Fault, Vec<u8>)>,
}

impl Done {
    fn of(context: usize, flags: u64) -> Self {
        let rubbish = Place(std::ptr::without_provenance_mut(RUBBISH));
        Self {
            context,
            flags,
            len: 0,
            place: rubbish,
            data: RUBBISH as u64,
            tag: RUBBISH as u64,
            source: u64::MAX,
            error: None,
        }
    }

    fn failed(context: usize, flags: u64, fault: Fault) -> Self {
        Self { error: Some((fault, Vec::new())), ..Self::of(context, flags) }
    }

    fn is_request(&self) -> bool {
        self.flags & raw::FI_RECV != 0 && self.flags & raw::FI_TAGGED == 0
            || self.flags & raw::FI_MULTI_RECV != 0
    }
}

impl Queue {
    pub(super) fn ring(&self) {
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }
}

/// A message that is sent.
struct Outgoing {
    call: Call,
    pieces: Vec<(Place, usize)>,
    descs: Vec<usize>,
    to: u64,
    tag: Option<u64>,
    data: Option<u64>,
    /// Flags of the call; with `FI_INJECT`, the bytes are copied in it.
    flags: u64,
    /// Zero: injected, and not reported unless it fails.
    context: *mut c_void,
}

impl State {
    /// That queue was asked for completions.
    pub(super) fn mend(&mut self, cq: u64) {
        let Self { broken, endpoints, .. } = self;
        broken.retain(|(endpoint, _), left| {
            let is_asked = endpoints.get(endpoint).is_none_or(|own| own.cq == Some(cq));
            *left -= usize::from(is_asked);
            *left > 0
        });
    }

    /// Returns whether a completion more would overrun the queue: then nothing is taken that has
    /// one (`FI_RM_ENABLED`).
    fn is_full(&self, endpoint: u64) -> bool {
        let cq = self.endpoints.get(&endpoint).and_then(|endpoint| endpoint.cq);
        let queue = cq.and_then(|cq| self.queues.get(&cq));
        queue.is_some_and(|queue| queue.done.len() + ROOM_MIN > queue.entries)
    }

    /// Puts a completion where it belongs: at the end, or anywhere, but that those of requests stay
    /// in their order.
    fn complete(&mut self, endpoint: u64, done: Done) {
        self.contexts.remove(&done.context);
        let cq = self.endpoints.get(&endpoint).and_then(|endpoint| endpoint.cq);
        let shuffles = self.shuffles;
        let Some(queue) = cq.and_then(|cq| self.queues.get_mut(&cq)) else { return };
        let first = match done.is_request() {
            true => queue.done.iter().rposition(Done::is_request).map_or(0, |at| at + 1),
            false => 0,
        };
        let choices = queue.done.len() - first + 1;
        let at = if shuffles { first + self.random.below(choices) } else { queue.done.len() };
        queue.done.insert(at, done);
        let overrun = queue.done.len() > queue.entries;
        if !self.holds {
            queue.ring();
        }
        if overrun {
            self.complain("a completion queue is overrun");
        }
    }

    /// The context is the library's from now on, which uses as much of it as it said.
    fn take_context(&mut self, endpoint: u64, context: *mut c_void) {
        let Some(own) = self.endpoints.get(&endpoint) else { return };
        let words = match own.device.mode {
            mode if mode & raw::FI_CONTEXT2 != 0 => 8,
            mode if mode & raw::FI_CONTEXT != 0 => 4,
            _ => 0,
        };
        if context.is_null() || self.contexts.insert(context.addr(), endpoint).is_some() {
            return self.complain("a context that is null, or in use by another operation");
        }
        for word in 0..words {
            // SAFETY: the caller gives a context with so much room until the completion.
            unsafe { context.cast::<usize>().add(word).write(RUBBISH) };
        }
    }

    /// An operation that was taken has that descriptor until its end is read.
    fn name(&mut self, endpoint: u64, context: *mut c_void, desc: usize) {
        if desc != 0 && self.endpoints.contains_key(&endpoint) {
            self.named.insert(context.addr(), (endpoint, desc as u64));
        }
    }

    /// The caller hears of an end; of a buffer for many messages perhaps not the last one.
    pub(super) fn read(&mut self, done: &Done) {
        if !self.contexts.contains_key(&done.context) {
            self.named.remove(&done.context);
        }
    }

    /// Memory of the caller's, for which the device may want a registration.
    fn check_local(&mut self, endpoint: u64, piece: (Place, usize), desc: usize, access: u64) {
        let Some(own) = self.endpoints.get(&endpoint) else { return };
        let of_device = self.views.of(piece.0.0, piece.1).is_some();
        let wanted = own.mr_mode & raw::FI_MR_LOCAL != 0 || of_device;
        let domain = own.domain;
        if piece.1 == 0 || (!wanted && desc == 0) {
            return;
        }
        let (start, end) = (piece.0.0.addr(), piece.0.0.addr() + piece.1);
        let covers = self.memories.get(&(desc as u64)).is_some_and(|memory| {
            let base = memory.base.0.addr();
            memory.enabled
                && memory.domain == domain
                && base <= start
                && end <= base + memory.len
                && memory.access & access == access
                && memory.of_device == of_device
        });
        if !covers {
            self.complain(format!("descriptor {desc} is not one of the memory for {access:#x}"));
        }
    }

    /// The name of the peer that an endpoint calls so.
    fn peer(&mut self, endpoint: u64, fi_addr: u64) -> Option<Vec<u8>> {
        let av = self.endpoints.get(&endpoint).and_then(|own| own.av)?;
        let name = self.avs.get(&av)?.get(fi_addr as usize).cloned().flatten();
        if name.is_none() {
            self.complain(format!("{fi_addr:#x} is no address of a peer"));
        }
        name
    }

    /// Returns the address (`fi_addr_t`) by which an endpoint knows a peer.
    fn source(&self, endpoint: u64, name: &[u8]) -> Option<u64> {
        let own = self.endpoints.get(&endpoint)?;
        let same = |known: &Vec<u8>| match own.device.format {
            // Who it is, without the network.
            raw::FI_ADDR_CXI => known[..4] == name[..4],
            _ => known == name,
        };
        let known = self.avs.get(&own.av?)?;
        known.iter().position(|known| known.as_ref().is_some_and(same)).map(|at| at as u64)
    }

    pub(super) fn report(&mut self, endpoint: u64, fault: Fault) {
        self.complete(endpoint, Done::failed(0, 0, fault));
    }

    pub(super) fn deliver(&mut self, endpoint: u64, from: Vec<u8>, bytes: Vec<u8>) {
        assert!(self.arrive(endpoint, Held { from, bytes, tag: None, data: None }));
    }

    /// Puts a message into the first receive that it fits, or keeps it; `false`: there is no room.
    fn arrive(&mut self, endpoint: u64, message: Held) -> bool {
        let fits = |posted: &Posted| {
            posted.tag == message.tag
                && posted.from.as_ref().is_none_or(|from| *from == message.from)
        };
        if self.is_full(endpoint) {
            return false;
        }
        let Some(own) = self.endpoints.get_mut(&endpoint) else { return false };
        match own.posted.iter().position(fits) {
            Some(at) => self.fill(endpoint, at, message),
            None if own.held.len() >= HELD_MAX => return false,
            None => own.held.push(message),
        }
        true
    }

    fn fill(&mut self, endpoint: u64, at: usize, message: Held) {
        let source = self.source(endpoint, &message.from);
        let Some(own) = self.endpoints.get_mut(&endpoint) else { return };
        let (caps, device, min) = (own.caps, own.device.clone(), own.multi_min);
        let posted = &mut own.posted[at];
        let room = posted.len - posted.used;
        let len = message.bytes.len().min(room);
        let start = posted.place.0.wrapping_add(posted.used);
        // SAFETY: the caller gives so much room until the completion.
        unsafe { std::ptr::copy_nonoverlapping(message.bytes.as_ptr(), start, len) };
        let kind = if message.tag.is_some() { raw::FI_TAGGED } else { raw::FI_MSG };
        let mut done = Done::of(posted.context, raw::FI_RECV | kind);
        done.len = len;
        if let Some(tag) = message.tag {
            done.tag = tag;
        }
        if let Some(data) = message.data {
            done.data = data;
            done.flags |= raw::FI_REMOTE_CQ_DATA;
        }
        if posted.multi {
            posted.used += len;
            done.place = Place(start);
        }
        let is_over = !posted.multi || posted.len - posted.used < min;
        let is_apart = posted.multi && is_over && device.releases_apart;
        if posted.multi && is_over && !is_apart {
            done.flags |= raw::FI_MULTI_RECV;
        }
        let (context, is_multi) = (posted.context, posted.multi);
        if is_over {
            own.posted.remove(at);
        }
        if len < message.bytes.len() {
            done.error = Some((plain(raw::FI_ETRUNC as c_int), Vec::new()));
        } else if caps & raw::FI_SOURCE != 0 {
            done.source = source.unwrap_or(u64::MAX);
            if source.is_none() && caps & raw::FI_SOURCE_ERR != 0 {
                let mut name = message.from;
                if device.format == raw::FI_ADDR_CXI {
                    name[4..].fill(0);
                }
                done.error = Some((plain(libc::EADDRNOTAVAIL), name));
            }
        }
        self.complete(endpoint, done);
        if is_multi && !is_over {
            self.contexts.insert(context, endpoint);
        }
        if is_apart {
            let (flags, null) = (raw::FI_MULTI_RECV, Place(std::ptr::null_mut()));
            self.complete(endpoint, Done { place: null, ..Done::of(context, flags) });
        }
    }

    /// Posts a receive, and gives it what was kept for it.
    fn post(&mut self, endpoint: u64, posted: Posted) -> ssize_t {
        let Some(own) = self.endpoints.get_mut(&endpoint) else { return -libc::EINVAL as ssize_t };
        if !own.enabled {
            self.complain("a receive before the endpoint is enabled");
            return -(raw::FI_EOPBADSTATE as ssize_t);
        }
        if own.posted.len() >= own.device.receives {
            return -libc::EAGAIN as ssize_t;
        }
        let (context, multi) = (posted.context, posted.multi);
        if multi && own.caps & raw::FI_MULTI_RECV == 0 {
            self.complain("a buffer for many messages was not asked for");
            return -libc::EINVAL as ssize_t;
        }
        own.posted.push(posted);
        self.take_context(endpoint, std::ptr::with_exposed_provenance_mut(context));
        loop {
            let Some(own) = self.endpoints.get_mut(&endpoint) else { return 0 };
            let mine = own.posted.iter().position(|posted| posted.context == context);
            let Some(at) = mine else { return 0 };
            let posted = &own.posted[at];
            let fits = |held: &Held| {
                posted.tag == held.tag && posted.from.as_ref().is_none_or(|from| *from == held.from)
            };
            let Some(held) = own.held.iter().position(fits) else { return 0 };
            let message = own.held.remove(held);
            self.fill(endpoint, at, message);
        }
    }
}

fn transmit(ep: *mut raw::fid_ep, message: Outgoing) -> ssize_t {
    // SAFETY: a function of endpoints.
    let this = unsafe { Ep::of(ep) };
    let mut state = this.state();
    let Outgoing { call, pieces, descs, to, tag, data, flags, context } = message;
    if let Some(errno) = state.refused(call) {
        return -errno as ssize_t;
    }
    let (injected, inject) = (context.is_null(), flags & raw::FI_INJECT != 0);
    let len: usize = pieces.iter().map(|(_, len)| len).sum();
    let device = &this.device;
    let longest = if inject { device.inject_bytes } else { device.message_bytes };
    if len > longest || pieces.len() > device.iov_limit || (inject && longest == 0) {
        state.complain(format!("{len} bytes in {} pieces by {call:?}", pieces.len()));
        return -libc::EINVAL as ssize_t;
    }
    if flags & raw::FI_INJECT_COMPLETE & !device.tx_op_flags != 0 {
        state.complain(format!("{call:?} asks for an end that the device does not offer"));
    }
    let Some(peer) = state.peer(this.number, to) else { return -libc::EINVAL as ssize_t };
    if device.mode & raw::FI_CONTEXT2 != 0 && !injected {
        check_opx(&mut state, context, &peer);
    }
    for (piece, desc) in pieces.iter().zip(&descs) {
        state.check_local(this.number, *piece, *desc, raw::FI_SEND);
    }
    if state.is_not_now() || state.is_full(this.number) || !state.takes_room() {
        return -libc::EAGAIN as ssize_t;
    }
    let mut bytes = Vec::with_capacity(len);
    for (piece, len) in pieces {
        // SAFETY: the caller gives so many bytes, at least for the time of the call.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.0, len) });
    }
    let kind = if tag.is_some() { raw::FI_TAGGED } else { raw::FI_MSG };
    let flags = raw::FI_SEND | kind;
    let from = state.endpoints.get(&this.number).map(|own| own.name.clone()).unwrap_or_default();
    let is_broken = state.broken.contains_key(&(this.number, peer.clone()));
    if injected && is_broken {
        // As RxM does (`RXM_INJECT_TX` in `rxm_handle_comp_error`).
        return 0;
    }
    let fails = state.fails(call).or(is_broken.then_some(FLUSHED));
    let done = match (fails, state.named(&peer)) {
        (Some(fault), _) => Done::failed(context.expose_provenance(), flags, fault),
        (None, None) => {
            Done::failed(context.expose_provenance(), flags, this.device.faults.no_peer)
        }
        (None, Some(target)) => {
            let held = Held { from, bytes, tag, data };
            if !state.arrive(target, held) {
                return -libc::EAGAIN as ssize_t;
            }
            Done::of(context.expose_provenance(), flags)
        }
    };
    if !injected {
        state.take_context(this.number, context);
        state.name(this.number, context, descs.last().copied().unwrap_or_default());
    }
    if !injected || done.error.is_some() {
        state.complete(this.number, done);
    }
    0
}

/// `opx` looks at the context before it makes it its own: what its first word leads to must be the
/// peer's address, with eight bytes behind it that say which of several endpoints it is
/// (`fi_opx_reliability.c`; nothing at all is allowed there, and not what C does).
fn check_opx(state: &mut State, context: *mut c_void, peer: &[u8]) {
    // SAFETY: the caller gives a context; if its first word is what it has to be, so many bytes are
    // there.
    let is_peer = unsafe {
        let address = context.cast::<*const u8>().read();
        address.addr() != RUBBISH
            && !address.is_null()
            && std::slice::from_raw_parts(address, peer.len() + 8).starts_with(peer)
    };
    if !is_peer {
        state.complain("opx is told of a peer's address that is none");
    }
}

unsafe extern "C" fn sendmsg(ep: *mut raw::fid_ep, msg: *const raw::fi_msg, flags: u64) -> ssize_t {
    // SAFETY: the caller's message, with as many pieces and descriptors as it says.
    let (msg, pieces, descs) = unsafe {
        let msg = &*msg;
        (msg, pieces(msg.msg_iov, msg.iov_count), descs(msg.desc, msg.iov_count))
    };
    let data = (flags & raw::FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    let (to, tag, context) = (msg.addr, None, msg.context);
    transmit(ep, Outgoing { call: Call::Send, pieces, descs, to, tag, data, flags, context })
}

unsafe extern "C" fn tsendmsg(
    ep: *mut raw::fid_ep,
    msg: *const raw::fi_msg_tagged,
    flags: u64,
) -> ssize_t {
    // SAFETY: the caller's message, with as many pieces and descriptors as it says.
    let (msg, pieces, descs) = unsafe {
        let msg = &*msg;
        (msg, pieces(msg.msg_iov, msg.iov_count), descs(msg.desc, msg.iov_count))
    };
    let (call, data) = (Call::TaggedSend, None);
    let (to, tag, context) = (msg.addr, Some(msg.tag), msg.context);
    transmit(ep, Outgoing { call, pieces, descs, to, tag, data, flags, context })
}

unsafe extern "C" fn injectdata(
    ep: *mut raw::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
) -> ssize_t {
    let (pieces, descs) = (vec![(Place(buf.cast_mut().cast()), len)], Vec::new());
    let (tag, data, context) = (None, Some(data), std::ptr::null_mut());
    let (call, flags) = (Call::Inject, raw::FI_INJECT);
    transmit(ep, Outgoing { call, pieces, descs, to, tag, data, flags, context })
}

unsafe extern "C" fn tsend(
    ep: *mut raw::fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    let (pieces, descs) = (vec![(Place(buf.cast_mut().cast()), len)], vec![desc.addr()]);
    let (call, tag, data, flags) = (Call::TaggedSend, Some(tag), None, 0);
    transmit(ep, Outgoing { call, pieces, descs, to, tag, data, flags, context })
}

unsafe extern "C" fn tinject(
    ep: *mut raw::fid_ep,
    buf: *const c_void,
    len: usize,
    to: u64,
    tag: u64,
) -> ssize_t {
    let (pieces, descs) = (vec![(Place(buf.cast_mut().cast()), len)], Vec::new());
    let (tag, data, context) = (Some(tag), None, std::ptr::null_mut());
    let (call, flags) = (Call::TaggedInject, raw::FI_INJECT);
    transmit(ep, Outgoing { call, pieces, descs, to, tag, data, flags, context })
}

/// # Safety
///
/// So many are there.
unsafe fn pieces(iov: *const iovec, count: usize) -> Vec<(Place, usize)> {
    // SAFETY: the caller's.
    let pieces = unsafe { std::slice::from_raw_parts(iov, count) };
    pieces.iter().map(|piece| (Place(piece.iov_base.cast()), piece.iov_len)).collect()
}

/// # Safety
///
/// So many are there, or it is null.
unsafe fn descs(desc: *mut *mut c_void, count: usize) -> Vec<usize> {
    if desc.is_null() {
        return vec![0; count];
    }
    // SAFETY: the caller's.
    let descs = unsafe { std::slice::from_raw_parts(desc, count) };
    descs.iter().map(|desc| desc.addr()).collect()
}

fn receive(ep: *mut raw::fid_ep, call: Call, posted: Posted, desc: usize, from: u64) -> ssize_t {
    // SAFETY: a function of endpoints.
    let this = unsafe { Ep::of(ep) };
    let mut state = this.state();
    if let Some(errno) = state.refused(call) {
        return -errno as ssize_t;
    }
    state.check_local(this.number, (posted.place, posted.len), desc, raw::FI_RECV);
    let is_any = from == u64::MAX;
    let from = if is_any { None } else { state.peer(this.number, from) };
    if state.is_not_now() || state.is_full(this.number) {
        return -libc::EAGAIN as ssize_t;
    }
    let context = std::ptr::without_provenance_mut(posted.context);
    let taken = state.post(this.number, Posted { from, ..posted });
    if taken == 0 {
        state.name(this.number, context, desc);
    }
    taken
}

unsafe extern "C" fn recv(
    ep: *mut raw::fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> ssize_t {
    let (place, context) = (Place(buf.cast()), context.expose_provenance());
    let posted = Posted { context, place, len, used: 0, multi: false, from: None, tag: None };
    receive(ep, Call::Recv, posted, desc.addr(), from)
}

unsafe extern "C" fn recvmsg(ep: *mut raw::fid_ep, msg: *const raw::fi_msg, flags: u64) -> ssize_t {
    // SAFETY: the caller's message, with one piece.
    let (msg, (place, len), desc) = unsafe {
        let msg = &*msg;
        (msg, pieces(msg.msg_iov, 1)[0], descs(msg.desc, 1)[0])
    };
    let (context, multi) = (msg.context.expose_provenance(), flags & raw::FI_MULTI_RECV != 0);
    let posted = Posted { context, place, len, used: 0, multi, from: None, tag: None };
    receive(ep, Call::Recv, posted, desc, msg.addr)
}

unsafe extern "C" fn trecv(
    ep: *mut raw::fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    from: u64,
    tag: u64,
    _ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    let (place, context, tag) = (Place(buf.cast()), context.expose_provenance(), Some(tag));
    let posted = Posted { context, place, len, used: 0, multi: false, from: None, tag };
    receive(ep, Call::TaggedRecv, posted, desc.addr(), from)
}

pub(super) unsafe extern "C" fn cancel(ep: *mut raw::fid, context: *mut c_void) -> ssize_t {
    // SAFETY: a function of endpoints.
    let this = unsafe { Ep::of(ep) };
    let mut state = this.state();
    if let Some(errno) = state.refused(Call::Cancel) {
        return -errno as ssize_t;
    }
    let Some(own) = state.endpoints.get_mut(&this.number) else { return 0 };
    let found = own.posted.iter().position(|posted| posted.context == context.addr());
    let Some(at) = found else { return -libc::ENOENT as ssize_t };
    let posted = own.posted.remove(at);
    let kind = if posted.tag.is_some() { raw::FI_TAGGED } else { raw::FI_MSG };
    let done = Done::failed(posted.context, raw::FI_RECV | kind, plain(libc::ECANCELED));
    state.complete(this.number, done);
    0
}

unsafe extern "C" fn readmsg(ep: *mut raw::fid_ep, msg: *const raw::fi_msg_rma, _: u64) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { transfer(ep, &*msg, false) }
}

unsafe extern "C" fn writemsg(
    ep: *mut raw::fid_ep,
    msg: *const raw::fi_msg_rma,
    _flags: u64,
) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { transfer(ep, &*msg, true) }
}

/// # Safety
///
/// The message has as many parts as it says; its memory is there until the completion.
unsafe fn transfer(ep: *mut raw::fid_ep, msg: &raw::fi_msg_rma, put: bool) -> ssize_t {
    let call = if put { Call::Write } else { Call::Read };
    // SAFETY: a function of endpoints; the caller's message.
    let (this, local, desc, remote) = unsafe {
        let local = pieces(msg.msg_iov, msg.iov_count);
        (Ep::of(ep), local, descs(msg.desc, 1)[0], &*msg.rma_iov)
    };
    let mut state = this.state();
    if let Some(errno) = state.refused(call) {
        return -errno as ssize_t;
    }
    let Some(peer) = state.peer(this.number, msg.addr) else { return -libc::EINVAL as ssize_t };
    if msg.iov_count != 1 || msg.rma_iov_count != 1 || remote.len > this.device.message_bytes {
        state.complain(format!("a transfer of {} bytes in several pieces", remote.len));
    }
    let access = if put { raw::FI_WRITE } else { raw::FI_READ };
    state.check_local(this.number, local[0], desc, access);
    if state.is_not_now() || state.is_full(this.number) || !state.takes_room() {
        return -libc::EAGAIN as ssize_t;
    }
    let (addr, key, len) = (remote.addr, remote.key, remote.len);
    state.accesses.push(RemoteAccess { put, addr, key, len });
    state.take_context(this.number, msg.context);
    state.name(this.number, msg.context, desc);
    let faults = this.device.faults;
    let moves = |state: &State| state.moves(&peer, put, remote, local[0], faults);
    let is_broken = state.broken.contains_key(&(this.number, peer.clone()));
    let fails = state.fails(call).or(is_broken.then_some(FLUSHED));
    let moved = fails.map_or_else(|| moves(&state), Err);
    if moved.is_err() && this.device.breaks {
        state.broken.entry((this.number, peer)).or_insert(BROKEN_FOR);
    }
    let (context, flags) = (msg.context.expose_provenance(), raw::FI_RMA | access);
    let done = match moved {
        Ok(()) => Done::of(context, flags),
        Err(fault) => Done::failed(context, flags, fault),
    };
    state.complete(this.number, done);
    0
}

impl State {
    /// Moves the data, if the owner's memory allows it.
    fn moves(
        &self,
        peer: &[u8],
        put: bool,
        remote: &raw::fi_rma_iov,
        local: (Place, usize),
        faults: Faults,
    ) -> Result<(), Fault> {
        let target = self.named(peer).and_then(|number| self.endpoints.get(&number));
        let target = target.ok_or(faults.no_peer)?;
        let numbers = self.keys.get(&(target.domain, remote.key)).into_iter().flatten();
        let by_address = target.device.mr_mode & raw::FI_MR_VIRT_ADDR != 0;
        let holds = |own: &&Registered| {
            let (base, addr) = (own.base.0.addr() as u64, remote.addr);
            by_address && (base..base + own.len as u64).contains(&addr)
        };
        let enabled = numbers.filter_map(|number| self.memories.get(number));
        let mut enabled = enabled.filter(|own| own.enabled);
        let first = enabled.next().ok_or(faults.no_key)?;
        let memory = std::iter::once(first).chain(enabled).find(holds).unwrap_or(first);
        let access = if put { raw::FI_REMOTE_WRITE } else { raw::FI_REMOTE_READ };
        if memory.access & access == 0 {
            return Err(faults.no_access);
        }
        let base = if by_address { memory.base.0.addr() as u64 } else { 0 };
        let offset = remote.addr.checked_sub(base).ok_or(faults.out_of_range)?;
        if offset.checked_add(remote.len as u64).is_none_or(|end| end > memory.len as u64) {
            return Err(faults.out_of_range);
        }
        let theirs = memory.base.0.wrapping_add(offset as usize);
        let reach = |at| self.views.of(at, remote.len).unwrap_or(at);
        let (theirs, ours) = (reach(theirs), reach(local.0.0));
        let (from, to) = if put { (ours, theirs) } else { (theirs, ours) };
        // SAFETY: both are registered, or given for the time of the operation, with so many bytes,
        // or a view of what is; they may be of one region.
        unsafe { std::ptr::copy(from, to, remote.len) };
        Ok(())
    }
}
