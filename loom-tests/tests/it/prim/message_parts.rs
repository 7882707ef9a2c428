//! Is a block of messages used again, and its memory freed once, only after all that was done with
//! its parts?

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use prim::parts::ReturnedParts;

/// A block; the model reports accesses that are not ordered.
struct Block {
    parts: ReturnedParts,
    /// How often its bytes were written anew.
    rounds: UnsafeCell<u32>,
    frees: UnsafeCell<u32>,
}

impl Block {
    fn new() -> Arc<Self> {
        let (rounds, frees) = (UnsafeCell::new(0), UnsafeCell::new(0));
        Arc::new(Self { parts: ReturnedParts::new(), rounds, frees })
    }

    /// For the holder of a part.
    fn read_and_give_back(&self) {
        // SAFETY: read only, and the model reports a writer meanwhile.
        self.rounds.with(|rounds| assert!(unsafe { *rounds } <= 1));
        if self.parts.come_back() {
            self.free();
        }
    }

    fn write_anew(&self) {
        // SAFETY: the model reports any other access meanwhile.
        self.rounds.with_mut(|rounds| unsafe { *rounds += 1 });
    }

    fn free(&self) {
        self.write_anew();
        // SAFETY: the model reports any other access meanwhile.
        self.frees.with_mut(|frees| unsafe { *frees += 1 });
    }

    /// After all threads.
    fn check_freed(&self) {
        // SAFETY: the other threads are gone.
        self.frees.with(|frees| assert_eq!(unsafe { *frees }, 1));
    }
}

#[test]
fn a_block_is_carved_again_after_its_parts_are_back() {
    loom::model(|| {
        let block = Block::new();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let block = block.clone();
                thread::spawn(move || block.read_and_give_back())
            })
            .collect();
        let mut given = 2;
        if block.parts.are_back(given) {
            block.write_anew();
            given += 1;
            block.read_and_give_back();
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(block.parts.are_back(given));
        assert!(block.parts.leave(given));
        block.free();
        block.check_freed();
    });
}

#[test]
fn the_last_of_parts_and_carver_frees_the_block() {
    for given in 1..=2 {
        loom::model(move || {
            let block = Block::new();
            let others: Vec<_> = (0..given)
                .map(|_| {
                    let block = block.clone();
                    thread::spawn(move || block.read_and_give_back())
                })
                .collect();
            if block.parts.leave(given) {
                block.free();
            }
            others.into_iter().for_each(|other| other.join().unwrap());
            block.check_freed();
        });
    }
}
