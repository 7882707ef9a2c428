//! Messages.

use std::ffi::c_void;

use na::{Endpoint, MsgBuf, OpId, Refused};

use super::{class, class_here, context, guarded, values, with_code};
use crate::c::abi::{Callback, NaAddr, NaClass, NaContext, NaOp, NaTag, OpKind, Return};
use crate::c::status::Status;
use crate::class::address::{self, TAG_MAX, wire_tag};
use crate::class::op::{self, Begin};

/// Longest unexpected message.
pub(crate) unsafe extern "C" fn max_unexpected_size(na_class: *const NaClass) -> usize {
    guarded(0, || {
        // SAFETY: Mercury passes a class of ours.
        unsafe { class(na_class) }.endpoint.limits().unexpected_bytes_max
    })
}

/// Longest expected message.
pub(crate) unsafe extern "C" fn max_expected_size(na_class: *const NaClass) -> usize {
    guarded(0, || {
        // SAFETY: Mercury passes a class of ours.
        unsafe { class(na_class) }.endpoint.limits().expected_bytes_max
    })
}

/// The endpoint needs no room in messages of the program.
pub(crate) unsafe extern "C" fn header_size(_: *const NaClass) -> usize {
    0
}

/// Largest tag.
pub(crate) unsafe extern "C" fn max_tag(_: *const NaClass) -> NaTag {
    TAG_MAX
}

/// A message of the program, on its way.
struct Message<'a> {
    bytes: &'a [u8],
    to: *mut NaAddr,
    tag: NaTag,
    begin: Begin<'a>,
}

/// Sends a message: at once if the endpoint can, as an operation of the endpoint otherwise.
///
/// # Safety
///
/// Pointers of the message are those that Mercury has passed.
unsafe fn send(na_class: *mut NaClass, message: Message<'_>) -> Result<(), Status> {
    // SAFETY: contract of this function.
    let class = unsafe { class_here(na_class) }?;
    let Message { bytes, to, tag, begin } = message;
    let is_unexpected = begin.kind == OpKind::SendUnexpected;
    let limits = class.endpoint.limits();
    let max = if is_unexpected { limits.unexpected_bytes_max } else { limits.expected_bytes_max };
    if bytes.len() > max {
        return Err(Status::MsgSize);
    }
    // SAFETY: contract of this function.
    let to = unsafe { address::lent(to) };
    // SAFETY: contract of this function.
    unsafe { begin.check_idle() }?;
    let tag = wire_tag(tag);
    let is_sent = match is_unexpected {
        true => class.endpoint.send_unexpected_now(to, tag, bytes),
        false => class.endpoint.send_expected_now(to, tag, bytes),
    };
    if is_sent {
        // SAFETY: contract of this function; it is idle (above).
        unsafe { begin.done(class) };
        return Ok(());
    }
    // SAFETY: contract of this function.
    let started = unsafe { begin.start() }?;
    let mut buf = class.endpoint.alloc_msg();
    if !buf.try_extend(bytes) {
        return Err(started.refused(&na::Error::TooLong { len: bytes.len(), max }));
    }
    let number = started.number();
    let sent = match is_unexpected {
        true => class.endpoint.send_unexpected(number, to, tag, buf),
        false => class.endpoint.send_expected(number, to, tag, buf),
    };
    match sent {
        Ok(()) => started.taken(),
        Err(Refused { error, .. }) => return Err(started.refused(&error)),
    }
    Ok(())
}

macro_rules! sends {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        pub(crate) unsafe extern "C" fn $name(
            na_class: *mut NaClass,
            na_context: *mut NaContext,
            callback: Callback,
            arg: *mut c_void,
            buf: *const c_void,
            size: usize,
            _plugin_data: *mut c_void,
            to: *mut NaAddr,
            _to_id: u8,
            tag: NaTag,
            op: *mut NaOp,
        ) -> Return {
            with_code(|| {
                // SAFETY: Mercury passes a context of ours.
                let home = unsafe { context(na_context) };
                let kind = OpKind::$kind;
                let begin = Begin { op, kind, callback, arg, context: na_context, home };
                // SAFETY: so many bytes are there, which nobody changes before the operation ends.
                let bytes = unsafe { values(buf.cast::<u8>(), size) };
                // SAFETY: Mercury passes a class, an address and an operation of ours.
                unsafe { send(na_class, Message { bytes, to, tag, begin }) }
            })
        }
    };
}

