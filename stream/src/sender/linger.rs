//! The ULT that sends batches which have waited long enough for further items.

use std::sync::Weak;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use ult::channel;

use crate::sender::state::Shared;

/// Runs until the sender is gone.
pub(super) fn run(sender: &Weak<Shared>, bell: &channel::Receiver<()>) {
    let mut seen = Vec::new();
    while bell.recv().is_ok() {
        while let Some(shared) = sender.upgrade()
            && look(&shared, &mut seen)
        {
            let linger = shared.spec.linger;
            drop(shared);
            ult::sleep(linger);
            let Some(shared) = sender.upgrade() else { return };
            send(&shared, &seen);
        }
    }
}

/// Looks at the open batches; false if there is none, and the bell will ring for the next one.
fn look(shared: &Shared, seen: &mut Vec<u64>) -> bool {
    let mut look = || {
        seen.clear();
        seen.extend(shared.since.iter().map(|since| since.load(Relaxed)));
        seen.iter().any(|since| *since != 0)
    };
    if look() {
        return true;
    }
    // pair: STREAM-LINGER. A batch whose sender has found `true` is seen now.
    shared.looks.swap(false, AcqRel);
    look() && !shared.looks.swap(true, AcqRel)
}

/// Sends the batches that are still those which were seen. One whose link has no credit goes later.
fn send(shared: &Shared, seen: &[u64]) {
    let is_same = |at: usize| shared.since[at].load(Relaxed) == seen[at];
    for at in (0..seen.len()).filter(|at| seen[*at] != 0) {
        // The program is about to send: then it goes with that, or at the next look.
        if is_same(at)
            && let Some(mut state) = shared.state.try_lock()
            && is_same(at)
        {
            // An error is for the program, whose next call gets it.
            let _ = state.go(at, shared);
        }
    }
}
