//! Large copies in which the execution streams of a pool take part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::bulk_support;
use crate::common::{bounded, builder};
use margo::{
    Access, Bulk, Exposed, Instance, bulk_memory::AllocOptions, bulk_memory::Exposable,
    bulk_memory::SharedBuffer,
};

const BYTES: usize = 8 << 20;

/// An instance whose copies a pool with two execution streams takes part in.
fn start(listen: bool) -> Instance {
    margo::init(&format!(
        r#"{{ "argobots": {{ "pools": [ {{ "name": "__primary__" }}, {{ "name": "copy" }} ],
            "xstreams": [ {{ "name": "__primary__", "scheduler": {{ "pools": ["__primary__"] }} }},
                          {{ "name": "c0", "scheduler": {{ "pools": ["copy"] }} }},
                          {{ "name": "c1", "scheduler": {{ "pools": ["copy"] }} }} ] }},
            "margo": {{ "listen": {listen}, "bulk": {{ "copy_pool": "copy" }} }} }}"#
    ))
    .unwrap()
}

fn pattern(seed: u8) -> Vec<u8> {
    bulk_support::pattern(BYTES, seed.into())
}

/// Memory that the peer maps, so that the copy is in user space.
fn memory(instance: &Instance, bytes: &[u8]) -> Exposed<SharedBuffer> {
    let mut buffer = instance.alloc(bytes.len(), &AllocOptions::default()).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(bytes);
    instance.expose(buffer, Access::ReadWrite).unwrap()
}

fn bytes_of<B: Exposable>(exposed: &Exposed<B>) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    exposed.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn tasklets_of_the_pool_take_part_and_the_bytes_are_right() {
    bounded("copies", || {
        let (owner, mover) = (start(true), start(false));
        let lent = memory(&owner, &pattern(1));
        let own = memory(&mover, &[0; BYTES]);
        let to = mover.lookup(owner.self_addr().uri()).unwrap();
        mover.pull(&to, lent.bulk(), 0, &mut &own, 0..BYTES).unwrap();
        assert!(bytes_of(&own) == pattern(1));
        own.write_at(0, &pattern(2)).unwrap();
        mover.push(&to, lent.bulk(), 0, &mut &own, 0..BYTES).unwrap();
        assert!(bytes_of(&lent) == pattern(2));
        // At the owner, which is who copies: two for each of two times eight chunks.
        let helpers = owner.layout().pool("copy").unwrap().stats().created;
        assert!(helpers >= 16, "{helpers} tasklets");
        mover.finalize_and_wait().unwrap();
        owner.finalize_and_wait().unwrap();
    });
}

#[test]
fn they_take_part_for_plain_memory_too() {
    bounded("copies", || {
        let (owner, mover) = (start(true), start(false));
        let lent = owner.expose(pattern(1), Access::ReadWrite).unwrap();
        let own = mover.expose(vec![0; BYTES], Access::ReadWrite).unwrap();
        let to = mover.lookup(owner.self_addr().uri()).unwrap();
        let pool = owner.layout().pool("copy").unwrap();
        // Some go through the ring: which way is cheaper is tried out.
        while pool.stats().created < 16 {
            own.write_at(0, &[0; BYTES]).unwrap();
            mover.pull(&to, lent.bulk(), 0, &mut &own, 0..BYTES).unwrap();
            assert!(bytes_of(&own) == pattern(1));
        }
        own.write_at(0, &pattern(2)).unwrap();
        while pool.stats().created < 48 {
            lent.write_at(0, &[0; BYTES]).unwrap();
            mover.push(&to, lent.bulk(), 0, &mut &own, 0..BYTES).unwrap();
            assert!(bytes_of(&lent) == pattern(2));
        }
        mover.finalize_and_wait().unwrap();
        owner.finalize_and_wait().unwrap();
    });
}

