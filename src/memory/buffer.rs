//! Memory for bulk transfers, and buffers for our own side of them.
//!
//! Memory that a peer may touch is not a Rust slice meanwhile. So there are three ways to lend
//! memory, which differ in who may touch it:
//!
//! - [`Exposed`](crate::Exposed) owns a vector or buffer; peers may touch it until it is released
//!   (`exposed.rs`);
//! - `expose_ref` and `expose_mut` borrow a slice, or several, for the duration of a closure, and
//!   do not return before no transfer can touch it any more;
//! - [`BulkBuffer`], or [`BulkSegments`](crate::bulk_memory::BulkSegments), is the local side of
//!   our own transfers. Its key is never told to anyone, and a transfer holds it exclusively until
//!   its completion, so in between it is an ordinary slice. A peer that is stopped in the midst of
//!   a copy does not hold a transfer up: where it may write afterwards, the buffer takes other
//!   memory and leaves the old one to it (`replace`).
//!
//! A `Bulk` is a description that travels in arguments; it keeps nothing alive. Using it after
//! its memory was taken back is refused by the owner, not undefined.
//!
//! Memory that peers may only read ([`Access::ReadOnly`]), and that has room in the message, is
//! copied into it beside the description. A pull from such a handle needs no transfer and gives the
//! bytes as they were when the handle was sent, also after the memory was changed or taken back.
//! `mercury.no_bulk_eager` in the configuration turns this off.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Weak};

use na::{Access, Endpoint, LocalMem, Memory, RawSegment, RegionTable};
use ult::Eventual;

use crate::BulkError;

/// Panics in a tasklet that would have to wait for memory. The memory is left to the transfer that
/// uses it, which drops it at its end.
///
/// # Panics
///
/// In a tasklet, unless `done`. An error would have no buffer to give back.
#[track_caller]
pub(crate) fn assert_may_wait(done: bool) {
    assert!(done || !ult::is_tasklet(), "{}", BulkError::Tasklet);
}

/// The place where memory comes back to the caller that waits for it: set by the hook of its
/// revocation, with nothing if that is dropped uncalled.
pub(crate) type Back = Eventual<std::sync::Mutex<Option<Memory>>>;

/// That hook.
pub(crate) struct GiveBack(Arc<Back>);

impl GiveBack {
    pub(crate) fn to(back: &Arc<Back>) -> Self {
        Self(back.clone())
    }

    pub(crate) fn with(self, memory: Memory) {
        // Nobody else has set it: `drop` comes later.
        let _ = self.0.set(std::sync::Mutex::new(Some(memory)));
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        // Changes nothing if it was called.
        let _ = self.0.set(std::sync::Mutex::new(None));
    }
}

/// Why memory does not come back.
pub(crate) const LOST: &str = "exposed memory does not come back: the transport could not end its \
                    registration, or a peer that was stopped in the midst of a copy has it; they \
                    may go on using it, so it stays where it is for good (the log has the cause)";

/// Revokes `memory`, which comes back there.
pub(crate) fn revoke(memory: LocalMem) -> Arc<Back> {
    let back = Arc::new(Back::new());
    let hook = GiveBack::to(&back);
    memory.revoke(move |memory| hook.with(memory));
    back
}

/// Revokes `memory` and waits until no peer can touch it.
///
/// # Panics
///
/// In a tasklet, if it would wait. If the memory never comes back, see [`LOST`].
#[track_caller]
pub(crate) fn take_back(memory: LocalMem) -> Memory {
    comes_back(&revoke(memory)).expect(LOST)
}

/// Waits until memory is back. `None`: it never will be.
///
/// # Panics
///
/// In a tasklet, if it would wait.
#[track_caller]
pub(crate) fn comes_back(back: &Back) -> Option<Memory> {
    assert_may_wait(back.is_ready());
    // Not a cancellation point: peers use the memory until then, whoever has lent it.
    // In a child process that was forked off they do not, and the memory is there at once.
    back.wait_ready_fully();
    back.wait().lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
}

