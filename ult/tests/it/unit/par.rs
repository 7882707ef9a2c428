//! Loops over indices, by pieces that are cut while they run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};

use crate::common::{on, shared, within};
use ult::{Barrier, par};

/// Sees each index of a range as often as it is called with it.
struct Seen(Vec<AtomicU8>);

impl Seen {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU8::new(0)).collect())
    }

    fn see(&self, index: usize) {
        self.0[index].fetch_add(1, SeqCst);
    }

    fn once(&self) -> bool {
        self.0.iter().all(|seen| seen.load(SeqCst) == 1)
    }
}

#[test]
fn each_index_is_seen_once() {
    within(|| {
        for xstreams in [1, 3] {
            let (runtime, pool) = shared(xstreams);
            for len in [0, 1, 2, 3, 100, 10_001] {
                on(&pool, move || {
                    let seen = Seen::new(len);
                    par::for_each_index(0..len, |i| seen.see(i));
                    assert!(seen.once());
                    let seen = Seen::new(len);
                    par::for_each_chunk(5..5 + len, 7, |piece| {
                        assert!((1..=7).contains(&piece.len()));
                        piece.for_each(|i| seen.see(i - 5));
                    });
                    assert!(seen.once());
                });
            }
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn results_are_put_together_in_order() {
    within(|| {
        let all: String = (0..500).map(|i| format!("{i},")).collect();
        let words = || {
            let map =
                |piece: std::ops::Range<usize>| piece.map(|i| format!("{i},")).collect::<String>();
            par::map_reduce(0..500, map, |left, right| left + &right)
        };
        assert_eq!(words(), all, "on an OS thread");
        for xstreams in [1, 4] {
            let (runtime, pool) = shared(xstreams);
            assert_eq!(on(&pool, words), all);
            assert_eq!(on(&pool, || par::map_reduce(3..3, |piece| piece.len(), |a, b| a + b)), 0);
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn on_one_xstream_the_range_is_one_piece() {
    within(|| {
        let (runtime, pool) = shared(1);
        let pieces = on(&pool, || {
            let pieces = Mutex::new(Vec::new());
            par::for_each_chunk(0..1000, usize::MAX, |piece| {
                pieces.lock().unwrap().push((piece.start, piece.end));
            });
            pieces.into_inner().unwrap()
        });
        assert_eq!(pieces, [(0, 1000)]);
        assert_eq!(pool.stats().created, 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn pieces_of_one_wait_for_each_other() {
    within(|| {
        for xstreams in [1, 2] {
            let (runtime, pool) = shared(xstreams);
            on(&pool, || {
                let all = Barrier::new(20).unwrap();
                par::for_each_chunk(0..20, 1, |_| _ = all.wait());
            });
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn the_panic_of_the_lowest_piece_goes_on() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (with, seen) = on(&pool, || {
            let seen = AtomicUsize::new(0);
            let panics = catch_unwind(AssertUnwindSafe(|| {
                par::for_each_chunk(0..64, 1, |piece| {
                    seen.fetch_add(1, SeqCst);
                    if piece.start % 20 == 13 {
                        resume_unwind(Box::new(piece.start));
                    }
                });
            }));
            (*panics.unwrap_err().downcast::<usize>().unwrap(), seen.into_inner())
        });
        assert_eq!((with, seen), (13, 64));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn pieces_without_indices_are_refused() {
    let refused = catch_unwind(|| par::for_each_chunk(0..3, 0, |_| ()));
    assert!(refused.unwrap_err().downcast::<&str>().unwrap().contains("without indices"));
}
