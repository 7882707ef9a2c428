//! Binding of threads to cpus and of memory to NUMA nodes, by system calls.
//!
//! The calls are made directly: the wrappers of libc and rustix stop at 1024 cpus, and have no
//! `mbind`.

use std::ffi::c_void;
use std::io;
use std::ptr;

use super::cpuset::{CpuSet, ID_MAX};
use super::error::TopologyError;

/// First size of an affinity mask that is tried, in 64-bit words: 1024 cpus.
const MASK_WORDS_FIRST: usize = 16;
/// Largest size that is tried. The kernel wants room for all cpus it could ever have.
const MASK_WORDS_MAX: usize = (ID_MAX + 1) / 64;
/// The kernel has at most 1024 nodes; this many bits fit its limit of one page per mask.
const NODE_MAX: u32 = 32_000;

/// Not in the libc crate: an error if a page is elsewhere and cannot be moved.
const MPOL_MF_STRICT: libc::c_long = 1;
/// Not in the libc crate: move the pages that only this process uses.
const MPOL_MF_MOVE: libc::c_long = 2;

/// Where memory comes from when its node has none left.
///
/// ```
/// use ult::topology::{MemoryPolicy, bind_memory};
///
/// /// Begins at a page boundary, also where pages have 64 KiB.
/// #[repr(align(65536))]
/// struct Pages([u8; 1 << 16]);
///
/// let pages = Box::new(Pages([0; 1 << 16]));
/// // Many containers forbid it; the memory can be used all the same.
/// if let Err(error) = bind_memory(pages.0.as_ptr(), pages.0.len(), 0, MemoryPolicy::Preferred) {
///     println!("{error}");
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MemoryPolicy {
    /// From another node.
    #[default]
    Preferred,
    /// From nowhere: touching the memory can get the process killed. Pages that exist already and
    /// cannot be moved to the node are an error.
    Strict,
}

/// Lets the calling thread run on these cpus only, from now on.
///
/// The kernel ignores cpus that do not exist or are not allowed by the cgroup, as long as one
/// is left; [`Topology::cpus_of`](super::Topology::cpus_of) gives sets without such cpus.
///
/// # Errors
///
/// `InvalidInput` if none of the cpus can be used, or the set is empty; `PermissionDenied` if a
/// sandbox forbids the call.
///
/// Counterpart: `ABT_xstream_set_affinity`, for the calling thread.
pub fn bind_this_thread(cpus: &CpuSet) -> io::Result<()> {
    if cpus.is_empty() {
        let text = "cannot bind this thread to no cpu at all: give it at least one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let words = cpus.words();
    // SAFETY:
    // - memory: the kernel reads `size_of_val(words)` bytes from `words`, which outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(words), words.as_ptr())
    };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let why = match error.raw_os_error() {
        Some(libc::EINVAL) => "none of them exists and is allowed for this process",
        Some(libc::EPERM) => "the call sched_setaffinity is forbidden here",
        _ => "the call sched_setaffinity failed",
    };
    Err(explained(&error, format!("cannot bind this thread to cpu {cpus}: {why}")))
}

/// The cpus that the calling thread may run on.
///
/// # Errors
///
/// What the system answers; only a sandbox makes this fail.
///
/// Counterpart: `ABT_xstream_get_affinity`, for the calling thread.
pub fn current_binding() -> io::Result<CpuSet> {
    affinity_of(0)
}

/// The cpus that the process may use: those of its first thread, and those of the calling one.
pub(crate) fn allowed_cpus() -> Result<CpuSet, TopologyError> {
    let own = current_binding().map_err(|source| TopologyError::Allowed { source })?;
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // The first thread may have ended already; then the calling one speaks for all.
    let first = affinity_of(pid).unwrap_or_default();
    Ok(own.union(&first))
}

/// Returns those of the cpus `online` that a thread of this process can be bound to, whatever mask
/// the process was started with: a thread of its own asks for all, and reads what the kernel leaves
/// of that, which is what the cgroup allows. `None`: a sandbox forbids the call, or there is no
/// thread to be had.
pub(crate) fn bindable_cpus(online: &CpuSet) -> Option<CpuSet> {
    let online = online.clone();
    let ask = move || {
        bind_this_thread(&online).ok()?;
        current_binding().ok().map(|cpus| cpus.intersection(&online))
    };
    std::thread::Builder::new().name("ult-cpus".to_owned()).spawn(ask).ok()?.join().ok()?
}

fn affinity_of(thread: libc::pid_t) -> io::Result<CpuSet> {
    let mut words = vec![0u64; MASK_WORDS_FIRST];
    loop {
        let bytes = size_of_val(words.as_slice());
        // SAFETY:
        // - memory: the kernel writes at most `bytes` bytes to `words`, which has as many;
        // - any bits are a valid `u64`.
        let result = unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, thread, bytes, words.as_mut_ptr())
        };
        if result >= 0 {
            return Ok(CpuSet::from_words(words));
        }
        let error = io::Error::last_os_error();
        // The mask is shorter than the kernel's.
        if error.raw_os_error() != Some(libc::EINVAL) || words.len() >= MASK_WORDS_MAX {
            return Err(error);
        }
        words = vec![0; words.len() * 2];
    }
}

