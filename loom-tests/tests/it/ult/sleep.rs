//! A push to a pool looks at one count before it looks at the xstreams. Can it miss one that falls
//! asleep?
//!
//! A model of `RuntimeCore::wake_one` and `Xstream::sleep`, with the real park word.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::sync::atomic::{AtomicUsize, fence};
use loom::thread;
use margo_loom_tests::check_bounded;
use ult::loom_exports::{ParkMode, ParkWord};

struct Core {
    sleeping: AtomicUsize,
    /// Units in the two pools; all relaxed, so nothing but the fences orders them.
    pools: [AtomicUsize; 2],
    xstreams: [ParkWord; 2],
}

impl Core {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            sleeping: AtomicUsize::new(0),
            pools: [AtomicUsize::new(0), AtomicUsize::new(0)],
            xstreams: [ParkWord::new(), ParkWord::new()],
        })
    }

    fn push(&self, pool: usize, servers: &[usize]) {
        self.pools[pool].fetch_add(1, Relaxed);
        self.wake_one(servers);
    }

    fn wake_one(&self, servers: &[usize]) {
        fence(SeqCst);
        if self.sleeping.load(Relaxed) == 0 {
            return;
        }
        for &server in servers {
            let word = &self.xstreams[server];
            if word.looks_asleep() && word.notify().is_some() {
                return word.wake_futex();
            }
        }
    }

    fn take(&self, pool: usize) -> bool {
        let mut len = self.pools[pool].load(Relaxed);
        while len > 0 {
            match self.pools[pool].compare_exchange(len, len - 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(seen) => len = seen,
            }
        }
        false
    }

    /// `true`: somebody woke it.
    fn sleep(&self, me: usize, pools: &[usize]) -> bool {
        self.sleeping.fetch_add(1, Relaxed);
        let word = &self.xstreams[me];
        let mut is_woken = false;
        if word.begin(ParkMode::Futex) {
            if pools.iter().all(|pool| self.pools[*pool].load(Relaxed) == 0) {
                word.sleep_futex(None);
            }
            is_woken = word.end();
        }
        self.sleeping.fetch_sub(1, Relaxed);
        is_woken
    }
}

#[test]
fn the_count_hides_no_sleeper() {
    check_bounded(3, || {
        let core = Core::new();
        let sleeper = {
            let core = core.clone();
            thread::spawn(move || {
                while !core.take(0) {
                    core.sleep(0, &[0]);
                }
            })
        };
        core.push(0, &[0]);
        sleeper.join().unwrap();
    });
}

/// Another xstream comes and goes, which makes the count go up and down.
#[test]
fn the_count_hides_no_sleeper_behind_another() {
    check_bounded(3, || {
        let core = Core::new();
        let other = {
            let core = core.clone();
            thread::spawn(move || {
                while !core.take(1) {
                    core.sleep(1, &[1]);
                }
            })
        };
        let sleeper = {
            let core = core.clone();
            thread::spawn(move || {
                while !core.take(0) {
                    core.sleep(0, &[0]);
                }
            })
        };
        core.push(1, &[1]);
        core.push(0, &[0]);
        other.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// Both serve pool 0, and one of them its own pool 1 first. If the one that was woken for the unit
/// in pool 0 finds a unit in pool 1, which may be a long one, it wakes the other.
#[test]
fn a_busy_one_passes_the_wake_on() {
    // Three preemptions take minutes.
    check_bounded(2, || {
        let core = Core::new();
        let busy = {
            let core = core.clone();
            thread::spawn(move || {
                loop {
                    if core.take(1) {
                        // It never comes to pool 0 again.
                        return;
                    }
                    if core.take(0) {
                        // For the other one, so that this one is not missed.
                        core.push(0, &[1]);
                        return;
                    }
                    if core.sleep(0, &[1, 0]) && core.pools[0].load(Relaxed) > 0 {
                        core.wake_one(&[1]);
                    }
                }
            })
        };
        let free = {
            let core = core.clone();
            thread::spawn(move || {
                while !core.take(0) {
                    core.sleep(1, &[0]);
                }
            })
        };
        core.push(0, &[0, 1]);
        core.push(1, &[0]);
        busy.join().unwrap();
        free.join().unwrap();
    });
}
