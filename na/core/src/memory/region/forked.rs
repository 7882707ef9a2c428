//! Regions in a child process that was forked off.

use super::*;
use crate::conformance::in_forked_child;
use prim::sync::atomic::AtomicU32;

fn check(holds: bool, code: i32) -> Result<(), i32> {
    if holds { Ok(()) } else { Err(code) }
}

/// Counts of what was done with an offer and a registration, by this process or by a child with a
/// copy of them.
#[derive(Default)]
struct Told {
    withdrawn: AtomicU32,
    ended: AtomicU32,
}

impl Told {
    fn read(&self) -> (u32, u32) {
        (self.withdrawn.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed))
    }
}

struct Noted(Arc<Told>);

impl Offer for Noted {
    fn withdraw(&self) {
        self.0.withdrawn.fetch_add(1, Ordering::Relaxed);
    }

    fn stands(&self) -> bool {
        self.0.withdrawn.load(Ordering::Relaxed) == 0
    }

    fn is_used(&self) -> bool {
        false
    }

    fn keep(&self, _held: RetiredMemory) {}
}

impl EndRegistration for Noted {
    fn end(self: Box<Self>) -> bool {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Memory that a peer may read without asking, of which a library knows, and a transfer of it.
fn in_use(table: &RegionTable) -> (LocalMem, LocalMem, Arc<Told>) {
    let told = Arc::new(Told::default());
    let memory = table.register(Memory::from_vec(vec![7; 100]), Access::ReadOnly).unwrap();
    assert!(memory.region().offer(Arc::new(Noted(told.clone()))));
    memory.region().hold_registration(Box::new(Noted(told.clone())));
    let transfer = table.lease(memory.key(), 0, 100, false).unwrap();
    (memory, transfer, told)
}

#[test]
fn a_child_has_its_copy_at_once_and_its_parent_and_peers_notice_nothing() {
    let table = RegionTable::new();
    let (memory, transfer, told) = in_use(&table);
    let mut of_child = Some((memory.clone(), table.clone()));
    // Whoever held it at the fork is not there to let go of it.
    let held = table.table.lock();
    let code = in_forked_child(&mut || {
        let (memory, _table) = of_child.take().ok_or(1)?;
        let (sender, released) = std::sync::mpsc::channel();
        memory.revoke(move |memory| _ = sender.send(memory));
        let released = released.try_recv().map_err(|_| 2)?;
        check(released.into_owner::<Vec<u8>>().is_ok_and(|bytes| bytes == [7; 100]), 3)?;
        check(told.read() == (0, 0), 4)
    });
    assert_eq!(code, 0, "the step that failed");
    drop((held, of_child));
    // The parent's is where it was, with its transfer.
    assert_eq!((table.len(), told.read()), (1, (0, 0)));
    let (sender, released) = std::sync::mpsc::channel();
    memory.revoke(move |memory| sender.send(memory).unwrap());
    assert!(released.try_recv().is_err(), "a transfer is in flight");
    drop(transfer);
    released.try_recv().unwrap();
    assert_eq!((table.len(), told.read()), (0, (1, 1)));
}

#[test]
fn what_a_child_drops_stays_registered() {
    let table = RegionTable::new();
    let (memory, transfer, told) = in_use(&table);
    let mut all = Some((memory, transfer));
    let held = table.table.lock();
    let code = in_forked_child(&mut || {
        drop(all.take());
        check(told.read() == (0, 0), 1)?;
        check(Arc::strong_count(&told) == 3, 2)
    });
    assert_eq!(code, 0, "the step that failed");
    drop(held);
    assert_eq!((table.len(), told.read()), (1, (0, 0)));
    drop(all);
    assert_eq!((table.len(), told.read()), (0, (1, 1)));
}
