//! Operations: begun by a call of the program, ended in its completion queue.
//!
//! An operation is a piece of memory that the program has asked for and frees. It is used again and
//! again, for one thing at a time:
//!
//! | state | who may touch `entry` and `begun` |
//! |---|---|
//! | idle | the call that makes it busy; the program's queue reads `entry` until it has been triggered |
//! | busy | the call that begins it, until the endpoint has it; then whoever gets its completion |
//! | idle or busy, and dropped | as before; the last one frees it |
//!
//! The number of the operation at the endpoint is its address. The endpoint reports each operation
//! that it has taken exactly once, so an address comes back as often as it was given away, and the
//! memory lives until then even if the program drops the operation before ([`drop_op`]).

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use na::{Arrival, Completion, Error, MsgBuf, OpId};
use prim::sync::atomic::{AtomicU8, Ordering};

use super::Class;
use super::address;
use super::context::Context;
use crate::c::abi::{
    Callback, CallbackInfo, CompletionData, EndInfo, MultiRecvInfo, NaContext, NaOp, OpKind,
    RecvInfo,
};
use crate::c::status::Status;

const BUSY: u8 = 1;
const DROPPED: u8 = 2;

/// An operation of the program.
pub(crate) struct Op {
    /// The entry of the program's queue.
    entry: UnsafeCell<CompletionData>,
    state: AtomicU8,
    begun: UnsafeCell<Begun>,
}

/// The facts with which an operation was begun.
struct Begun {
    /// Where its end goes; valid while `home` is not retired.
    context: *mut NaContext,
    /// Kept for the next time: programs use an operation again in the same context.
    home: Option<Arc<Context>>,
    /// The program's buffer of a receive.
    room: *mut u8,
    room_bytes: usize,
    /// For a receive of many: bytes that are filled, and messages that the endpoint still brings.
    filled: usize,
    left: usize,
    /// A buffer of the endpoint's for the next receive.
    spare: Option<MsgBuf>,
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Op({:p})", ptr::from_ref(self))
    }
}

/// A call that begins an operation: where its end goes.
pub(crate) struct Begin<'a> {
    pub(crate) op: *mut NaOp,
    pub(crate) kind: OpKind,
    pub(crate) callback: Callback,
    pub(crate) arg: *mut c_void,
    pub(crate) context: *mut NaContext,
    pub(crate) home: &'a Arc<Context>,
}

/// An operation that is being begun, and that nobody else has.
pub(crate) struct Started {
    op: *mut Op,
}

/// An operation, for whoever alone has it.
struct Parts<'a> {
    entry: &'a mut CompletionData,
    state: &'a AtomicU8,
    begun: &'a mut Begun,
}

/// # Safety
///
/// `op` is of [`new`] and lives while the result is used; nobody else uses its entry and what it
/// was begun with, as the table at the top says.
unsafe fn parts<'a>(op: *mut Op) -> Parts<'a> {
    // SAFETY: contract of this function: it lives.
    let op = unsafe { &*op };
    // SAFETY: contract of this function: nobody else uses it.
    let entry = unsafe { &mut *op.entry.get() };
    // SAFETY: as above.
    let begun = unsafe { &mut *op.begun.get() };
    Parts { entry, state: &op.state, begun }
}

/// Makes an idle operation.
pub(crate) fn new() -> *mut NaOp {
    let info = CallbackInfo {
        info: EndInfo { expected_bytes: 0 },
        arg: ptr::null_mut(),
        kind: OpKind::SendUnexpected as u32,
        ret: 0,
    };
    Box::into_raw(Box::new(Op {
        entry: UnsafeCell::new(entry(info, None)),
        state: AtomicU8::new(0),
        begun: UnsafeCell::new(Begun {
            context: ptr::null_mut(),
            home: None,
            room: ptr::null_mut(),
            room_bytes: 0,
            filled: 0,
            left: 0,
            spare: None,
        }),
    }))
    .cast()
}

fn entry(info: CallbackInfo, callback: Callback) -> CompletionData {
    CompletionData {
        info,
        callback,
        release: None,
        release_arg: ptr::null_mut(),
        next: ptr::null_mut(),
    }
}

/// Drops an operation for the program: at once, or when it has ended, unheard.
///
/// # Safety
///
/// `op` is of [`new`], and the program does not use it any more.
pub(crate) unsafe fn drop_op(class: &Class, op: *mut NaOp) {
    let op: *mut Op = op.cast();
    // SAFETY: contract of this function: it lives until now.
    let state = unsafe { &(*op).state };
    if state.load(Ordering::Relaxed) & BUSY != 0 {
        tracing::warn!("an operation was destroyed before it had ended: it is canceled");
        // Before it is dropped: then it may end and be freed, and its number be another one's.
        class.endpoint.cancel(number(op));
    }
    // pair: PLUGIN-OP
    if state.fetch_or(DROPPED, Ordering::AcqRel) & BUSY == 0 {
        // SAFETY: it is of `new`, and nobody has it: the endpoint has given it back.
        drop(unsafe { Box::from_raw(op) });
    }
}

