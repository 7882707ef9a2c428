//! ULTs that end while their memory is lent: after a cancel or a panic, too, the owner gets the
//! memory back only when the last transfer is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bulk_support::idle::idle_owner;
use crate::bulk_support::{self, Mover, Node, PATIENCE, pattern};
use crate::common::{bounded, builder};
use margo::hg::{BulkOp, HgOptions};
use margo::{Access, Addr, Bulk, Instance};
use na::LocalMem;

const LIMIT: Duration = Duration::from_millis(20);

/// More than sockets hold.
const LEN: usize = 32 << 20;

/// Sets its flag when it is dropped.
struct Left(Arc<AtomicBool>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst); // pair: TEST-LEFT
    }
}

/// Lets every ULT of the pool that can run, run.
fn let_them_run(instance: &Instance) {
    for _ in 0..100 {
        instance.layout().rpc_pool().spawn(ult::yield_now).unwrap().join().unwrap();
    }
}

/// Also when the owner, which may be writing, does not answer: the buffer is left to the transfer
/// until that ends.
#[test]
fn a_cancelled_ult_leaves_whether_or_not_the_owner_answers() {
    bounded("cancelled transfers", || {
        for (push, turned) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut owner, _lent, bulk, mover, addr) = idle_owner("na+sm://", LEN);
            let left = Arc::new(AtomicBool::new(false));
            let (instance, guard) = (mover.clone(), Left(left.clone()));
            let started = mover.monitoring().stats().bulk_transfers;
            let transfer = mover.layout().rpc_pool().spawn(move || {
                // Dropped after the buffer's borrow has ended.
                let _guard = guard;
                let mut buffer = instance.memory().bulk_buffer(LEN).unwrap();
                let _ = match push {
                    false => instance.pull(&addr, &bulk, 0, &mut buffer, 0..LEN),
                    true => instance.push(&addr, &bulk, 0, &mut buffer, 0..LEN),
                };
            });
            let transfer = transfer.unwrap();
            while mover.monitoring().stats().bulk_transfers == started {
                std::thread::yield_now();
            }
            let_them_run(&mover);
            assert!(!left.load(Ordering::SeqCst), "nobody has cancelled it"); // pair: TEST-LEFT
            transfer.cancel();
            while !transfer.is_finished() {
                if turned {
                    owner.turn();
                } else {
                    std::thread::yield_now();
                }
            }
            let end = transfer.join();
            let is_cancelled = matches!(end, Err(ult::JoinError::Cancelled));
            // The answer may come as the cancel does, and then it ends of itself.
            assert!(is_cancelled || turned && end.is_ok(), "{end:?}");
            assert!(left.load(Ordering::SeqCst)); // pair: TEST-LEFT
            mover.finalize_and_wait().unwrap();
        }
    });
}

/// A node that reads `LEN` bytes of `lender` when it is turned, and the address of the lender.
fn reader_of(lender: &Instance) -> (Node, Addr, LocalMem) {
    let mut options = HgOptions::default();
    options.bulk_chunk_bytes = LEN as u64;
    let reader = Node::open("na+tcp://127.0.0.1:0", true, options);
    let own = reader.core.lookup(lender.self_addr().uri()).unwrap();
    let local = reader.expose(vec![vec![0; LEN]], Access::ReadOnly);
    (reader, own, local)
}

/// Begins transfer 1. Some of it is there then, so the lender has begun; most of it is not, as
/// nobody reads.
fn begin_to_read(reader: &Node, own: &Addr, bulk: &Bulk, local: &LocalMem) {
    let core = &reader.core;
    core.transfer(BulkOp::Pull, own, bulk, 0, local, 0, LEN as u64, 1).unwrap();
    let mut byte = [0];
    let deadline = Instant::now() + PATIENCE;
    while byte == [0] {
        reader.core.progress(1).unwrap();
        assert!(local.read_at(1, &mut byte));
        assert!(Instant::now() < deadline, "the transfer does not begin");
    }
}

/// How the closure of a scope ends while a peer is reading.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Return,
    Panic,
    Cancel,
}

