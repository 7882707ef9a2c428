//! Types of Mercury's network plugin interface, version 6 of its NA layer (Mercury 2.4.1).
//!
//! They are written by hand, from the facts that a plugin has to know: order, sizes and meaning of
//! fields. The numbers at the end of this file are those of a C compiler on 64-bit Linux.
//! All types here are shared with C, so a field may only be changed together with [`NA_VERSION`].

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::fmt;
use std::ptr;

/// The version of the NA layer whose interface this is. Mercury 2.4.1 has 6.0.
pub const NA_VERSION: c_uint = 6;

/// A return code. Counterpart: `na_return_t`, whose values are in `c/status.rs`.
pub type Return = c_int;

/// Tags of messages. Counterpart: `na_tag_t`.
pub type NaTag = u32;

/// An address that this plugin has made. Counterpart: `na_addr_t`.
#[repr(C)]
#[derive(Debug)]
pub struct NaAddr {
    opaque: [u8; 0],
}

/// An operation that this plugin has made. Counterpart: `na_op_id_t`.
#[repr(C)]
#[derive(Debug)]
pub struct NaOp {
    opaque: [u8; 0],
}

/// A memory handle that this plugin has made. Counterpart: `na_mem_handle_t`.
#[repr(C)]
#[derive(Debug)]
pub struct NaMem {
    opaque: [u8; 0],
}

/// A class. Counterpart: `struct na_class`.
#[repr(C)]
#[derive(Debug)]
pub struct NaClass {
    /// The plugin's table.
    pub ops: *const ClassOps,
    /// The plugin's own part.
    pub plugin_class: *mut c_void,
    /// The protocol; set after the class was initialised.
    pub protocol_name: *mut c_char,
    /// [`NO_BLOCK`] and others.
    pub progress_mode: u8,
    /// `true` if peers may call.
    pub listen: bool,
}

/// The public part of a context. Counterpart: `struct na_context`.
#[repr(C)]
#[derive(Debug)]
pub struct NaContext {
    /// The plugin's own part.
    pub plugin_context: *mut c_void,
}

/// The class that is to be opened. Counterpart: `struct na_info`.
#[repr(C)]
#[derive(Debug)]
pub struct NaInfo {
    /// The text between `+` and `://`.
    pub protocol_name: *const c_char,
    /// The text behind `://`, or null.
    pub host_name: *const c_char,
    /// Options.
    pub init: NaInitInfo,
}

/// Options of a class. Counterpart: `struct na_init_info`.
#[repr(C)]
#[derive(Debug)]
pub struct NaInitInfo {
    /// A subnet, or null.
    pub ip_subnet: *const c_char,
    /// A key, or null.
    pub auth_key: *const c_char,
    /// Longest unexpected message, 0 for the plugin's choice.
    pub max_unexpected_size: usize,
    /// Longest expected message, likewise.
    pub max_expected_size: usize,
    /// [`NO_BLOCK`] and others.
    pub progress_mode: u8,
    /// 0 any, 1 IPv4, 2 IPv6, 3 native.
    pub addr_format: c_uint,
    /// Contexts that the program is going to make.
    pub max_contexts: u8,
    /// Promises of the program about its threads.
    pub thread_mode: u8,
    /// Memory of devices is going to be registered.
    pub request_mem_device: bool,
    /// 0 any, then best effort, low latency, bulk data, dedicated access, scavenger, control.
    pub traffic_class: c_uint,
}

impl Default for NaInitInfo {
    /// The options of a program that gives none. Counterpart: `NA_INIT_INFO_INITIALIZER`.
    fn default() -> Self {
        Self {
            ip_subnet: ptr::null(),
            auth_key: ptr::null(),
            max_unexpected_size: 0,
            max_expected_size: 0,
            progress_mode: 0,
            addr_format: 0,
            max_contexts: 1,
            thread_mode: 0,
            request_mem_device: false,
            traffic_class: 0,
        }
    }
}

/// Progress never sleeps. Counterpart: `NA_NO_BLOCK`.
pub const NO_BLOCK: u8 = 1;

