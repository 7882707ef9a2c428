//! Values that each unit has for itself.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{on, private, shared, within};
use ult::{JoinError, PoolRef, UltLocal};

/// Writes its name into a log when it is dropped.
struct Noted(&'static str, Option<Arc<Mutex<Vec<&'static str>>>>);

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(log) = &self.1 {
            log.lock().unwrap().push(self.0);
        }
    }
}

type Slot = RefCell<Option<Noted>>;

fn empty() -> Slot {
    RefCell::new(None)
}

static FIRST: UltLocal<Slot> = UltLocal::new(empty);
static SECOND: UltLocal<Slot> = UltLocal::new(empty);
static THIRD: UltLocal<Slot> = UltLocal::new(empty);
static NUMBER: UltLocal<Cell<u64>> = UltLocal::new(|| Cell::new(0));

#[test]
fn values_are_private_to_each_unit() {
    within(|| {
        let (runtime, pool) = shared(2);
        NUMBER.with(|number| number.set(77));
        let body = |n: u64| {
            move || {
                assert_eq!(NUMBER.with(Cell::get), 0, "the default");
                for round in 0..50 {
                    NUMBER.with(|number| number.set(number.get() + n));
                    if !ult::is_tasklet() {
                        ult::yield_now();
                    }
                    assert_eq!(NUMBER.with(Cell::get), n * (round + 1));
                }
            }
        };
        let handles: Vec<_> = (0..200u64)
            .map(|n| {
                let builder = if n % 3 == 0 { pool.tasklet() } else { pool.ult() };
                builder.spawn(body(n)).unwrap()
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(NUMBER.with(Cell::get), 77, "that of the thread");
        let other = std::thread::spawn(|| NUMBER.with(Cell::get));
        assert_eq!(other.join().unwrap(), 0);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn one_look_tells_whether_there_may_be_values() {
    static KEY: UltLocal<Cell<u32>> = UltLocal::new(|| Cell::new(0));
    let looks = || {
        let before = ult::integration::is_tasklet_or_has_locals();
        KEY.with(|value| value.set(1));
        (before, ult::integration::is_tasklet_or_has_locals())
    };
    within(move || {
        let (runtime, pool) = shared(1);
        assert_eq!(std::thread::spawn(looks).join().unwrap(), (false, true));
        assert_eq!(on(&pool, looks), (false, true));
        // Those of one unit are not of the next one.
        assert!(!on(&pool, ult::integration::is_tasklet_or_has_locals));
        assert!(
            pool.tasklet()
                .spawn(ult::integration::is_tasklet_or_has_locals)
                .unwrap()
                .join()
                .unwrap()
        );
        runtime.shutdown().unwrap();
    });
}

/// A unit's values are dropped by the unit, last made first, before its join returns.
#[test]
fn values_are_dropped_in_reverse_before_the_join() {
    within(|| {
        let (runtime, pools) = private(1);
        for is_tasklet in [false, true] {
            let log = Arc::new(Mutex::new(Vec::new()));
            let inner = log.clone();
            let body = move || {
                let fill = |key: &'static UltLocal<Slot>, name| {
                    let log = inner.clone();
                    key.with(|slot| *slot.borrow_mut() = Some(Noted(name, Some(log))));
                };
                fill(&SECOND, "second");
                fill(&FIRST, "first");
                fill(&THIRD, "third");
                assert!(inner.lock().unwrap().is_empty());
                // Replaced early: the old value goes at once.
                fill(&FIRST, "again");
                assert_eq!(*inner.lock().unwrap(), ["first"]);
            };
            let builder = if is_tasklet { pools[0].tasklet() } else { pools[0].ult() };
            builder.spawn(body).unwrap().join().unwrap();
            assert_eq!(*log.lock().unwrap(), ["first", "third", "again", "second"]);
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn values_go_whatever_way_the_unit_ends() {
    within(|| {
        let (runtime, pools) = private(1);
        let log = Arc::new(Mutex::new(Vec::new()));
        let fill = |name: &'static str| {
            let log = log.clone();
            move || FIRST.with(|slot| *slot.borrow_mut() = Some(Noted(name, Some(log))))
        };
        let panics = fill("panic");
        let handle = pools[0].spawn(move || {
            panics();
            panic!("ends");
        });
        assert!(matches!(handle.unwrap().join(), Err::<(), _>(JoinError::Panicked(_))));
        let exits = fill("exit");
        let handle = pools[0].spawn(move || {
            exits();
            ult::exit();
        });
        assert!(matches!(handle.unwrap().join(), Err::<(), _>(JoinError::Exited)));
        let cancelled = fill("cancel");
        let handle = pools[0].spawn(move || {
            cancelled();
            ult::park();
        });
        let handle = handle.unwrap();
        on(&pools[0], || ());
        handle.cancel();
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        let detached = fill("detached");
        pools[0].ult().spawn_detached(detached).unwrap();
        runtime.shutdown().unwrap();
        assert_eq!(*log.lock().unwrap(), ["panic", "exit", "cancel", "detached"]);
    });
}

#[test]
fn a_revived_unit_starts_with_new_values() {
    within(|| {
        let (runtime, pools) = private(1);
        let next = || {
            NUMBER.with(|number| {
                number.set(number.get() + 1);
                number.get()
            })
        };
        let (value, ended) = pools[0].spawn(next).unwrap().join_keep();
        assert_eq!(value.unwrap(), 1);
        let again = ended.unwrap().revive(&pools[0], next).unwrap();
        assert_eq!(again.join().unwrap(), 1);
        runtime.shutdown().unwrap();
    });
}

/// A destructor may use the key it belongs to, and others; what it makes is dropped as well.
#[test]
fn a_destructor_may_use_keys_wait_and_panic() {
    struct Busy(PoolRef, Arc<AtomicUsize>);
    impl Drop for Busy {
        fn drop(&mut self) {
            NUMBER.with(|number| number.set(5));
            ult::yield_now();
            ult::sleep(Duration::from_micros(100));
            assert_eq!(NUMBER.with(Cell::get), 5);
            self.1.fetch_add(on(&self.0, || 1), SeqCst);
            panic!("in a destructor of a value");
        }
    }
    static BUSY: UltLocal<RefCell<Option<Busy>>> = UltLocal::new(|| RefCell::new(None));
    static LAST: UltLocal<RefCell<Option<Busy>>> = UltLocal::new(|| RefCell::new(None));
    within(|| {
        let (runtime, pools) = private(1);
        for _ in 0..10 {
            let count = Arc::new(AtomicUsize::new(0));
            let busy = || Busy(pools[0].clone(), count.clone());
            let (one, two) = (busy(), busy());
            let handle = pools[0].spawn(move || {
                LAST.with(|slot| *slot.borrow_mut() = Some(one));
                BUSY.with(|slot| *slot.borrow_mut() = Some(two));
                3
            });
            assert_eq!(handle.unwrap().join().unwrap(), 3, "its value is not touched by that");
            assert_eq!(count.load(SeqCst), 2, "one panic does not keep the others");
        }
        runtime.shutdown().unwrap();
        assert_eq!(pools[0].total_len(), 0);
    });
}

#[test]
fn the_values_of_a_thread_may_panic_when_it_ends() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, SeqCst);
            std::panic::resume_unwind(Box::new("from a destructor"));
        }
    }
    static BOMBS: [UltLocal<Bomb>; 2] = [const { UltLocal::new(|| Bomb) }; 2];
    std::thread::spawn(|| BOMBS.iter().for_each(|bomb| bomb.with(|_| ()))).join().unwrap();
    assert_eq!(DROPPED.load(SeqCst), 2);
}

#[test]
fn an_initialiser_may_use_other_keys_and_panic() {
    static FAILS: UltLocal<Cell<u8>> = UltLocal::new(|| {
        NUMBER.with(|number| number.set(number.get() + 1));
        assert!(NUMBER.with(Cell::get) > 1, "not the first time");
        Cell::new(9)
    });
    within(|| {
        let (runtime, pools) = private(1);
        on(&pools[0], || {
            let first = std::panic::catch_unwind(|| FAILS.with(Cell::get));
            assert!(first.is_err());
            assert_eq!(FAILS.with(Cell::get), 9, "the next one tries again");
            assert_eq!(FAILS.with(Cell::get), 9);
            assert_eq!(NUMBER.with(Cell::get), 2);
        });
        runtime.shutdown().unwrap();
    });
}

/// Values go with a ULT that changes its xstream.
#[test]
fn values_move_with_a_migratable_ult() {
    within(|| {
        let (runtime, pools) = private(2);
        let inner = pools.clone();
        let body = move || {
            for round in 0..100u64 {
                assert_eq!(NUMBER.with(Cell::get), round);
                NUMBER.with(|number| number.set(round + 1));
                ult::set_pool(&inner[round as usize % 2]).unwrap();
                ult::yield_now();
            }
        };
        // SAFETY:
        // - nothing that is alive over a wait is bound to its thread.
        let handle = unsafe { pools[0].ult().spawn_migratable(body) };
        handle.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// Returns the values of a ULT, a tasklet and a delayed ULT that the caller spawns, before and
/// after it sets its own.
fn of_children(pool: &PoolRef) -> Vec<u64> {
    let delay = Duration::from_millis(1);
    let children = [
        pool.ult().spawn(ult::integration::inherited_word).unwrap(),
        pool.tasklet().spawn(ult::integration::inherited_word).unwrap(),
    ];
    let late = pool.spawn_after(delay, ult::integration::inherited_word).unwrap();
    let mut words: Vec<_> = children.into_iter().map(|child| child.join().unwrap()).collect();
    words.push(late.join().unwrap());
    words
}

#[test]
fn the_inherited_word_goes_to_units_that_are_spawned_later() {
    within(|| {
        for (runtime, pools) in [private(2), {
            let (runtime, pool) = shared(2);
            (runtime, vec![pool.clone(), pool])
        }] {
            let (first, second) = (pools[0].clone(), pools[1].clone());
            assert_eq!(of_children(&first), [0; 3], "of a thread without a word");
            let checked = first.clone().spawn(move || {
                assert_eq!(ult::integration::inherited_word(), 0);
                let early =
                    second.spawn_after(Duration::from_millis(5), ult::integration::inherited_word);
                ult::integration::set_inherited_word(7);
                // Into the own pool and into one of another xstream.
                assert_eq!(of_children(&first), [7; 3]);
                assert_eq!(of_children(&second), [7; 3]);
                let inner = second.clone();
                let child = second.spawn(move || {
                    ult::yield_now();
                    let grandchild = inner.spawn(ult::integration::inherited_word).unwrap();
                    ult::integration::set_inherited_word(8);
                    grandchild.join().unwrap()
                });
                assert_eq!(child.unwrap().join().unwrap(), 7);
                assert_eq!(ult::integration::inherited_word(), 7, "what a child sets is its own");
                assert_eq!(early.unwrap().join().unwrap(), 0);
            });
            checked.unwrap().join().unwrap();
            // Descriptors are reused; nothing is left in them.
            assert_eq!(of_children(&pools[0]), [0; 3]);
            ult::integration::set_inherited_word(3);
            assert_eq!(of_children(&pools[1]), [3; 3], "of a thread with one");
            ult::integration::set_inherited_word(0);
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn a_revived_unit_inherits_from_who_revives_it() {
    within(|| {
        let (runtime, pool) = shared(1);
        let first = pool.spawn(|| ult::integration::set_inherited_word(5)).unwrap();
        let (result, ended) = first.join_keep();
        result.unwrap();
        let ended = ended.unwrap();
        ult::integration::set_inherited_word(6);
        let again = ended.revive(&pool, ult::integration::inherited_word).unwrap();
        assert_eq!(again.join().unwrap(), 6);
        ult::integration::set_inherited_word(0);
        runtime.shutdown().unwrap();
    });
}

static SHADE: ult::integration::Inherited<u64> = ult::integration::Inherited::new();
static SHAPE: ult::integration::Inherited<(u8, [u64; 3])> = ult::integration::Inherited::new();

#[test]
fn inherited_values_go_to_units_of_every_kind() {
    within(|| {
        let (runtime, pools) = private(2);
        let (first, second) = (pools[0].clone(), pools[1].clone());
        let of_children = |pool: &PoolRef| {
            let children = [
                pool.ult().spawn(|| SHADE.get()).unwrap(),
                pool.tasklet().spawn(|| SHADE.get()).unwrap(),
            ];
            let late = pool.spawn_after(Duration::from_millis(1), || SHADE.get()).unwrap();
            let mut found: Vec<_> = children.into_iter().map(|ult| ult.join().unwrap()).collect();
            found.push(late.join().unwrap());
            found
        };
        let (inner, shape) = (second.clone(), (1, [2, 3, 4]));
        let checked = first.clone().spawn(move || {
            assert_eq!((SHADE.get(), ult::integration::inherited().has_values), (None, false));
            SHADE.set(None);
            assert!(!ult::integration::inherited().has_values, "removing nothing makes nothing");
            SHADE.set(Some(7));
            SHAPE.set(Some(shape));
            assert_eq!(of_children(&first), [Some(7); 3]);
            assert_eq!(of_children(&inner), [Some(7); 3]);
            let child = inner.clone().spawn(move || {
                ult::yield_now();
                SHADE.set(Some(8));
                assert_eq!(of_children(&inner), [Some(8); 3], "over two generations");
                SHAPE.get()
            });
            assert_eq!(child.unwrap().join().unwrap(), Some(shape));
            assert_eq!(SHADE.get(), Some(7), "what a child sets is its own");
            SHADE.set(None);
            assert_eq!(of_children(&first), [None; 3]);
            assert_eq!(SHAPE.get(), Some(shape));
            SHADE.set(Some(9));
            ult::integration::inherit_nothing(5);
            assert_eq!(
                (ult::integration::inherited_word(), SHADE.get(), SHAPE.get()),
                (5, None, None)
            );
            assert_eq!(of_children(&first), [None; 3]);
        });
        checked.unwrap().join().unwrap();
        // Descriptors are reused; nothing is left in them.
        assert_eq!(of_children(&pools[0]), [None; 3]);
        SHADE.set(Some(3));
        assert!(ult::integration::inherited().has_values);
        assert_eq!(of_children(&pools[1]), [Some(3); 3], "of a thread");
        ult::integration::inherit_nothing(0);
        assert!(!ult::integration::inherited().has_values);
        assert_eq!(of_children(&pools[1]), [None; 3]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_revived_unit_has_nothing_of_its_former_life() {
    within(|| {
        let (runtime, pool) = shared(1);
        let first = pool.spawn(|| SHADE.set(Some(5))).unwrap();
        let (result, ended) = first.join_keep();
        result.unwrap();
        let again = ended.unwrap().revive(&pool, || SHADE.get()).unwrap();
        let (found, ended) = again.join_keep();
        assert_eq!(found.unwrap(), None);
        SHADE.set(Some(6));
        let again = ended.unwrap().revive(&pool, || SHADE.get()).unwrap();
        assert_eq!(again.join().unwrap(), Some(6));
        SHADE.set(None);
        runtime.shutdown().unwrap();
    });
}
