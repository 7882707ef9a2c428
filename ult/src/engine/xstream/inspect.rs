//! The walk up the stack of a suspended ULT, which the ULT itself does, inside the call with which
//! it suspended. It stores instruction pointers in the memory that its xstream has ready; the party
//! that asked turns them into names.

use std::sync::Once;

use crate::engine::model::unit::UltPtr;
use crate::engine::pulse::Capture;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;

/// The module and the file of the frames that a walk adds on top of those of the ULT.
pub(crate) const PLACE: [&str; 2] = [concat!(module_path!(), "::"), file!()];

/// Room that the walk needs below the frame from which it starts: three times what was measured.
const ROOM_BYTES: usize = 6 * 1024;

/// The first walk of a process takes far more stack than later ones, because the dynamic linker
/// looks up what it calls. So the first is done here, on the stack of the xstream.
pub(crate) fn warm_up() {
    static ONCE: Once = Once::new();
    // SAFETY:
    // - synchronised: as in `walk`.
    ONCE.call_once(|| unsafe { ::backtrace::trace_unsynchronized(|_| true) });
}

/// The calling ULT has been resumed for a walk, and suspends again afterwards.
#[cold]
#[inline(never)]
pub(crate) fn inspected() {
    if let Some((xstream, ult)) = current::xstream().zip(current::ult()) {
        walk(xstream, ult);
    }
}

/// Walks the stack of `ult`, which is the caller.
#[inline(never)]
fn walk(xstream: &Xstream, ult: UltPtr) {
    let Some(block) = ult.block() else { return };
    let mut capture = xstream.diag.capture.borrow_mut();
    let (low, bytes) = block.range();
    let high = low + bytes;
    let free_bytes = block.room_below(std::ptr::from_ref(&capture).addr());
    if free_bytes < ROOM_BYTES {
        capture.no_room = Some(free_bytes);
        return;
    }
    let Capture { pointers, frames_max, .. } = &mut *capture;
    let note = |frame: &::backtrace::Frame| {
        // Beyond the first frame of the ULT the walk would go on into the xstream.
        let is_ours = (low..high).contains(&frame.sp().addr());
        if is_ours && pointers.len() < *frames_max {
            pointers.push(frame.ip().addr());
        }
        is_ours && pointers.len() < *frames_max
    };
    // SAFETY:
    // - synchronised: the walk itself needs no lock of the crate, only naming does; the C library
    //   has its own for the list of loaded objects.
    unsafe { ::backtrace::trace_unsynchronized(note) };
}