/// The number by which the endpoint knows it.
pub(crate) fn number<T>(op: *mut T) -> OpId {
    OpId(op.expose_provenance() as u64)
}

/// Returns whether the endpoint has it.
///
/// # Safety
///
/// `op` is of [`new`] and was not dropped.
pub(crate) unsafe fn is_busy(op: *mut NaOp) -> bool {
    // SAFETY: contract of this function.
    let state = unsafe { &(*op.cast::<Op>()).state };
    state.load(Ordering::Relaxed) & BUSY != 0
}

impl Begin<'_> {
    /// Refuses an operation that the endpoint has.
    ///
    /// # Errors
    ///
    /// [`Status::Busy`].
    ///
    /// # Safety
    ///
    /// The operation is of [`new`] and was not dropped.
    pub(crate) unsafe fn check_idle(&self) -> Result<(), Status> {
        // SAFETY: contract of this function.
        let state = unsafe { &(*self.op.cast::<Op>()).state };
        // pair: PLUGIN-OP
        if state.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Status::Busy) }
    }

    /// Makes the operation busy.
    ///
    /// # Errors
    ///
    /// [`Status::Busy`] when it is.
    ///
    /// # Safety
    ///
    /// The operation is of [`new`] and was not dropped; the program's queue does not hold it, and
    /// no other thread of the program begins it.
    pub(crate) unsafe fn start(self) -> Result<Started, Status> {
        // SAFETY: contract of this function.
        unsafe { self.check_idle() }?;
        let op: *mut Op = self.op.cast();
        // SAFETY: it is idle, and we are the only ones to begin it.
        let own = unsafe { parts(op) };
        // The endpoint, which gets it next, tells other threads.
        own.state.store(BUSY, Ordering::Relaxed);
        *own.entry = self.entry();
        own.begun.context = self.context;
        if own.begun.home.as_ref().is_none_or(|home| !Arc::ptr_eq(home, self.home)) {
            own.begun.home = Some(self.home.clone());
        }
        Ok(Started { op })
    }

    /// Hands the operation to the program as one that has ended in the call that began it. The
    /// endpoint has never had it.
    ///
    /// # Safety
    ///
    /// As [`start`](Self::start); and it is idle.
    pub(crate) unsafe fn done(self, class: &Class) {
        // SAFETY: contract of this function: it is ours.
        let entry = unsafe { parts(self.op.cast()) }.entry;
        *entry = self.entry();
        push(class, self.context, entry);
        self.home.tell();
    }

    fn entry(&self) -> CompletionData {
        let (kind, arg) = (self.kind as u32, self.arg);
        let info = CallbackInfo { info: EndInfo { expected_bytes: 0 }, arg, kind, ret: 0 };
        entry(info, self.callback)
    }
}

impl Started {
    fn begun(&mut self) -> &mut Begun {
        // SAFETY: it is ours: there is one `Started` of an operation, and the endpoint has not got
        // it.
        unsafe { parts(self.op) }.begun
    }

    pub(crate) fn number(&self) -> OpId {
        number(self.op)
    }

    /// Sets the program's buffer.
    pub(crate) fn receive_into(&mut self, room: *mut u8, bytes: usize) {
        let begun = self.begun();
        (begun.room, begun.room_bytes, begun.filled) = (room, bytes, 0);
    }

    /// Sets how many messages the endpoint is to bring.
    pub(crate) fn receive_many(&mut self, messages: usize) {
        self.begun().left = messages;
    }

    /// A buffer of the endpoint's to receive in.
    pub(crate) fn take_buffer(&mut self, class: &Class) -> MsgBuf {
        self.begun().spare.take().unwrap_or_else(|| class.endpoint.alloc_msg())
    }

    /// The endpoint did not take it.
    pub(crate) fn refused(self, error: &Error) -> Status {
        // SAFETY: as in `begun`.
        let own = unsafe { parts(self.op) };
        // pair: PLUGIN-OP
        own.state.store(0, Ordering::Release);
        tracing::debug!(%error, "an operation was refused");
        Status::from(error)
    }

    /// The endpoint has taken it.
    pub(crate) fn taken(self) {}
}