/// The feature of receiving many messages in one buffer. Counterpart: `NA_OPT_MULTI_RECV`.
pub const OPT_MULTI_RECV: c_ulong = 1;

/// Memory of the host, the only type that is moved. Counterpart: `NA_MEM_TYPE_HOST`.
pub const MEM_TYPE_HOST: c_uint = 0;

/// A piece of memory. Counterpart: `struct na_segment`.
#[repr(C)]
#[derive(Debug)]
pub struct NaSegment {
    /// First byte.
    pub base: *mut c_void,
    /// Bytes.
    pub len: usize,
}

/// An entry of the list of protocols; made by Mercury. Counterpart: `struct na_protocol_info`.
#[repr(C)]
#[derive(Debug)]
pub struct ProtocolInfo {
    /// The next one, or null.
    pub next: *mut ProtocolInfo,
    /// The class.
    pub class_name: *mut c_char,
    /// The protocol.
    pub protocol_name: *mut c_char,
    /// The device.
    pub device_name: *mut c_char,
}

/// Kinds of operations. Counterpart: `na_cb_type_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum OpKind {
    /// `NA_CB_SEND_UNEXPECTED`
    SendUnexpected = 0,
    /// `NA_CB_RECV_UNEXPECTED`
    RecvUnexpected = 1,
    /// `NA_CB_MULTI_RECV_UNEXPECTED`
    MultiRecv = 2,
    /// `NA_CB_SEND_EXPECTED`
    SendExpected = 3,
    /// `NA_CB_RECV_EXPECTED`
    RecvExpected = 4,
    /// `NA_CB_PUT`
    Put = 5,
    /// `NA_CB_GET`
    Get = 6,
}

/// Facts about a message that has come. Counterpart: `struct na_cb_info_recv_unexpected`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RecvInfo {
    /// Bytes of the message.
    pub bytes: usize,
    /// The sender, which the program frees; null if there is no message.
    pub source: *mut NaAddr,
    /// The tag.
    pub tag: NaTag,
}

/// Facts about one of many messages. Counterpart: `struct na_cb_info_multi_recv_unexpected`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MultiRecvInfo {
    /// As for a single one.
    pub recv: RecvInfo,
    /// The message, in the buffer of the operation.
    pub message: *mut c_void,
    /// `true` if the operation is over.
    pub last: bool,
}

/// Facts about the end of an operation, by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union EndInfo {
    /// For [`OpKind::RecvUnexpected`].
    pub recv: RecvInfo,
    /// For [`OpKind::MultiRecv`].
    pub multi: MultiRecvInfo,
    /// Bytes of the message, for [`OpKind::RecvExpected`].
    pub expected_bytes: usize,
}

/// The end of an operation, as the program is told. Counterpart: `struct na_cb_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CallbackInfo {
    /// By kind.
    pub info: EndInfo,
    /// The program's own word.
    pub arg: *mut c_void,
    /// An [`OpKind`].
    pub kind: c_uint,
    /// How it ended.
    pub ret: Return,
}

/// A function of the program, called when an operation has ended. Counterpart: `na_cb_t`.
pub type Callback = Option<unsafe extern "C" fn(*const CallbackInfo)>;

/// An entry of a completion queue. Counterpart: `struct na_cb_completion_data`.
#[repr(C)]
pub struct CompletionData {
    /// Handed to `callback`.
    pub info: CallbackInfo,
    /// The program's.
    pub callback: Callback,
    /// The plugin's, called before it, when the entry was copied out of the queue.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Handed to `release`.
    pub release_arg: *mut c_void,
    /// A link that belongs to the queue.
    pub next: *mut CompletionData,
}

impl fmt::Debug for EndInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndInfo")
    }
}

impl fmt::Debug for CallbackInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallbackInfo(kind {}, ret {})", self.kind, self.ret)
    }
}

impl fmt::Debug for CompletionData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionData({:?})", self.info)
    }
}

type Class = *mut NaClass;
type Context = *mut NaContext;
type Addr = *mut NaAddr;
type OpPtr = *mut NaOp;
type Mem = *mut NaMem;

