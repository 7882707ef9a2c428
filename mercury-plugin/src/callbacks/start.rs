//! Protocols, classes, contexts, operations.

use std::ffi::{CStr, c_char, c_ulong, c_void};
use std::ptr;
use std::sync::Arc;

use super::{class, class_here, give, guarded, text, with_code};
use crate::c::abi::{NaClass, NaContext, NaInfo, NaOp, OPT_MULTI_RECV, ProtocolInfo, Return};
use crate::c::mercury;
use crate::c::status::Status;
use crate::class::context::Context;
use crate::class::{Class, op};
use crate::settings::{self, Protocol};

/// The class, as it stands before `+` in addresses.
pub(crate) const CLASS_NAME: &CStr = c"margo";

/// Returns whether this plugin has the protocol. Mercury asks this before anything else, so here a
/// Mercury with another plugin interface is refused.
pub(crate) unsafe extern "C" fn check_protocol(name: *const c_char) -> bool {
    guarded(false, || {
        // SAFETY: Mercury passes a text or null.
        let name = unsafe { text(name) };
        let Some(name) = name.ok().flatten() else { return false };
        if Protocol::named(name).is_none() {
            let known = Protocol::ALL.map(|protocol| format!("margo+{}", protocol.name()));
            let known = known.join(", ");
            tracing::debug!(protocol = name, %known, "not a protocol of this plugin");
            return false;
        }
        match mercury::get() {
            Ok(_) => true,
            Err(unfit) => {
                tracing::error!("cannot open margo+{name}: {unfit}");
                false
            }
        }
    })
}

/// The protocols that there are.
pub(crate) unsafe extern "C" fn get_protocol_info(
    info: *const NaInfo,
    list: *mut *mut ProtocolInfo,
) -> Return {
    with_code(|| {
        let mut wanted = None;
        if !info.is_null() {
            // SAFETY: Mercury passes one, or null.
            let name = unsafe { (*info).protocol_name };
            // SAFETY: a text of Mercury's, or null.
            wanted = unsafe { text(name) }?;
        }
        let mut first = ptr::null_mut();
        // A Mercury that cannot be served gets an empty list.
        if let Ok(mercury) = mercury::get() {
            let is_wanted =
                |protocol: &&Protocol| wanted.is_none_or(|name| protocol.name() == name);
            for protocol in Protocol::ALL.iter().rev().filter(is_wanted) {
                let (name, device) = (protocol.c_name().as_ptr(), protocol.device().as_ptr());
                // SAFETY: texts that end with a zero byte, which Mercury copies.
                let entry =
                    unsafe { (mercury.protocol_info_alloc)(CLASS_NAME.as_ptr(), name, device) };
                if entry.is_null() {
                    break;
                }
                // SAFETY: Mercury has just made it for us.
                unsafe { (*entry).next = first };
                first = entry;
            }
        }
        // SAFETY: Mercury passes a variable.
        unsafe { give(list, first) };
        Ok(())
    })
}

/// Opens a class.
pub(crate) unsafe extern "C" fn initialize(
    na_class: *mut NaClass,
    info: *const NaInfo,
    listen: bool,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes one.
        let info = unsafe { &*info };
        // SAFETY: a text of Mercury's.
        let name = unsafe { text(info.protocol_name) }?.unwrap_or_default();
        let protocol = Protocol::named(name).ok_or(Status::ProtoNoSupport)?;
        // SAFETY: a text of Mercury's, or null.
        let host = unsafe { text(info.host_name) }?.unwrap_or_default();
        let mercury = mercury::get().map_err(|unfit| {
            tracing::error!("cannot open margo+{name}: {unfit}");
            Status::ProtoNoSupport
        })?;
        // SAFETY: texts of Mercury's, or null.
        let subnet = unsafe { text(info.init.ip_subnet) }?;
        // SAFETY: as above.
        let auth_key = unsafe { text(info.init.auth_key) }?;
        let wanted =
            settings::ClassWanted { protocol, host, listen, init: &info.init, subnet, auth_key };
        let refused = |error: &dyn std::fmt::Display| {
            tracing::error!("cannot open margo+{name}://{host}: {error}");
        };
        let (uri, options) = settings::settings(&wanted).map_err(|error| {
            refused(&error);
            Status::InvalidArg
        })?;
        let opened = Class::open(&uri, &options, mercury).map_err(|error| {
            refused(&error);
            Status::from(&error)
        })?;
        let opened = Box::into_raw(Box::new(opened));
        // SAFETY: Mercury passes one, for us to fill in.
        unsafe { (*na_class).plugin_class = opened.cast() };
        Ok(())
    })
}

/// Ends a class and all that was begun in it.
pub(crate) unsafe extern "C" fn finalize(na_class: *mut NaClass) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class.
        let own = unsafe { (*na_class).plugin_class };
        if own.is_null() {
            return Ok(());
        }
        // SAFETY: `initialize` has made it, and this is the end of it.
        let opened = unsafe { Box::from_raw(own.cast::<Class>()) };
        // SAFETY: Mercury passes a class.
        unsafe { (*na_class).plugin_class = ptr::null_mut() };
        opened.close();
        Ok(())
    })
}

/// Tells what the endpoint can beside the usual.
pub(crate) unsafe extern "C" fn has_opt_feature(na_class: *mut NaClass, flags: c_ulong) -> bool {
    guarded(false, || {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class(na_class) };
        flags & OPT_MULTI_RECV != 0 && class.endpoint.has_multi_recv()
    })
}

/// Makes a context.
pub(crate) unsafe extern "C" fn context_create(
    na_class: *mut NaClass,
    _: *mut NaContext,
    own: *mut *mut c_void,
    _id: u8,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        let context = class.add_context().map_err(|error| {
            tracing::error!(%error, "cannot make a context");
            Status::from(&error)
        })?;
        let context: *mut Arc<Context> = Box::into_raw(Box::new(context));
        // SAFETY: Mercury passes a variable.
        unsafe { give(own, context.cast()) };
        Ok(())
    })
}

/// Ends a context.
pub(crate) unsafe extern "C" fn context_destroy(
    na_class: *mut NaClass,
    own: *mut c_void,
) -> Return {
    with_code(|| {
        if own.is_null() {
            return Ok(());
        }
        // SAFETY: `context_create` has made it, and this is the end of it.
        let context = unsafe { Box::from_raw(own.cast::<Arc<Context>>()) };
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class(na_class) };
        class.remove_context(&context);
        Ok(())
    })
}

/// Makes an operation.
pub(crate) unsafe extern "C" fn op_create(_: *mut NaClass, _flags: c_ulong) -> *mut NaOp {
    guarded(ptr::null_mut(), op::new)
}

/// Frees an operation.
pub(crate) unsafe extern "C" fn op_destroy(na_class: *mut NaClass, op: *mut NaOp) {
    guarded((), || {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class(na_class) };
        // SAFETY: Mercury passes an operation of ours, and does not use it any more.
        unsafe { op::drop_op(class, op) };
    });
}