/// The local side of a transfer: a [`BulkBuffer`],
/// [`BulkSegments`](crate::bulk_memory::BulkSegments), or memory that is exposed
/// ([`Exposed`](crate::Exposed), also by a shared reference, and in an `Arc` for several transfers
/// at a time).
///
/// ```
/// use margo::bulk_memory::LocalBulk;
/// use margo::{Access, Addr, Bulk, BulkError, Instance};
///
/// /// Fetches the first `len` bytes into whatever memory the caller has for them.
/// fn fetch(
///     instance: &Instance,
///     (owner, remote): (&Addr, &Bulk),
///     into: &mut impl LocalBulk,
///     len: usize,
/// ) -> Result<(), BulkError> {
///     instance.pull(owner, remote, 0, into, 0..len)
/// }
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let owner = instance.self_addr();
/// # let remote = instance.expose(b"some bytes".to_vec(), Access::ReadOnly)?;
/// # let remote = (&owner, remote.bulk());
/// let mut buffer = instance.memory().bulk_buffer(4)?;
/// fetch(&instance, remote, &mut buffer, 4)?;
/// let mut exposed = instance.expose(vec![0; 4], Access::ReadOnly)?;
/// fetch(&instance, remote, &mut exposed, 4)?;
/// assert_eq!(exposed.release()?, &buffer[..]);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait LocalBulk: sealed::Registered {}

impl LocalBulk for BulkBuffer {}

pub(crate) mod sealed {
    use std::ops::Range;

    use na::LocalMem;

    pub trait Registered {
        /// The memory. No Rust reference to its bytes may exist while `self` is borrowed mutably.
        fn memory(&self) -> &LocalMem;

        /// After a transfer of the bytes `moved`: leaves the memory to peers that may still write
        /// there, and goes on with other memory, which holds the same but for `moved`. Nothing is
        /// to be done for memory that is never seen as a slice.
        fn set_aside(&mut self, moved: &Range<usize>) {
            let _ = moved;
        }
    }

    impl Registered for super::BulkBuffer {
        fn memory(&self) -> &LocalMem {
            &self.memory
        }

        fn set_aside(&mut self, moved: &Range<usize>) {
            if self.memory.may_be_written() && !self.replace(moved) {
                super::wait_out(&mut self.memory, &self.endpoint);
                self.segment = self.memory.segments()[0];
            }
        }
    }
}

/// Copies the bytes of `memory` from `at` on to `fresh`, but for those of `moved`.
pub(crate) fn copy_rest(memory: &LocalMem, at: usize, fresh: &mut [u8], moved: &Range<usize>) {
    let within = |place: usize| place.clamp(at, at + fresh.len()) - at;
    let (before, after) = (within(moved.start), within(moved.end));
    let copied = memory.read_at(at as u64, &mut fresh[..before])
        && memory.read_at((at + after) as u64, &mut fresh[after..]);
    debug_assert!(copied, "it is as long");
}

/// Takes memory that `fresh` makes in the place of `memory`, where a peer may still write and which
/// stays alive for that. `false`: the system has none.
pub(crate) fn replace(
    memory: &mut LocalMem,
    endpoint: &Weak<dyn Endpoint>,
    fresh: impl Fn(&LocalMem) -> Result<Memory, na::Error>,
) -> bool {
    let Ok(made) = fresh(memory) else { return false };
    let registered = match endpoint.upgrade().map(|own| own.register(made, Access::ReadWrite)) {
        Some(Ok(registered)) => Some(registered),
        // It is closed, and no transfer will use the memory.
        _ => fresh(memory).ok().and_then(|made| register_nowhere(made).ok()),
    };
    let Some(registered) = registered else { return false };
    *memory = registered;
    true
}

fn register_nowhere(memory: Memory) -> Result<LocalMem, na::Error> {
    RegionTable::new().register_local(memory, Access::ReadWrite)
}

/// Where there is no memory to take instead: waits until no peer writes to `memory`. If that never
/// comes about, none is left.
pub(crate) fn wait_out(memory: &mut LocalMem, endpoint: &Weak<dyn Endpoint>) {
    let empty = || Memory::from_vec(Vec::new());
    let nothing = register_nowhere(empty()).expect("no bytes need no memory");
    let old = std::mem::replace(memory, nothing);
    let back = comes_back(&revoke(old));
    let registered = match (back, endpoint.upgrade()) {
        (None, _) => return,
        (Some(back), Some(endpoint)) => endpoint.register(back, Access::ReadWrite),
        (Some(back), None) => register_nowhere(back),
    };
    if let Ok(registered) = registered {
        *memory = registered;
    }
}

