//! Mercury's part: classes, contexts with a queue, operations, and calls of the table.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use na_plugin_margo::abi::{
    CallbackInfo, ClassOps, CompletionData, NA_VERSION, NaAddr, NaClass, NaContext, NaInfo,
    NaInitInfo, NaMem, NaOp, NaSegment, OpKind, ProtocolInfo,
};
use na_plugin_margo::{Mercury, install, na_margo_class_ops_g};

pub(crate) const TABLE: &ClassOps = &na_margo_class_ops_g;

/// Longest wait for what must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// Codes of Mercury, as numbers.
pub(crate) const OK: c_int = 0;
pub(crate) const BUSY: c_int = 8;
pub(crate) const INVALID_ARG: c_int = 11;
pub(crate) const OVERFLOW: c_int = 13;
pub(crate) const MSG_SIZE: c_int = 14;
pub(crate) const HOST_UNREACH: c_int = 19;
pub(crate) const TIMEOUT: c_int = 20;
pub(crate) const CANCELED: c_int = 21;

/// Calls a function of the table.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let function = $crate::mercury::TABLE.$name.unwrap();
        // SAFETY: the arguments are those that Mercury would pass: classes, contexts, addresses,
        // operations and memory of this table that are alive, and buffers of these lengths.
        unsafe { function($($arg),*) }
    }};
}
pub(crate) use call;

/// A context with its queue, as Mercury has it.
#[repr(C)]
pub(crate) struct Context {
    base: NaContext,
    queue: Mutex<VecDeque<Entry>>,
}

impl Context {
    pub(crate) fn base(&self) -> *mut NaContext {
        ptr::from_ref(&self.base).cast_mut()
    }

    pub(crate) fn plugin_context(&self) -> *mut c_void {
        self.base.plugin_context
    }
}

struct Entry(*mut CompletionData);

// SAFETY: an entry may be taken out of the queue by any thread.
unsafe impl Send for Entry {}

unsafe extern "C" fn completion_add(context: *mut NaContext, data: *mut CompletionData) {
    // SAFETY: contexts here are parts of a `Context`.
    let context = unsafe { &*context.cast::<Context>() };
    context.queue.lock().unwrap().push_back(Entry(data));
}

unsafe extern "C" fn version_get(major: *mut c_uint, minor: *mut c_uint, _: *mut c_uint) {
    for (place, number) in [(major, NA_VERSION), (minor, 0)] {
        // SAFETY: the caller passes variables for these two.
        unsafe { place.write(number) };
    }
}

unsafe extern "C" fn protocol_info_alloc(
    class: *const c_char,
    protocol: *const c_char,
    device: *const c_char,
) -> *mut ProtocolInfo {
    let copy = |text: *const c_char| {
        // SAFETY: the plugin passes texts.
        unsafe { CStr::from_ptr(text) }.to_owned().into_raw()
    };
    Box::into_raw(Box::new(ProtocolInfo {
        next: ptr::null_mut(),
        class_name: copy(class),
        protocol_name: copy(protocol),
        device_name: copy(device),
    }))
}

pub(crate) fn set_up() {
    install(Mercury { completion_add, protocol_info_alloc, version_get });
}

/// A class with one context.
pub(crate) struct Side {
    class: Box<NaClass>,
    pub(crate) context: Box<Context>,
}

// SAFETY: Mercury's classes may be used by any thread.
unsafe impl Send for Side {}
// SAFETY: as for `Send`.
unsafe impl Sync for Side {}

/// A receiver and an operation, for a thread that sends.
pub(crate) struct Sending(*mut NaAddr, *mut NaOp);

// SAFETY: Mercury's addresses and operations may be used by any thread.
unsafe impl Sync for Sending {}

impl Sending {
    pub(crate) fn new(to: *mut NaAddr, op: *mut NaOp) -> Self {
        Self(to, op)
    }

    pub(crate) fn start(&self, side: &Side) {
        assert_eq!(side.send(true, b"wake", self.0, 0, self.1), OK);
    }
}

/// The end of an operation, as its program is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) op: usize,
    pub(crate) kind: u32,
    pub(crate) ret: c_int,
    pub(crate) bytes: usize,
    pub(crate) source: usize,
    pub(crate) tag: u32,
    pub(crate) message: usize,
    pub(crate) last: bool,
}

impl Side {
    /// Opens a class that listens.
    pub(crate) fn open(protocol: &str) -> Self {
        Self::open_with(protocol, "", NaInitInfo::default(), true).unwrap()
    }

    pub(crate) fn open_with(
        protocol: &str,
        host: &str,
        init: NaInitInfo,
        listen: bool,
    ) -> Result<Self, c_int> {
        set_up();
        let [name, host] = [protocol, host].map(|text| CString::new(text).unwrap());
        let info = NaInfo { protocol_name: name.as_ptr(), host_name: host.as_ptr(), init };
        let mut class = Box::new(NaClass {
            ops: TABLE,
            plugin_class: ptr::null_mut(),
            protocol_name: ptr::null_mut(),
            progress_mode: info.init.progress_mode,
            listen,
        });
        assert!(call!(check_protocol(name.as_ptr())));
        match call!(initialize(&raw mut *class, &raw const info, listen)) {
            OK => {}
            code => return Err(code),
        }
        let context = context_of(&mut class);
        Ok(Self { class, context })
    }

