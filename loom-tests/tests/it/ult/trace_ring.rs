//! Can a reader of a trace ring take a half-overwritten event for a whole one, or miss one?

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::loom_exports::Ring;

/// Two slots: the reader leaves out the slot that event 3 overwrites by counting, and the one that
/// event 4 overwrites only if it cannot miss the length before that.
#[test]
fn a_reader_gets_whole_events_in_order() {
    check(|| {
        let ring = Arc::new(Ring::new(1));
        let reader = {
            let ring = ring.clone();
            thread::spawn(move || {
                let read = ring.read();
                for (event, at) in read.events.iter().zip(read.dropped + 1..) {
                    assert_eq!(*event, [at, at + 10, at + 20]);
                }
            })
        };
        (1..=4).for_each(|at| ring.push([at, at + 10, at + 20]));
        reader.join().unwrap();
        let read = ring.read();
        assert_eq!((read.events, read.dropped), (vec![[4, 14, 24]], 3));
    });
}
