//! Shared memory and TCP of margo as a network plugin of C Mercury: `libna_plugin_margo.so`.
//!
//! A program of Mercury (C Margo, Thallium, Yokan, a Python program …) that finds this library in
//! its `NA_PLUGIN_PATH` can open `margo+sm://`, `margo+tcp://host:port` and
//! `margo+all://host:port`, not recompiled, and talk over our transports with others of its kind
//! and with services of ours, which open `na+sm://` and `na+tcp://` as always. How a site uses it
//! is in the guide (`docs/guide/src/c-mercury.md`).
//!
//! # How Mercury uses it
//!
//! Mercury loads each file `libna_plugin_<name>.so` of that folder and looks up the table
//! `na_<name>_class_ops_g` in it, here [`na_margo_class_ops_g`]. A class of Mercury is one endpoint
//! of ours. Calls of the table begin operations; when one has ended, its entry is put into the
//! queue of a context by a function of Mercury, and the program's callback is called later, by
//! Mercury, out of that queue. So nothing of the program runs inside of this library.
//!
//! | in Mercury | here |
//! |---|---|
//! | `na_class_t` | `class::Class`: an endpoint |
//! | `na_context_t` | `class::context::Context`: who sleeps, and how to wake it |
//! | `na_op_id_t` | `class::op::Op`: an operation, used again and again |
//! | `na_addr_t` | an address of the endpoint |
//! | `na_mem_handle_t` | `class::memory::MemHandle`: memory of the program, or of a peer |
//!
//! # Memory
//!
//! Memory and buffers are the program's, and stay where they are. Messages are copied, out of the
//! program's buffer in the call that sends, and into it when one has come; memory for transfers is
//! registered where it lies. The program answers for its own use of memory that it has lent. Peers
//! are held to bounds, permissions and keys as everywhere, and when
//! deregistering has returned without an error, no peer can touch the memory any more.
//!
//! # What it relies on
//!
//! That Mercury keeps its contract (`na.h`): pointers that it passes are valid, an operation that
//! is under way is not begun again, a context is destroyed when nothing of it is under way. Some
//! faults of programs are told or do no harm all the same: an operation that is begun twice is
//! refused, one that is destroyed too early is freed when it has ended, and a child that was forked
//! off is refused everything.
//!
//! # Peers
//!
//! The endpoint tells its peers that an RPC layer of Mercury's is above it, so that services of
//! ours write what Mercury reads: no extension ([`na::Endpoint::carries_extensions`]), and the
//! header of its build. They know such a peer by the connection if it calls, and by the class
//! `margo` of its address if they call it. One that they have taken for one of ours gets nothing
//! that was written so: the first call ends with an error that names the right address.
//!
//! A Mercury with another plugin interface than [`NA_VERSION`](abi::NA_VERSION) is refused when a
//! class is opened, before anything of the interface that may differ was used, with a line on
//! standard error. Nothing of Mercury is needed to build, and the library is linked with nothing of
//! it.
//!
//! # Folders
//!
//! Lowest first: `c/` (types, codes and functions of Mercury) · `settings.rs` (options of an
//! endpoint) · `class/` (what stands behind Mercury's pointers) · `callbacks/` (the functions of
//! the table).

mod c;
mod callbacks;
mod class;
mod settings;

pub use self::c::abi;
#[doc(hidden)]
pub use self::c::mercury::{Mercury, install};

use self::abi::ClassOps;
use self::callbacks::{address, memory, message, progress, start};

/// The table that Mercury looks for. Counterpart: `na_ofi_class_ops_g` and its like.
///
/// ```
/// use std::ffi::CStr;
///
/// let table = &na_plugin_margo::na_margo_class_ops_g;
/// // SAFETY: it is a text of this library.
/// let class = unsafe { CStr::from_ptr(table.class_name) };
/// assert_eq!(class, c"margo");
/// ```
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Mercury chooses the name")]
pub static na_margo_class_ops_g: ClassOps = ClassOps {
    class_name: start::CLASS_NAME.as_ptr(),
    get_protocol_info: Some(start::get_protocol_info),
    check_protocol: Some(start::check_protocol),
    initialize: Some(start::initialize),
    finalize: Some(start::finalize),
    cleanup: None,
    has_opt_feature: Some(start::has_opt_feature),
    context_create: Some(start::context_create),
    context_destroy: Some(start::context_destroy),
    op_create: Some(start::op_create),
    op_destroy: Some(start::op_destroy),
    addr_lookup: Some(address::addr_lookup),
    addr_free: Some(address::addr_free),
    addr_set_remove: Some(address::addr_set_remove),
    addr_self: Some(address::addr_self),
    addr_dup: Some(address::addr_dup),
    addr_cmp: Some(address::addr_cmp),
    addr_is_self: Some(address::addr_is_self),
    addr_to_string: Some(address::addr_to_string),
    addr_get_serialize_size: Some(address::addr_get_serialize_size),
    addr_serialize: Some(address::addr_serialize),
    addr_deserialize: Some(address::addr_deserialize),
    msg_get_max_unexpected_size: Some(message::max_unexpected_size),
    msg_get_max_expected_size: Some(message::max_expected_size),
    msg_get_unexpected_header_size: Some(message::header_size),
    msg_get_expected_header_size: Some(message::header_size),
    msg_get_max_tag: Some(message::max_tag),
    // Mercury's own memory does.
    msg_buf_alloc: None,
    msg_buf_free: None,
    msg_init_unexpected: None,
    msg_send_unexpected: Some(message::send_unexpected),
    msg_recv_unexpected: Some(message::recv_unexpected),
    msg_multi_recv_unexpected: Some(message::multi_recv_unexpected),
    msg_init_expected: None,
    msg_send_expected: Some(message::send_expected),
    msg_recv_expected: Some(message::recv_expected),
    mem_handle_create: Some(memory::mem_handle_create),
    mem_handle_create_segments: Some(memory::mem_handle_create_segments),
    mem_handle_free: Some(memory::mem_handle_free),
    mem_handle_get_max_segments: Some(memory::max_segments),
    mem_register: Some(memory::mem_register),
    mem_deregister: Some(memory::mem_deregister),
    mem_handle_get_serialize_size: Some(memory::serialize_size),
    mem_handle_serialize: Some(memory::mem_handle_serialize),
    mem_handle_deserialize: Some(memory::mem_handle_deserialize),
    put: Some(memory::put),
    get: Some(memory::get),
    poll_get_fd: Some(progress::poll_get_fd),
    poll_try_wait: Some(progress::poll_try_wait),
    poll: Some(progress::poll),
    poll_wait: Some(progress::poll_wait),
    cancel: Some(progress::cancel),
};