/// Also when progress runs on the same execution stream: what waits must not hold it up.
// Slow: three transfers of much memory, all of which is compared.
#[test]
fn a_scope_ends_after_the_transfers_that_use_it() {
    for end in [End::Return, End::Panic, End::Cancel] {
        bounded("the end of a scope", move || {
            let lender = builder("na+tcp://127.0.0.1:0").start().unwrap();
            let (mut reader, own, local) = reader_of(&lender);
            let (sender, receiver) = std::sync::mpsc::channel::<Bulk>();
            let begun = Arc::new(ult::Eventual::<()>::new());
            let (instance, wait) = (lender.clone(), begun.clone());
            let left = Arc::new(AtomicBool::new(false));
            let guard = Left(left.clone());
            let scope = lender.layout().rpc_pool().spawn(move || {
                let _guard = guard;
                let data = pattern(LEN, 0);
                instance.memory().expose_ref(&data, |bulk| {
                    sender.send(bulk.clone()).unwrap();
                    wait.wait();
                    assert!(end != End::Panic, "in the scope");
                })
            });
            let scope = scope.unwrap();
            let bulk = receiver.recv().unwrap();
            begin_to_read(&reader, &own, &bulk, &local);
            let deadline = Instant::now() + PATIENCE;
            match end {
                End::Cancel => scope.cancel(),
                _ => begun.set(()).unwrap(),
            }
            let_them_run(&lender);
            assert!(!left.load(Ordering::SeqCst), "it is still read"); // pair: TEST-LEFT
            while !scope.is_finished() || reader.log.bulks.is_empty() {
                reader.turn();
                assert!(Instant::now() < deadline, "the scope does not end");
            }
            let mover = Mover {
                op: BulkOp::Pull,
                bulk: &bulk,
                remote_offset: 0,
                local: &local,
                local_offset: 0,
                len: LEN as u64,
                owner: Some(&own),
            };
            // What had begun came through whole, and nothing begins any more.
            assert!(reader.bulk_end(1).unwrap().is_ok());
            assert!(bulk_support::contents(&local) == pattern(LEN, 0));
            let core = &reader.core;
            core.transfer(mover.op, &own, &bulk, 0, &local, 0, mover.len, 2).unwrap();
            while reader.log.bulks.is_empty() {
                reader.turn();
            }
            assert!(reader.bulk_end(2).unwrap().is_err());
            let joined = scope.join();
            match end {
                End::Return => joined.unwrap().unwrap(),
                End::Panic => assert!(matches!(joined, Err(ult::JoinError::Panicked(_)))),
                End::Cancel => assert!(matches!(joined, Err(ult::JoinError::Cancelled))),
            }
            lender.finalize_and_wait().unwrap();
        });
    }
}

/// It is not lost by that, and the peer's transfer neither.
#[test]
fn a_release_gives_up_in_time_and_can_go_on() {
    bounded("a release with a limit", || {
        let lender = builder("na+tcp://127.0.0.1:0").start().unwrap();
        let (mut reader, own, local) = reader_of(&lender);
        let lent = lender.expose(pattern(LEN, 0), Access::ReadOnly).unwrap();
        begin_to_read(&reader, &own, lent.bulk(), &local);
        let started = Instant::now();
        let releasing = lent.release_timed(LIMIT).unwrap_err();
        assert!(started.elapsed() >= LIMIT);
        assert!(releasing.to_string().contains("is still used by a transfer"), "{releasing}");
        let releasing = releasing.wait_timed(Duration::ZERO).unwrap_err();
        // A tasklet only looks.
        let look = lender.layout().rpc_pool().tasklet().spawn(move || releasing.wait()).unwrap();
        let releasing = look.join().unwrap().unwrap_err();
        assert!(!releasing.is_lost());
        // What nobody uses comes at once.
        let unused = lender.expose(vec![7; 8], Access::ReadOnly).unwrap();
        assert_eq!(unused.release_timed(Duration::ZERO).unwrap(), [7; 8]);
        let deadline = Instant::now() + PATIENCE;
        while reader.log.bulks.is_empty() {
            reader.turn();
            assert!(Instant::now() < deadline, "the transfer does not end");
        }
        assert!(reader.bulk_end(1).unwrap().is_ok());
        assert!(releasing.wait_timed(PATIENCE).unwrap() == pattern(LEN, 0));
        assert!(bulk_support::contents(&local) == pattern(LEN, 0));
        lender.finalize_and_wait().unwrap();
    });
}

#[test]
fn a_tasklet_that_takes_memory_back_too_early_panics_and_does_not_block() {
    bounded("a release in a tasklet", || {
        let lender = builder("na+tcp://127.0.0.1:0").start().unwrap();
        let pool = lender.layout().rpc_pool();
        let (mut reader, own, local) = reader_of(&lender);
        let lent = lender.expose(pattern(LEN, 0), Access::ReadOnly).unwrap();
        begin_to_read(&reader, &own, lent.bulk(), &local);
        let release = pool.tasklet().spawn(move || drop(lent.release().unwrap())).unwrap();
        let Err(ult::JoinError::Panicked(panic)) = release.join() else { panic!("it has waited") };
        assert!(panic.message().contains("a tasklet cannot wait for a bulk"));
        // The reader loses nothing by it.
        let deadline = Instant::now() + PATIENCE;
        while reader.log.bulks.is_empty() {
            reader.turn();
            assert!(Instant::now() < deadline, "the transfer does not end");
        }
        assert!(reader.bulk_end(1).unwrap().is_ok());
        assert!(bulk_support::contents(&local) == pattern(LEN, 0));
        // Memory that nobody uses comes back in a tasklet as well.
        let lent = lender.expose(vec![7; 8], Access::ReadOnly).unwrap();
        let release = pool.tasklet().spawn(move || lent.release().unwrap()).unwrap();
        assert_eq!(release.join().unwrap(), [7; 8]);
        lender.finalize_and_wait().unwrap();
    });
}