    pub(crate) fn class(&self) -> *mut NaClass {
        ptr::from_ref(&*self.class).cast_mut()
    }

    pub(crate) fn context(&self) -> *mut NaContext {
        ptr::from_ref(&self.context.base).cast_mut()
    }

    pub(crate) fn another_context(&mut self) -> Box<Context> {
        context_of(&mut self.class)
    }

    pub(crate) fn op(&self) -> *mut NaOp {
        call!(op_create(self.class(), 0))
    }

    pub(crate) fn self_addr(&self) -> *mut NaAddr {
        let mut addr = ptr::null_mut();
        assert_eq!(call!(addr_self(self.class(), &raw mut addr)), OK);
        addr
    }

    pub(crate) fn text(&self, addr: *mut NaAddr) -> String {
        let mut size = 0;
        let code = call!(addr_to_string(self.class(), ptr::null_mut(), &raw mut size, addr));
        assert_eq!(code, OK);
        let mut buf = vec![0_u8; size];
        let code =
            call!(addr_to_string(self.class(), buf.as_mut_ptr().cast(), &raw mut size, addr));
        assert_eq!(code, OK);
        CStr::from_bytes_with_nul(&buf).unwrap().to_str().unwrap().to_owned()
    }

    pub(crate) fn look_up(&self, text: &str) -> *mut NaAddr {
        self.try_look_up(text).unwrap()
    }

    pub(crate) fn try_look_up(&self, text: &str) -> Result<*mut NaAddr, c_int> {
        let text = CString::new(text).unwrap();
        let mut addr = ptr::null_mut();
        match call!(addr_lookup(self.class(), text.as_ptr(), &raw mut addr)) {
            OK => Ok(addr),
            code => Err(code),
        }
    }

    /// The address of `other`, as this side knows it.
    pub(crate) fn addr_of(&self, other: &Self) -> *mut NaAddr {
        let own = other.self_addr();
        let text = other.text(own);
        call!(addr_free(other.class(), own));
        self.look_up(&text)
    }

    pub(crate) fn send(
        &self,
        unexpected: bool,
        bytes: &[u8],
        to: *mut NaAddr,
        tag: u32,
        op: *mut NaOp,
    ) -> c_int {
        let (class, context) = (self.class(), self.context());
        let (buf, len, none) = (bytes.as_ptr().cast(), bytes.len(), ptr::null_mut());
        let arg = op.cast();
        match unexpected {
            true => call!(msg_send_unexpected(
                class, context, None, arg, buf, len, none, to, 0, tag, op
            )),
            false => {
                call!(msg_send_expected(class, context, None, arg, buf, len, none, to, 0, tag, op))
            }
        }
    }

    pub(crate) fn receive(&self, room: &mut [u8], op: *mut NaOp) -> c_int {
        let (class, context) = (self.class(), self.context());
        let (buf, len) = (room.as_mut_ptr().cast(), room.len());
        call!(msg_recv_unexpected(class, context, None, op.cast(), buf, len, ptr::null_mut(), op))
    }

    pub(crate) fn receive_many(&self, room: &mut [u8], op: *mut NaOp) -> c_int {
        let (class, context) = (self.class(), self.context());
        let (buf, len, none) = (room.as_mut_ptr().cast(), room.len(), ptr::null_mut());
        call!(msg_multi_recv_unexpected(class, context, None, op.cast(), buf, len, none, op))
    }

    pub(crate) fn receive_from(
        &self,
        room: &mut [u8],
        from: *mut NaAddr,
        tag: u32,
        op: *mut NaOp,
    ) -> c_int {
        let (class, context) = (self.class(), self.context());
        let (buf, len, none) = (room.as_mut_ptr().cast(), room.len(), ptr::null_mut());
        call!(msg_recv_expected(class, context, None, op.cast(), buf, len, none, from, 0, tag, op))
    }

    pub(crate) fn poll(&self) {
        assert_eq!(call!(poll(self.class(), self.context(), ptr::null_mut())), OK);
    }

    /// Takes an end out of the queue, as `NA_Trigger` does.
    pub(crate) fn trigger(&self) -> Option<End> {
        trigger(&self.context)
    }

    /// Returns whether something is in the queue.
    pub(crate) fn has_ends(&self) -> bool {
        !self.context.queue.lock().unwrap().is_empty()
    }

    /// The next end of this side, while the others look at the network, too.
    pub(crate) fn next(&self, others: &[&Self]) -> End {
        let began = Instant::now();
        loop {
            self.poll();
            others.iter().for_each(|other| other.poll());
            if let Some(end) = self.trigger() {
                return end;
            }
            assert!(began.elapsed() < LIMIT, "nothing has ended");
        }
    }

