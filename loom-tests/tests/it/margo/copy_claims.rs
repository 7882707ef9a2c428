//! Is every part of a copy copied once, and does no thread copy any more when the copy is reported
//! as done?
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a model")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;

#[path = "../../../../src/memory/copy_claims.rs"]
mod copy_claims;

use copy_claims::Claims;

const PARTS: usize = 3;

struct Copy {
    claims: Claims,
    parts: [UnsafeCell<u32>; PARTS],
}

// SAFETY: who has claimed a part has it alone; the model reports the opposite.
unsafe impl Sync for Copy {}
// SAFETY: as for `Sync`.
unsafe impl Send for Copy {}

impl Copy {
    fn take_part(&self) {
        while let Some(part) = self.claims.claim() {
            // SAFETY: claimed by this thread alone; the model reports any other access meanwhile.
            self.parts[part].with_mut(|copied| unsafe { *copied += 1 });
            self.claims.finish();
        }
    }
}

#[test]
fn the_end_shows_all_parts_and_nobody_comes_after_it() {
    check(|| {
        let parts = std::array::from_fn(|_| UnsafeCell::new(0));
        let copy = Arc::new(Copy { claims: Claims::new(PARTS), parts });
        let helpers =
            [copy.clone(), copy.clone()].map(|helper| thread::spawn(move || helper.take_part()));
        copy.take_part();
        while !copy.claims.is_over() {
            thread::yield_now();
        }
        for part in &copy.parts {
            // Written, so that a helper that still touched it would be reported.
            // SAFETY: the copy is over; the model reports any other access.
            part.with_mut(|copied| unsafe {
                assert_eq!(*copied, 1);
                *copied = 7;
            });
        }
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    });
}
