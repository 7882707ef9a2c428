//! The way of a descriptor back into a cache, when nobody keeps it any more.

use std::mem::ManuallyDrop;

use crate::engine::model::unit::{UltPtr, UltRef};
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::sync::Arc;

impl UltRef {
    /// Gives the count back. The same as a drop, but without a call.
    #[inline(always)]
    pub(crate) fn release(self) {
        let ult = ManuallyDrop::new(self).ptr();
        if ult.is_last_ref() {
            recycle(ult);
        }
    }
}

impl Drop for UltRef {
    fn drop(&mut self) {
        Self::adopt(self.ptr()).release();
    }
}

/// Takes the descriptor of a unit that has ended on `xstream`, of the same runtime, and has no
/// handle.
#[inline]
pub(crate) fn recycle_at(xstream: &Xstream, ult: UltPtr) {
    if ult.is_last_ref() {
        ult.clear();
        xstream.put_descriptor(ult);
    }
}

/// Takes the descriptor of a unit that nobody keeps any more.
#[inline(always)]
pub(crate) fn recycle(ult: UltPtr) {
    ult.clear();
    match current::xstream_in(&ult.core) {
        Some(xstream) => xstream.put_descriptor(ult),
        None => recycle_elsewhere(ult),
    }
}

impl Xstream {
    #[inline]
    fn put_descriptor(&self, ult: UltPtr) {
        if self.descriptors.is_full() {
            self.make_room();
        }
        self.descriptors.put(ult);
    }

    #[cold]
    fn make_room(&self) {
        if self.descriptors.make_room(&self.core.depot) {
            self.stacks.ask_for_look();
        }
    }
}

#[cold]
fn recycle_elsewhere(ult: UltPtr) {
    // Keeps the depot alive while the slab, which may be the last owner, is freed.
    let core = Arc::clone(&ult.core);
    core.depot.put(ult);
}
