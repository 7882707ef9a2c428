//! Identity numbers of units and threads: a lock uses them to find out that a party waits for
//! itself.
//!
//! Numbers are never given twice, by no runtime and no thread. The address of a descriptor or of a
//! thread-local is no such number: the next party that has it would be taken for the owner of a
//! lock whose guard the former one has leaked. Neither is the number of a unit, which a revived one
//! keeps, and which is unique in one runtime only.
//!
//! A number is drawn when it is first asked for, from a block of the thread's, so that units that
//! never ask pay nothing.

#[cfg(not(loom))]
use std::cell::Cell;

#[cfg(not(loom))]
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that tells the calling unit, or the thread where no unit runs, from all others that
/// there have been and will be. Never zero.
// Never inlined, so that no address of a thread-local is kept across a switch.
#[cfg(not(loom))]
#[inline(never)]
pub(crate) fn party_id() -> u64 {
    thread_local! {
        static OF_THREAD: Cell<u64> = const { Cell::new(0) };
    }
    match crate::engine::xstream::current::ult() {
        Some(ult) => ult.party(draw),
        None => OF_THREAD.with(|number| match number.get() {
            0 => {
                number.set(draw());
                number.get()
            }
            drawn => drawn,
        }),
    }
}

/// The next number of this thread's block.
#[cfg(not(loom))]
#[cold]
fn draw() -> u64 {
    /// Numbers that a thread takes at once.
    const BLOCK: u64 = 1024;
    static BLOCKS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static LEFT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }
    LEFT.with(|left| {
        let (mut next, mut end) = left.get();
        if next == end {
            // At one per nanosecond the blocks last for centuries.
            next = BLOCKS.fetch_add(1, Relaxed) * BLOCK + 1;
            end = next + BLOCK;
        }
        left.set((next + 1, end));
        next
    })
}

/// A number that tells the calling thread from the others of the model. Never zero.
#[cfg(loom)]
pub(crate) fn party_id() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    crate::sync::thread::current().id().hash(&mut hasher);
    hasher.finish() | 1
}
