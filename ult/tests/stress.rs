//! Random programs over the whole crate, by seed.
//!
//! Each seed makes a runtime of random pools, xstreams and schedulers, some of which panic now and
//! then, as does whatever takes the log; units that spawn, wait, move, cancel, panic and end in all
//! ways that there are; and a thread that changes the layout meanwhile. The decisions of every unit
//! follow from the seed; how they interleave does not.
//!
//! What must hold: every unit ends exactly once, in a way that somebody asked for; closures and
//! values are dropped once; no unit runs on two threads at a time, and only migratable ones change
//! theirs; locks exclude, channels lose nothing, the books of the pools add up, and the shutdown
//! succeeds and leaves no stack.
//!
//! `MARGO_STRESS_SEEDS=from..to` chooses the seeds. A failing one prints how to repeat it.
#![allow(clippy::unwrap_used, reason = "test code, unknown as such to the lint")]

#[path = "stress/layout.rs"]
mod layout;
#[path = "stress/rude.rs"]
mod rude;
#[path = "stress/unit.rs"]
mod unit;
#[path = "stress/world.rs"]
mod world;

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Seeds of an ordinary test run.
const SEEDS: Range<u64> = 0..60;
/// Far beyond what one seed needs.
const LIMIT: Duration = Duration::from_secs(60);
const PARTS: u32 = 600;

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("MARGO_STRESS_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("MARGO_STRESS_SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

/// In small parts, so that a pause of the process does not count.
fn wait_for<T>(result: &Receiver<T>) -> Result<T, RecvTimeoutError> {
    for _ in 0..PARTS {
        match result.recv_timeout(LIMIT / PARTS) {
            Err(RecvTimeoutError::Timeout) => {}
            result => return result,
        }
    }
    Err(RecvTimeoutError::Timeout)
}

fn repeat(seed: u64) -> String {
    format!(
        "seed {seed}; repeat it with MARGO_STRESS_SEEDS={seed}..{} \
         cargo test -p margo-ult --test stress",
        seed + 1
    )
}

#[test]
fn random_programs_keep_every_promise() {
    world::watch_panics();
    rude::take_the_log();
    for seed in seeds() {
        let (done, result) = channel();
        let thread = std::thread::spawn(move || {
            let problems = layout::run(seed);
            let _ = done.send(problems);
        });
        match wait_for(&result) {
            Ok(problems) => {
                thread.join().unwrap();
                assert!(problems.is_empty(), "{}:\n{}", repeat(seed), problems.join("\n"));
            }
            Err(RecvTimeoutError::Timeout) => panic!("no end after {LIMIT:?}: {}", repeat(seed)),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{:?}: {}", thread.join().err().map(|_| "panicked"), repeat(seed))
            }
        }
    }
}