/// A buffer for the local side of transfers: registered once, used often, a slice in between.
///
/// A pull that fails because its peer is stopped in the midst of a copy gives the buffer other
/// memory, as the peer may still write to the old one: references are short-lived, and pointers to
/// the bytes are not to be kept across a transfer.
///
/// ```
/// use margo::{Access, Instance};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let exposed = instance.expose(b"some bytes".to_vec(), Access::ReadOnly)?;
/// let mut buffer = instance.memory().bulk_buffer(5)?;
/// // The same buffer for any number of transfers.
/// instance.pull(&instance.self_addr(), exposed.bulk(), 5, &mut buffer, 0..5)?;
/// assert_eq!(&buffer[..], b"bytes");
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: an element of Margo's bulk pool.
pub struct BulkBuffer {
    memory: LocalMem,
    segment: RawSegment,
    /// Where other memory is registered. Does not keep it open.
    endpoint: Weak<dyn Endpoint>,
}

impl BulkBuffer {
    /// The buffer in `memory`, which has one segment, all zero.
    pub(crate) fn new(memory: LocalMem, endpoint: &Arc<dyn Endpoint>) -> Self {
        let segment = memory.segments()[0];
        Self { memory, segment, endpoint: Arc::downgrade(endpoint) }
    }

    /// Takes other memory, which holds the same but for `moved`. `false`: there is none.
    pub(crate) fn replace(&mut self, moved: &Range<usize>) -> bool {
        let fresh = |old: &LocalMem| {
            let zeroed = Memory::zeroed(old.len() as usize)?.into_owner::<Vec<u8>>();
            let mut bytes = zeroed.expect("that is the owner of zeroed memory");
            copy_rest(old, 0, &mut bytes, moved);
            Ok(Memory::from_vec(bytes))
        };
        let replaced = replace(&mut self.memory, &self.endpoint, fresh);
        self.segment = self.memory.segments()[0];
        replaced
    }
}

// SAFETY:
// - `segment` points into memory that `memory` keeps alive and that is not tied to a thread;
// - access to it follows Rust's borrow rules, see `deref`.
unsafe impl Send for BulkBuffer {}
// SAFETY: as for `Send`; shared access only reads, through `deref`.
unsafe impl Sync for BulkBuffer {}

impl Deref for BulkBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - valid: `self.memory` keeps the allocation of exactly this segment alive;
        // - initialised: it was zeroed, and transfers only write bytes;
        // - no writer: the key of this memory is in no descriptor, so no peer can name it, and our
        //   own transfers write only while they hold `&mut self`: `transfer` returns or unwinds
        //   only after the completion, see `wait_for`; or while a request owns the buffer, which
        //   gives it back, or drops it, only after the completion, see `bulk_request.rs`;
        // - nor a late one: after each transfer `set_aside` leaves memory where a peer may still
        //   write.
        unsafe { std::slice::from_raw_parts(self.segment.ptr, self.segment.len) }
    }
}

impl DerefMut for BulkBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` excludes every other slice and every transfer.
        unsafe { std::slice::from_raw_parts_mut(self.segment.ptr, self.segment.len) }
    }
}

impl AsMut<[u8]> for BulkBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for BulkBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkBuffer({} bytes)", self.segment.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_never_comes_back_is_told() {
        let comes_back = |tell: fn(GiveBack)| {
            let back = Arc::new(Back::new());
            tell(GiveBack::to(&back));
            comes_back(&back)
        };
        let back = comes_back(|hook| hook.with(Memory::from_vec(vec![7; 4])));
        assert_eq!(back.expect("it is here").into_owner::<Vec<u8>>().unwrap(), [7; 4]);
        assert!(comes_back(drop).is_none());
        // Later, and by another thread.
        let later = comes_back(|hook| drop(std::thread::spawn(move || drop(hook))));
        assert!(later.is_none());
    }
}