/// Hands the end of an operation to the program. Returns whether it is one of the context of
/// `poller`.
///
/// # Safety
///
/// The completion is one that the class's endpoint has reported, of an operation of [`Started`].
pub(crate) unsafe fn ended(
    class: &Class,
    completion: Completion,
    poller: Option<&Context>,
) -> bool {
    let status = |result: &Result<(), Error>| match result {
        Ok(()) => Status::Success,
        Err(error) => failed(error),
    };
    let nothing = EndInfo { expected_bytes: 0 };
    match completion {
        Completion::Send { op, result, .. } | Completion::Transfer { op, result } => {
            // SAFETY: contract of this function: the number is that of a busy operation, which
            // nobody else has any more.
            unsafe { finish(class, pointer(op), status(&result), nothing, poller) }
        }
        Completion::Recv { op, buf, result } => {
            let op = pointer(op);
            // SAFETY: as above.
            let kind = unsafe { parts(op) }.entry.info.kind;
            if kind == OpKind::MultiRecv as u32 {
                // SAFETY: as above.
                unsafe { one_of_many(class, op, &buf, result, poller) }
            } else {
                // SAFETY: as above.
                unsafe { received(class, op, (buf, result), kind, poller) }
            }
        }
    }
}

fn pointer(op: OpId) -> *mut Op {
    ptr::with_exposed_provenance_mut(op.0 as usize)
}

#[cold]
fn failed(error: &Error) -> Status {
    if let Error::Protocol { .. } = error {
        tracing::warn!(%error, "an operation has failed");
    } else {
        tracing::debug!(%error, "an operation has failed");
    }
    Status::from(error)
}

/// # Safety
///
/// As [`ended`], for a receive of one message.
unsafe fn received(
    class: &Class,
    op: *mut Op,
    (buf, result): (MsgBuf, Result<Arrival, Error>),
    kind: u32,
    poller: Option<&Context>,
) -> bool {
    // SAFETY: contract of this function: nobody else has it.
    let begun = unsafe { parts(op) }.begun;
    let is_unexpected = kind == OpKind::RecvUnexpected as u32;
    let (mut status, mut info) = (Status::Success, RecvInfo::none());
    match result {
        Err(error) => status = failed(&error),
        Ok(_) if buf.len() > begun.room_bytes => status = Status::MsgSize,
        Ok(arrival) => {
            info.bytes = buf.len();
            // SAFETY: the program has given so many bytes for this operation, of which nobody else
            // knows before its end; there are enough (above).
            unsafe { ptr::copy_nonoverlapping(buf.as_slice().as_ptr(), begun.room, buf.len()) };
            if is_unexpected {
                info = RecvInfo::of(arrival, buf.len());
            }
        }
    }
    begun.spare = Some(buf);
    let info = match is_unexpected {
        true => EndInfo { recv: info },
        false => EndInfo { expected_bytes: info.bytes },
    };
    // SAFETY: contract of this function.
    unsafe { finish(class, op, status, info, poller) }
}

/// A message of a receive of many, or the early end of one.
///
/// # Safety
///
/// As [`ended`], for a receive of many messages.
unsafe fn one_of_many(
    class: &Class,
    op: *mut Op,
    buf: &MsgBuf,
    result: Result<Arrival, Error>,
    poller: Option<&Context>,
) -> bool {
    // SAFETY: contract of this function: nobody else has it.
    let Parts { entry: own, state, begun } = unsafe { parts(op) };
    let none = MultiRecvInfo { recv: RecvInfo::none(), message: ptr::null_mut(), last: true };
    let arrival = match result {
        Ok(arrival) => arrival,
        Err(error) => {
            let info = EndInfo { multi: none };
            // SAFETY: contract of this function: an error is the end of the operation.
            return unsafe { finish(class, op, failed(&error), info, poller) };
        }
    };
    let message = begun.room.wrapping_add(begun.filled);
    // SAFETY: the program has given `room_bytes` for this operation; as many messages of the
    // greatest length were asked for as fit behind those that are filled (`more`).
    unsafe { ptr::copy_nonoverlapping(buf.as_slice().as_ptr(), message, buf.len()) };
    begun.filled += buf.len().next_multiple_of(MESSAGE_ALIGN);
    begun.left -= 1;
    // Should more be asked for, they are reported by a later look, so all of this is still ours.
    let goes_on = begun.left > 0 || more(class, op, begun);
    let info = MultiRecvInfo {
        recv: RecvInfo::of(arrival, buf.len()),
        message: message.cast(),
        last: !goes_on,
    };
    if !goes_on {
        // SAFETY: contract of this function: it was its last message.
        return unsafe { finish(class, op, Status::Success, EndInfo { multi: info }, poller) };
    }
    let info = CallbackInfo { info: EndInfo { multi: info }, ..own.info };
    let data = Box::into_raw(Box::new(entry(info, own.callback)));
    // SAFETY: just made, and nobody else has it.
    let data_ref = unsafe { &mut *data };
    data_ref.release = Some(free_entry);
    data_ref.release_arg = data.cast();
    let is_dropped = state.load(Ordering::Relaxed) & DROPPED != 0;
    match begun.home.as_ref().filter(|home| !is_dropped && !home.is_retired()) {
        None => unheard(data),
        Some(home) => {
            push(class, begun.context, data);
            if is_same(poller, home) {
                return true;
            }
            home.tell();
        }
    }
    false
}