#[test]
fn without_the_key_nobody_helps() {
    bounded("a copy", || {
        let owner = builder("na+sm://").rpc_thread_count(1).start().unwrap();
        let mover = builder("na+sm://").listen(false).start().unwrap();
        let (lent, own) = (memory(&owner, &pattern(3)), memory(&mover, &[0; BYTES]));
        let to = mover.lookup(owner.self_addr().uri()).unwrap();
        mover.pull(&to, lent.bulk(), 0, &mut &own, 0..BYTES).unwrap();
        assert!(bytes_of(&own) == pattern(3));
        assert_eq!(owner.layout().rpc_pool().stats().created, 0);
        mover.finalize_and_wait().unwrap();
        owner.finalize_and_wait().unwrap();
    });
}

/// ULTs that are cancelled at whatever moment of their transfers.
// Slow: 20 rounds with 8 MiB, all of which is written and looked at several times.
#[test]
fn cancelled_transfers_leave_the_memory_alone() {
    bounded("cancels", || {
        let (owner, mover) = (start(true), start(false));
        let lent = memory(&owner, &pattern(4));
        let to = mover.lookup(owner.self_addr().uri()).unwrap();
        for round in 0..20u32 {
            let own = Arc::new(memory(&mover, &[0; BYTES]));
            let (begun, into) = (Arc::new(AtomicBool::new(false)), own.clone());
            let pull = {
                let (mover, to, bulk) = (mover.clone(), to.clone(), lent.bulk().clone());
                let begun = begun.clone();
                mover.layout().rpc_pool().spawn(move || {
                    begun.store(true, Ordering::Relaxed);
                    mover.pull(&to, &bulk, 0, &mut &*into, 0..BYTES)
                })
            };
            let pull = pull.unwrap();
            while !begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            // Not by yielding: each yield takes as long as others want the processor.
            (0..round * 10_000).for_each(|_| std::hint::spin_loop());
            pull.cancel();
            let ended = pull.join();
            // Nobody writes any more, whichever way it ended.
            let after = bytes_of(&own);
            own.write_at(0, &pattern(5)).unwrap();
            assert!(bytes_of(&own) == pattern(5));
            if let Ok(Ok(())) = ended {
                assert!(after == pattern(4));
            }
        }
        mover.finalize_and_wait().unwrap();
        owner.finalize_and_wait().unwrap();
    });
}

/// Threads that pull until that is over, each into memory of `make`, and take that back then. They
/// have begun.
fn pulls<B: Exposable>(
    mover: &Instance,
    owner: &Instance,
    bulk: &Bulk,
    make: impl Fn() -> Exposed<B>,
) -> Vec<JoinHandle<()>> {
    let to = mover.lookup(owner.self_addr().uri()).unwrap();
    let begun = Arc::new(AtomicBool::new(false));
    let pull = |own: Exposed<B>| {
        let (mover, to, bulk, begun) = (mover.clone(), to.clone(), bulk.clone(), begun.clone());
        std::thread::spawn(move || {
            while mover.pull(&to, &bulk, 0, &mut &own, 0..BYTES).is_ok() {
                begun.store(true, Ordering::Relaxed);
            }
            drop(own.release().unwrap());
        })
    };
    let pulls = (0..4).map(|_| pull(make())).collect();
    while !begun.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    pulls
}

/// All memory comes back, though the network is closed, and both instances are there still.
#[test]
fn either_side_can_be_finalized_in_the_midst_of_copies() {
    for (end_owner, mapped) in [(true, true), (true, false), (false, true), (false, false)] {
        bounded("finalize", move || {
            let (owner, mover) = (start(true), start(false));
            let lent = memory(&owner, &pattern(6));
            let pulls = if mapped {
                // The owner copies.
                pulls(&mover, &owner, lent.bulk(), || memory(&mover, &[0; BYTES]))
            } else {
                let plain = || mover.expose(vec![0; BYTES], Access::ReadWrite).unwrap();
                pulls(&mover, &owner, lent.bulk(), plain)
            };
            let (first, second) = if end_owner { (&owner, &mover) } else { (&mover, &owner) };
            first.finalize_and_wait().unwrap();
            pulls.into_iter().for_each(|pull| pull.join().unwrap());
            drop(lent.release().unwrap());
            second.finalize_and_wait().unwrap();
        });
    }
}
