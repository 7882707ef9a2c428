//! Is each transfer that was done at once reported once, in order, after its bytes are there?
//! That no report is left behind by a poll of another thread is in `biased_lock.rs`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use na_sm::wake::reports::{Reports, SLOTS};

/// More than a queue holds.
const OPS: usize = SLOTS + 1;

/// Bytes that each operation has copied. They are cells, so that an access that nothing orders is
/// reported.
struct Shared {
    reports: Reports<1>,
    bytes: [UnsafeCell<u32>; OPS],
}

// SAFETY: the model reports any access that is not ordered.
unsafe impl Sync for Shared {}

impl Shared {
    /// How many operations were left here.
    fn transfer(&self) -> u64 {
        let done = (0..OPS).take_while(|op| {
            // SAFETY: the model reports any other access meanwhile.
            self.bytes[*op].with_mut(|bytes| unsafe { *bytes += 1 });
            self.reports.leave(0, *op as u64)
        });
        done.count() as u64
    }

    fn take(&self) -> Option<u64> {
        let op = self.reports.take(0)?;
        // SAFETY: the model reports a write meanwhile.
        assert_eq!(self.bytes[op as usize].with(|bytes| unsafe { *bytes }), 1, "not there");
        Some(op)
    }
}

#[test]
fn each_report_is_taken_once_in_order() {
    check(|| {
        let bytes = std::array::from_fn(|_| UnsafeCell::new(0));
        let shared = Arc::new(Shared { reports: Reports::new(), bytes });
        let theirs = shared.clone();
        let sender = thread::spawn(move || theirs.transfer());
        let mut taken: Vec<u64> = Vec::new();
        for _ in 0..3 {
            taken.extend(shared.take());
            thread::yield_now();
        }
        let left = sender.join().unwrap();
        taken.extend(std::iter::from_fn(|| shared.take()));
        assert!(taken.into_iter().eq(0..left));
        assert!(left >= SLOTS as u64, "there was room");
    });
}