/// A function of the table that sends: class, context, callback, its argument, message, bytes, data
/// of the plugin, receiver, its context, tag, operation.
pub type SendFn = unsafe extern "C" fn(
    Class,
    Context,
    Callback,
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    Addr,
    u8,
    NaTag,
    OpPtr,
) -> Return;

/// A function of the table that posts a receive for messages of anybody: class, context, callback,
/// its argument, buffer, bytes, data of the plugin, operation.
pub type RecvFn = unsafe extern "C" fn(
    Class,
    Context,
    Callback,
    *mut c_void,
    *mut c_void,
    usize,
    *mut c_void,
    OpPtr,
) -> Return;

/// A function of the table that posts a receive for a message of a peer: as [`RecvFn`], with
/// sender, its context and tag before the operation.
pub type RecvFromFn = unsafe extern "C" fn(
    Class,
    Context,
    Callback,
    *mut c_void,
    *mut c_void,
    usize,
    *mut c_void,
    Addr,
    u8,
    NaTag,
    OpPtr,
) -> Return;

/// A function of the table that moves memory: class, context, callback, its argument, local memory,
/// offset, remote memory, offset, bytes, owner, its context, operation.
pub type TransferFn = unsafe extern "C" fn(
    Class,
    Context,
    Callback,
    *mut c_void,
    Mem,
    u64,
    Mem,
    u64,
    usize,
    Addr,
    u8,
    OpPtr,
) -> Return;

/// A function of the table that returns a number of the class.
pub type NumberFn = unsafe extern "C" fn(*const NaClass) -> usize;