/// Asks the kernel to take the pages of a range of memory from a NUMA node, also those that exist
/// already (they are moved, if only this process uses them).
///
/// The range starts at a page boundary and is rounded up to whole pages. Only where the pages are
/// changes, never what is in them, so any range of the process may be given.
///
/// # Errors
///
/// The memory stays usable, and a caller for whom the node is a matter of speed can go on.
///
/// - `Unsupported`: the kernel has no NUMA support;
/// - `PermissionDenied`: a sandbox forbids the call (containers often do);
/// - `InvalidInput`: there is no such node, it has no memory, or it is not for this process; or
///   `start` is not at a page boundary;
/// - others: as the system says, for example that the range is not mapped.
pub fn bind_memory(
    start: *const u8,
    bytes: usize,
    node: u32,
    policy: MemoryPolicy,
) -> io::Result<()> {
    let page = rustix::param::page_size();
    let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if !start.addr().is_multiple_of(page) {
        return invalid(format!(
            "cannot bind memory at {start:?}: not at a page boundary ({page} bytes)"
        ));
    }
    if node > NODE_MAX {
        return invalid(format!("cannot bind memory to NUMA node {node}: no machine has it"));
    }
    let mut nodes = vec![0 as libc::c_ulong; 1 + node as usize / libc::c_ulong::BITS as usize];
    if let Some(last) = nodes.last_mut() {
        *last = 1 << (node % libc::c_ulong::BITS);
    }
    // The kernel takes one off before it reads the mask.
    let max_node = nodes.len() * libc::c_ulong::BITS as usize + 1;
    let (mode, flags) = match policy {
        MemoryPolicy::Preferred => (libc::MPOL_PREFERRED, MPOL_MF_MOVE),
        MemoryPolicy::Strict => (libc::MPOL_BIND, MPOL_MF_MOVE | MPOL_MF_STRICT),
    };
    // A variadic `int` leaves the upper half of a register open, and the kernel reads all of it.
    let mode = libc::c_long::from(mode);
    // SAFETY:
    // - mask: the kernel reads `max_node - 1` bits from `nodes`, which has as many;
    // - range: the call changes on which node pages are, not their content, their address or
    //   their protection, and checks itself that the range is mapped.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, start.addr(), bytes, mode, nodes.as_ptr(), max_node, flags)
    };
    if result == 0 { Ok(()) } else { Err(not_bound(&io::Error::last_os_error(), node)) }
}

fn not_bound(error: &io::Error, node: u32) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no NUMA support",
        Some(libc::EPERM) => "the call mbind is forbidden here, as in many containers",
        Some(libc::EINVAL) => "it does not exist, has no memory, or is not for this process",
        Some(libc::EIO) => "pages that are elsewhere cannot be moved",
        Some(libc::EFAULT) => "the range is not mapped",
        Some(libc::ENOMEM) => "the kernel is out of memory",
        _ => "the call mbind failed",
    };
    explained(error, format!("cannot bind memory to NUMA node {node}: {why}"))
}

/// The NUMA node that the page at `addr` is on. `None` if there is no page yet: the memory has not
/// been touched, or only read (the zeros that are read then are a page that everybody shares).
///
/// # Errors
///
/// `Unsupported` and `PermissionDenied` as in [`bind_memory`]; `InvalidInput` if nothing is mapped
/// there.
pub fn node_of_page(addr: *const u8) -> io::Result<Option<u32>> {
    let pages: [*const c_void; 1] = [addr.cast()];
    let mut status: [libc::c_int; 1] = [0];
    let no_targets = ptr::null::<libc::c_int>();
    // SAFETY:
    // - memory: the kernel reads one pointer from `pages` and writes one int to `status`;
    // - no effect: without target nodes the call only asks. It does not access the page.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            no_targets,
            status.as_mut_ptr(),
            0,
        )
    };
    let error = match (result, status[0]) {
        (0.., node @ 0..) => return Ok(u32::try_from(node).ok()),
        (0.., negative) if negative == -libc::ENOENT => return Ok(None),
        // Some kernels (6.1 is one) say of memory without a page what others say of no memory.
        (0.., negative) if negative == -libc::EFAULT && is_mapped(addr) => return Ok(None),
        (0.., negative) => io::Error::from_raw_os_error(-negative),
        _ => io::Error::last_os_error(),
    };
    let why = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no NUMA support",
        Some(libc::EPERM | libc::EACCES) => "the call move_pages is forbidden here",
        Some(libc::EFAULT) => "nothing is mapped there",
        _ => "the call move_pages failed",
    };
    Err(explained(&error, format!("cannot ask for the NUMA node of the page at {addr:?}: {why}")))
}

/// Returns whether there is memory at `addr`, touched or not.
fn is_mapped(addr: *const u8) -> bool {
    let page = rustix::param::page_size();
    let start = addr.map_addr(|addr| addr - addr % page).cast_mut();
    let mut is_resident = [0u8; 1];
    // SAFETY:
    // - memory: the kernel writes a byte for each of the pages asked for, which is one;
    // - no effect: the call only asks, also where nothing is mapped.
    unsafe { libc::mincore(start.cast(), page, is_resident.as_mut_ptr()) == 0 }
}

/// An error with the kind that callers tell apart, what was tried, and what the system said.
fn explained(error: &io::Error, text: String) -> io::Error {
    let kind = match error.raw_os_error() {
        Some(libc::ENOSYS) => io::ErrorKind::Unsupported,
        Some(libc::EFAULT) => io::ErrorKind::InvalidInput,
        _ => error.kind(),
    };
    io::Error::new(kind, format!("{text} ({error})"))
}