    /// Memory of this side that peers may use, as Mercury's flags say.
    pub(crate) fn register(&self, pieces: &mut [&mut [u8]], flags: u64) -> *mut NaMem {
        let segment =
            |piece: &mut &mut [u8]| NaSegment { base: piece.as_mut_ptr().cast(), len: piece.len() };
        let mut segments: Vec<_> = pieces.iter_mut().map(segment).collect();
        let mut handle = ptr::null_mut();
        let code = match segments.as_mut_slice() {
            [one] => {
                call!(mem_handle_create(self.class(), one.base, one.len, flags, &raw mut handle))
            }
            several => call!(mem_handle_create_segments(
                self.class(),
                several.as_mut_ptr(),
                several.len(),
                flags,
                &raw mut handle
            )),
        };
        assert_eq!(code, OK);
        assert_eq!(call!(mem_register(self.class(), handle, 0, 0)), OK);
        handle
    }

    pub(crate) fn describe(&self, memory: *mut NaMem) -> Vec<u8> {
        let size = call!(mem_handle_get_serialize_size(self.class(), memory));
        let mut bytes = vec![0; size];
        let buf = bytes.as_mut_ptr().cast();
        assert_eq!(call!(mem_handle_serialize(self.class(), buf, size, memory)), OK);
        bytes
    }

    pub(crate) fn read_description(&self, bytes: &[u8]) -> Result<*mut NaMem, c_int> {
        let mut handle = ptr::null_mut();
        let (buf, len) = (bytes.as_ptr().cast(), bytes.len());
        match call!(mem_handle_deserialize(self.class(), &raw mut handle, buf, len)) {
            OK => Ok(handle),
            code => Err(code),
        }
    }

    pub(crate) fn free(&self, addrs: &[*mut NaAddr], ops: &[*mut NaOp]) {
        addrs.iter().for_each(|addr| call!(addr_free(self.class(), *addr)));
        ops.iter().for_each(|op| call!(op_destroy(self.class(), *op)));
    }
}

/// Takes an end out of the queue of a context.
pub(crate) fn trigger(context: &Context) -> Option<End> {
    let Entry(data) = context.queue.lock().unwrap().pop_front()?;
    // SAFETY: an entry lives until it was copied.
    let CompletionData { info, release, release_arg, .. } = unsafe { ptr::read(data) };
    if let Some(release) = release {
        // SAFETY: called once, with its argument, when the entry was copied.
        unsafe { release(release_arg) };
    }
    Some(end(&info))
}

fn end(info: &CallbackInfo) -> End {
    let mut end = End {
        op: info.arg.addr(),
        kind: info.kind,
        ret: info.ret,
        bytes: 0,
        source: 0,
        tag: 0,
        message: 0,
        last: true,
    };
    if info.kind == OpKind::RecvExpected as u32 {
        // SAFETY: this is what such an operation ends with.
        end.bytes = unsafe { info.info.expected_bytes };
    } else if info.kind == OpKind::RecvUnexpected as u32 {
        // SAFETY: as above.
        let recv = unsafe { info.info.recv };
        (end.bytes, end.source, end.tag) = (recv.bytes, recv.source.expose_provenance(), recv.tag);
    } else if info.kind == OpKind::MultiRecv as u32 {
        // SAFETY: as above.
        let many = unsafe { info.info.multi };
        (end.bytes, end.tag) = (many.recv.bytes, many.recv.tag);
        end.source = many.recv.source.expose_provenance();
        (end.message, end.last) = (many.message.addr(), many.last);
    }
    end
}

impl End {
    /// The sender of a message.
    pub(crate) fn source(&self) -> *mut NaAddr {
        ptr::with_exposed_provenance_mut(self.source)
    }
}

fn context_of(class: &mut NaClass) -> Box<Context> {
    let mut context = Box::new(Context {
        base: NaContext { plugin_context: ptr::null_mut() },
        queue: Mutex::default(),
    });
    let mut own: *mut c_void = ptr::null_mut();
    let base = &raw mut context.base;
    assert_eq!(call!(context_create(&raw mut *class, base, &raw mut own, 0)), OK);
    context.base.plugin_context = own;
    context
}

impl Drop for Side {
    fn drop(&mut self) {
        while let Some(end) = self.trigger() {
            if end.source != 0 {
                call!(addr_free(self.class(), end.source()));
            }
        }
        assert_eq!(call!(context_destroy(self.class(), self.context.base.plugin_context)), OK);
        assert_eq!(call!(finalize(self.class())), OK);
        assert!(self.class.plugin_class.is_null());
    }
}

/// Both sides of each protocol.
pub(crate) fn pairs() -> impl Iterator<Item = (Side, Side)> {
    ["sm", "tcp", "all"].into_iter().map(|protocol| (Side::open(protocol), Side::open(protocol)))
}
