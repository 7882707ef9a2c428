//! The memory of descriptors: slabs, each a mapping with [`SLAB_LEN`] of them.
//!
//! One system call maps a slab and provides its pages, and the runtime's shared part is counted
//! once for all of its descriptors. A slab goes back to the system when all of them are idle and
//! have come back to it.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::base::inbox::Linked;
use crate::engine::model::runtime_core::{DescriptorChain, RuntimeCore, Slab, SlabPtr};
use crate::engine::model::unit::{Ult, UltPtr};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

pub(crate) const SLAB_BYTES: usize = 64 * 1024;
/// Descriptors in one slab.
const SLAB_LEN: usize = (SLAB_BYTES - size_of::<Slab>()) / size_of::<Ult>();
/// Descriptors in one chain. Less than 200 KiB.
pub(crate) const CHAIN_MAX: usize = 512;

// The first descriptor follows the head, and a new slab fits into a chain.
const _: () = assert!(size_of::<Slab>().is_multiple_of(align_of::<Ult>()) && SLAB_LEN < CHAIN_MAX);

impl DescriptorChain {
    #[inline]
    pub(crate) fn take(&self) -> Option<UltPtr> {
        let first = NonNull::new(self.first.get())?;
        // SAFETY:
        // - a live descriptor: slabs are unmapped only after theirs have been taken out.
        let ult = unsafe { UltPtr::new(first) };
        self.first.set(ult.link().load(Relaxed));
        self.len.set(self.len.get() - 1);
        Some(ult)
    }

    #[inline]
    pub(crate) fn put(&self, ult: UltPtr) {
        ult.link().store(self.first.get(), Relaxed);
        self.first.set(ult.as_non_null().as_ptr());
        self.len.set(self.len.get() + 1);
    }

    pub(crate) fn swap(&self, other: &Self) {
        self.first.swap(&other.first);
        self.len.swap(&other.len);
    }

    /// Moves its content into a chain of its own.
    pub(crate) fn split(&self) -> Self {
        let all = Self::new();
        self.swap(&all);
        all
    }
}

impl Deref for SlabPtr {
    type Target = Slab;

    fn deref(&self) -> &Slab {
        // SAFETY:
        // - valid: promise of the type; shared access only.
        unsafe { self.0.as_ref() }
    }
}

impl SlabPtr {
    /// The first descriptor of a new slab, and the others. `None`: memory, address space or
    /// mappings are used up.
    pub(crate) fn map(core: &Arc<RuntimeCore>) -> Option<(UltPtr, DescriptorChain)> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // All pages at once: each is about to be written.
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), SLAB_BYTES, prot, flags) }.ok()?;
        let head = NonNull::new(start.cast::<Slab>())?;
        let (idle, at) = (DescriptorChain::new(), Cell::new(usize::MAX));
        let slab = Slab { core: ManuallyDrop::new(core.clone()), idle, at };
        // SAFETY: room and alignment: the begin of a mapping, which is exclusively ours.
        unsafe { head.write(slab) };
        let this = Self(head);
        let rest = DescriptorChain::new();
        (1..SLAB_LEN).rev().for_each(|index| rest.put(this.init(index)));
        Some((this.init(0), rest))
    }

    /// Makes a descriptor of the slab, in whose place nothing is.
    fn init(self, index: usize) -> UltPtr {
        debug_assert!(index < SLAB_LEN);
        // SAFETY: in bounds: the descriptors stand behind the head.
        let first = unsafe { self.0.add(1) }.cast::<Ult>();
        // SAFETY: in bounds: `SLAB_LEN` of them have room there.
        let place = unsafe { first.add(index) };
        // SAFETY: the count of the slab, which outlives its descriptors; they never drop it.
        let core = unsafe { ptr::read(&raw const self.core) };
        // SAFETY:
        // - room and alignment: the head stands at the begin of a page, and after it a descriptor
        //   is aligned; exclusive: the caller is making the slab.
        unsafe { place.write(Ult::new(core, self)) };
        // SAFETY:
        // - a live descriptor: just written; `unmap` ends it.
        unsafe { UltPtr::new(place) }
    }

    /// Returns whether all its descriptors wait in it.
    pub(crate) fn is_whole(self) -> bool {
        self.idle.len.get() == SLAB_LEN
    }

    /// Gives the memory back. Not under the lock of the depot, which may end here.
    ///
    /// # Safety
    ///
    /// The caller owns the slab: all its descriptors wait in it, and it is in no list.
    pub(crate) unsafe fn unmap(mut self) {
        // SAFETY: exclusive: the caller owns it.
        let head = unsafe { self.0.as_mut() };
        // SAFETY: taken once; the slab ends here. The descriptors own nothing: each was cleared
        // when its unit had ended, and its payload is empty.
        let core = unsafe { ManuallyDrop::take(&mut head.core) };
        let start = self.0.as_ptr().cast();
        // SAFETY: the whole mapping of `map`, which nobody uses any more.
        if unsafe { munmap(start, SLAB_BYTES) }.is_err() {
            // A hole would be one mapping too many for the process: only the pages go.
            // SAFETY: as above; it stays mapped, and unused.
            let _ = unsafe { madvise(start, SLAB_BYTES, Advice::LinuxDontNeed) };
        }
        drop(core);
    }
}
