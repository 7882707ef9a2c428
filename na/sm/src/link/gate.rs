//! A gate that decides whether the owner of remote memory may still touch the requester's.
//!
//! With cross-memory attach the *owner* of the remote memory copies, straight into or out of the
//! requester's address space. The requester may stop waiting at any time (its endpoint closes, the
//! owner broke the protocol) and must then know when its memory is its own again. A gate serves
//! mapped memory too, whichever side copies in the other's: read *owner* as the side that copies,
//! and *requester* as the side whose memory it is.
//!
//! | owner | requester |
//! |---|---|
//! | [`enter`](Gate::enter) | [`shut`](Gate::shut) |
//! | stores `copying`, fence, loads `shut` | stores `shut`, fence |
//! | copies, if not shut | keeps its memory until [`is_quiet`](Gate::is_quiet) or the owner died |
//! | [`leave`](Gate::leave): clears `copying` | |
//!
//! An *offer* is a word that allows copies for as long as it holds a generation. It is withdrawn
//! like a gate is shut, and [`enter_under`](Gate::enter_under) looks at both.
//!
//! The fences (pair: GATE-FENCE) forbid that the owner misses `shut` while the requester misses
//! `copying`. An owner copies a bounded chunk per `enter`, so the requester waits shortly.

use crate::wake::doorbell::settle;
use prim::sync::atomic::{AtomicU32, Ordering, fence};

/// Requester: takes the offer `generation` back, if `word` still holds it. No chunk may begin under
/// it from now on.
pub fn withdraw(word: &AtomicU32, generation: u32) {
    // Another offer may have its place by now.
    let _ = word.compare_exchange(generation, 0, Ordering::Relaxed, Ordering::Relaxed);
    // pair: GATE-FENCE
    fence(Ordering::SeqCst);
}

/// The two words of one direction.
#[derive(Debug, Clone, Copy)]
pub struct CopyGate<'a> {
    copying: &'a AtomicU32,
    shut: &'a AtomicU32,
}

impl<'a> CopyGate<'a> {
    /// The gate at two words, both zero at first.
    pub fn new(copying: &'a AtomicU32, shut: &'a AtomicU32) -> Self {
        Self { copying, shut }
    }

    /// Owner: begins a chunk. `false`: it must not copy any more.
    #[inline]
    #[must_use]
    pub fn enter(self) -> bool {
        self.copying.store(1, Ordering::Relaxed);
        // A full fence (pair: GATE-FENCE); short copies pay for it each time.
        settle();
        if self.shut.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.copying.store(0, Ordering::Relaxed);
        false
    }

    /// Owner: begins a chunk under an offer of the requester, which is the `generation` in `word`.
    #[inline]
    #[must_use]
    pub fn enter_under(self, word: &AtomicU32, generation: u32) -> bool {
        if !self.enter() {
            return false;
        }
        if word.load(Ordering::Relaxed) == generation {
            return true;
        }
        self.copying.store(0, Ordering::Relaxed);
        false
    }

    /// Owner: the chunk is copied.
    #[inline]
    pub fn leave(self) {
        // pair: GATE-QUIET (the copy is over)
        self.copying.store(0, Ordering::Release);
    }

    /// Requester: no chunk may begin from now on.
    pub fn shut(self) {
        self.shut.store(1, Ordering::Relaxed);
        // pair: GATE-FENCE
        fence(Ordering::SeqCst);
    }

    /// Requester, after [`shut`](Self::shut) or [`withdraw`]: whether no chunk is being copied.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        // pair: GATE-QUIET
        self.copying.load(Ordering::Acquire) == 0
    }
}