/// The table of a plugin. Counterpart: `struct na_class_ops`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is named as in C, where it is described")]
pub struct ClassOps {
    pub class_name: *const c_char,
    pub get_protocol_info:
        Option<unsafe extern "C" fn(*const NaInfo, *mut *mut ProtocolInfo) -> Return>,
    pub check_protocol: Option<unsafe extern "C" fn(*const c_char) -> bool>,
    pub initialize: Option<unsafe extern "C" fn(Class, *const NaInfo, bool) -> Return>,
    pub finalize: Option<unsafe extern "C" fn(Class) -> Return>,
    pub cleanup: Option<unsafe extern "C" fn()>,
    pub has_opt_feature: Option<unsafe extern "C" fn(Class, c_ulong) -> bool>,
    pub context_create:
        Option<unsafe extern "C" fn(Class, Context, *mut *mut c_void, u8) -> Return>,
    pub context_destroy: Option<unsafe extern "C" fn(Class, *mut c_void) -> Return>,
    pub op_create: Option<unsafe extern "C" fn(Class, c_ulong) -> OpPtr>,
    pub op_destroy: Option<unsafe extern "C" fn(Class, OpPtr)>,
    pub addr_lookup: Option<unsafe extern "C" fn(Class, *const c_char, *mut Addr) -> Return>,
    pub addr_free: Option<unsafe extern "C" fn(Class, Addr)>,
    pub addr_set_remove: Option<unsafe extern "C" fn(Class, Addr) -> Return>,
    pub addr_self: Option<unsafe extern "C" fn(Class, *mut Addr) -> Return>,
    pub addr_dup: Option<unsafe extern "C" fn(Class, Addr, *mut Addr) -> Return>,
    pub addr_cmp: Option<unsafe extern "C" fn(Class, Addr, Addr) -> bool>,
    pub addr_is_self: Option<unsafe extern "C" fn(Class, Addr) -> bool>,
    pub addr_to_string:
        Option<unsafe extern "C" fn(Class, *mut c_char, *mut usize, Addr) -> Return>,
    pub addr_get_serialize_size: Option<unsafe extern "C" fn(Class, Addr) -> usize>,
    pub addr_serialize: Option<unsafe extern "C" fn(Class, *mut c_void, usize, Addr) -> Return>,
    pub addr_deserialize:
        Option<unsafe extern "C" fn(Class, *mut Addr, *const c_void, usize, u64) -> Return>,
    pub msg_get_max_unexpected_size: Option<NumberFn>,
    pub msg_get_max_expected_size: Option<NumberFn>,
    pub msg_get_unexpected_header_size: Option<NumberFn>,
    pub msg_get_expected_header_size: Option<NumberFn>,
    pub msg_get_max_tag: Option<unsafe extern "C" fn(*const NaClass) -> NaTag>,
    pub msg_buf_alloc:
        Option<unsafe extern "C" fn(Class, usize, c_ulong, *mut *mut c_void) -> *mut c_void>,
    pub msg_buf_free: Option<unsafe extern "C" fn(Class, *mut c_void, *mut c_void)>,
    pub msg_init_unexpected: Option<unsafe extern "C" fn(Class, *mut c_void, usize) -> Return>,
    pub msg_send_unexpected: Option<SendFn>,
    pub msg_recv_unexpected: Option<RecvFn>,
    pub msg_multi_recv_unexpected: Option<RecvFn>,
    pub msg_init_expected: Option<unsafe extern "C" fn(Class, *mut c_void, usize) -> Return>,
    pub msg_send_expected: Option<SendFn>,
    pub msg_recv_expected: Option<RecvFromFn>,
    pub mem_handle_create:
        Option<unsafe extern "C" fn(Class, *mut c_void, usize, c_ulong, *mut Mem) -> Return>,
    pub mem_handle_create_segments:
        Option<unsafe extern "C" fn(Class, *mut NaSegment, usize, c_ulong, *mut Mem) -> Return>,
    pub mem_handle_free: Option<unsafe extern "C" fn(Class, Mem)>,
    pub mem_handle_get_max_segments: Option<NumberFn>,
    pub mem_register: Option<unsafe extern "C" fn(Class, Mem, c_uint, u64) -> Return>,
    pub mem_deregister: Option<unsafe extern "C" fn(Class, Mem) -> Return>,
    pub mem_handle_get_serialize_size: Option<unsafe extern "C" fn(Class, Mem) -> usize>,
    pub mem_handle_serialize:
        Option<unsafe extern "C" fn(Class, *mut c_void, usize, Mem) -> Return>,
    pub mem_handle_deserialize:
        Option<unsafe extern "C" fn(Class, *mut Mem, *const c_void, usize) -> Return>,
    pub put: Option<TransferFn>,
    pub get: Option<TransferFn>,
    pub poll_get_fd: Option<unsafe extern "C" fn(Class, Context) -> c_int>,
    pub poll_try_wait: Option<unsafe extern "C" fn(Class, Context) -> bool>,
    pub poll: Option<unsafe extern "C" fn(Class, Context, *mut c_uint) -> Return>,
    pub poll_wait: Option<unsafe extern "C" fn(Class, Context, c_uint, *mut c_uint) -> Return>,
    pub cancel: Option<unsafe extern "C" fn(Class, Context, OpPtr) -> Return>,
}

// SAFETY: it holds functions and the text of a static, which nobody changes.
unsafe impl Sync for ClassOps {}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ClassOps>() == 52 * 8);
    assert!(offset_of!(ClassOps, addr_lookup) == 11 * 8);
    assert!(offset_of!(ClassOps, msg_send_unexpected) == 30 * 8);
    assert!(offset_of!(ClassOps, put) == 45 * 8);
    assert!(offset_of!(ClassOps, cancel) == 51 * 8);
    assert!(size_of::<NaClass>() == 32 && offset_of!(NaClass, progress_mode) == 24);
    assert!(size_of::<NaInitInfo>() == 48 && offset_of!(NaInitInfo, addr_format) == 36);
    assert!(offset_of!(NaInitInfo, max_contexts) == 40);
    assert!(offset_of!(NaInitInfo, traffic_class) == 44);
    assert!(size_of::<NaInfo>() == 64 && offset_of!(NaInfo, init) == 16);
    assert!(size_of::<CallbackInfo>() == 56 && offset_of!(CallbackInfo, arg) == 40);
    assert!(offset_of!(MultiRecvInfo, message) == 24 && offset_of!(MultiRecvInfo, last) == 32);
    assert!(size_of::<CompletionData>() == 88);
    assert!(offset_of!(CompletionData, callback) == 56);
};