sends! {
    /// Sends a message that some receive of the peer takes.
    send_unexpected, SendUnexpected
}

sends! {
    /// Sends a message that a receive with our address and the tag takes.
    send_expected, SendExpected
}

/// Posts a receive for one message.
///
/// # Safety
///
/// Class and operation are those that Mercury has passed; so is the room, which has so many bytes.
unsafe fn receive(
    na_class: *mut NaClass,
    begin: Begin<'_>,
    room: *mut c_void,
    size: usize,
    post: impl FnOnce(&dyn Endpoint, OpId, MsgBuf) -> Result<(), Refused>,
) -> Result<(), Status> {
    // SAFETY: contract of this function.
    let class = unsafe { class_here(na_class) }?;
    // SAFETY: contract of this function.
    let mut started = unsafe { begin.start() }?;
    started.receive_into(room.cast(), size);
    let buf = started.take_buffer(class);
    match post(&*class.endpoint, started.number(), buf) {
        Ok(()) => {
            started.taken();
            Ok(())
        }
        Err(Refused { error, .. }) => Err(started.refused(&error)),
    }
}

/// Posts a receive for the next message of anybody.
pub(crate) unsafe extern "C" fn recv_unexpected(
    na_class: *mut NaClass,
    na_context: *mut NaContext,
    callback: Callback,
    arg: *mut c_void,
    buf: *mut c_void,
    size: usize,
    _plugin_data: *mut c_void,
    op: *mut NaOp,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a context of ours.
        let home = unsafe { context(na_context) };
        let kind = OpKind::RecvUnexpected;
        let begin = Begin { op, kind, callback, arg, context: na_context, home };
        // SAFETY: Mercury passes a class, an operation and a buffer.
        unsafe {
            receive(na_class, begin, buf, size, |endpoint, op, buf| {
                endpoint.recv_unexpected(op, buf)
            })
        }
    })
}

/// Posts a receive for as many messages as the buffer can hold.
pub(crate) unsafe extern "C" fn multi_recv_unexpected(
    na_class: *mut NaClass,
    na_context: *mut NaContext,
    callback: Callback,
    arg: *mut c_void,
    buf: *mut c_void,
    size: usize,
    _plugin_data: *mut c_void,
    op: *mut NaOp,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        let messages = op::messages_in(class, size);
        if messages == 0 {
            return Err(Status::Overflow);
        }
        // SAFETY: Mercury passes a context of ours.
        let home = unsafe { context(na_context) };
        let kind = OpKind::MultiRecv;
        let begin = Begin { op, kind, callback, arg, context: na_context, home };
        // SAFETY: Mercury passes an operation of ours.
        let mut started = unsafe { begin.start() }?;
        started.receive_into(buf.cast(), size);
        started.receive_many(messages);
        match class.endpoint.multi_recv_unexpected(started.number(), messages, &class.large) {
            Ok(()) => {
                started.taken();
                Ok(())
            }
            Err(error) => Err(started.refused(&error)),
        }
    })
}

/// Posts a receive for a message of a peer with a tag.
pub(crate) unsafe extern "C" fn recv_expected(
    na_class: *mut NaClass,
    na_context: *mut NaContext,
    callback: Callback,
    arg: *mut c_void,
    buf: *mut c_void,
    size: usize,
    _plugin_data: *mut c_void,
    from: *mut NaAddr,
    _from_id: u8,
    tag: NaTag,
    op: *mut NaOp,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a context of ours.
        let home = unsafe { context(na_context) };
        let kind = OpKind::RecvExpected;
        let begin = Begin { op, kind, callback, arg, context: na_context, home };
        // SAFETY: Mercury passes an address of ours.
        let from = unsafe { address::lent(from) };
        // SAFETY: Mercury passes a class, an operation and a buffer.
        unsafe {
            receive(na_class, begin, buf, size, |endpoint, op, buf| {
                endpoint.recv_expected(op, from, wire_tag(tag), buf)
            })
        }
    })
}