/// Messages begin at such multiples, as programs read numbers out of them.
const MESSAGE_ALIGN: usize = 8;

/// How many messages of the greatest length fit into a buffer.
pub(crate) fn messages_in(class: &Class, bytes: usize) -> usize {
    bytes / class.endpoint.limits().unexpected_bytes_max.next_multiple_of(MESSAGE_ALIGN).max(1)
}

/// Asks for more messages, as many as the rest of the buffer can hold.
fn more(class: &Class, op: *mut Op, begun: &mut Begun) -> bool {
    let fit = messages_in(class, begun.room_bytes - begun.filled);
    if fit == 0 {
        return false;
    }
    begun.left = fit;
    class.endpoint.multi_recv_unexpected(number(op), fit, &class.large).is_ok()
}

/// Frees an entry of [`one_of_many`], when Mercury has copied it.
unsafe extern "C" fn free_entry(entry: *mut c_void) {
    // SAFETY: Mercury calls it once, with the argument that the entry has.
    drop(unsafe { Box::from_raw(entry.cast::<CompletionData>()) });
}

/// Makes an operation idle and hands its end to the program. Returns whether it is one of the
/// context of `poller`.
///
/// # Safety
///
/// The operation is busy, and nobody else has it, the endpoint neither.
unsafe fn finish(
    class: &Class,
    op: *mut Op,
    status: Status,
    info: EndInfo,
    poller: Option<&Context>,
) -> bool {
    // SAFETY: contract of this function.
    let Parts { entry, state, begun } = unsafe { parts(op) };
    (entry.info.info, entry.info.ret) = (info, status.code());
    let context = begun.context;
    let home = begun.home.as_ref().filter(|home| !home.is_retired());
    let is_own = home.is_some_and(|home| is_same(poller, home));
    // As soon as it is idle the program may free it, with what it has of its context.
    let other = home.filter(|_| !is_own).cloned();
    let entry: *mut CompletionData = entry;
    // pair: PLUGIN-OP
    if state.swap(0, Ordering::AcqRel) & DROPPED != 0 {
        unheard(entry);
        // SAFETY: it is of `new`, the program has dropped it, and nobody else has it.
        drop(unsafe { Box::from_raw(op) });
        return false;
    }
    if is_own {
        push(class, context, entry);
    } else if let Some(home) = other {
        push(class, context, entry);
        home.tell();
    } else {
        unheard(entry);
    }
    is_own
}

fn is_same(poller: Option<&Context>, home: &Arc<Context>) -> bool {
    poller.is_some_and(|own| ptr::eq(own, Arc::as_ptr(home)))
}

/// Puts an entry into the queue of its context, which was not retired. The entry lives until
/// Mercury has copied it.
fn push(class: &Class, context: *mut NaContext, entry: *mut CompletionData) {
    // SAFETY: the context was not destroyed, as its program must not do while operations of it are
    // under way; the entry is there (contract of this function).
    unsafe { (class.mercury.completion_add)(context, entry) };
}

/// Frees what belongs to an entry that does not get into a queue.
fn unheard(entry: *mut CompletionData) {
    // SAFETY: nobody else has it.
    let CompletionData { info, release, release_arg, .. } = unsafe { &*entry };
    let mut source = ptr::null_mut();
    if info.kind == OpKind::RecvUnexpected as u32 {
        // SAFETY: this is what such an operation ends with.
        source = unsafe { info.info.recv }.source;
    } else if info.kind == OpKind::MultiRecv as u32 {
        // SAFETY: this is what such an operation ends with.
        source = unsafe { info.info.multi }.recv.source;
    }
    if !source.is_null() {
        // SAFETY: made for this end, and told to nobody.
        unsafe { address::free(source) };
    }
    if let Some(release) = release {
        // SAFETY: what Mercury would do after it has copied the entry.
        unsafe { release(*release_arg) };
    }
}

impl RecvInfo {
    fn none() -> Self {
        Self { bytes: 0, source: ptr::null_mut(), tag: 0 }
    }

    fn of(arrival: Arrival, bytes: usize) -> Self {
        let Arrival { from, tag } = arrival;
        Self { bytes, source: address::lend(from), tag: address::program_tag(tag) }
    }
}
