use super::*;
use std::sync::mpsc;

#[test]
fn memory_for_own_transfers_has_no_key() {
    let table = RegionTable::new();
    let local = table.register_local(Memory::from_vec(vec![1; 8]), Access::ReadWrite).unwrap();
    assert_eq!((local.key(), table.len()), (NO_KEY, 0));
    let denied = table.lease(local.key(), 0, 8, false).unwrap_err();
    assert_eq!(denied, DeniedReason::NoSuchKey);
    assert!(local.write_at(2, &[7; 3]));
    let memory = local.reclaim().unwrap();
    assert_eq!(memory.into_owner::<Vec<u8>>().unwrap(), [1, 1, 7, 7, 7, 1, 1, 1]);

    let local = table.register_local(Memory::from_vec(vec![2; 8]), Access::ReadOnly).unwrap();
    let (sender, released) = mpsc::channel();
    let transfer = local.clone();
    local.revoke(move |memory| sender.send(memory).unwrap());
    assert!(released.try_recv().is_err(), "a transfer is in flight");
    drop(transfer);
    assert_eq!(released.try_recv().unwrap().into_owner::<Vec<u8>>().unwrap(), [2; 8]);
}

fn table_with(pieces: Vec<Vec<u8>>, access: Access) -> (RegionTable, LocalMem) {
    let table = RegionTable::new();
    let memory = table.register(Memory::from_vecs(pieces), access).unwrap();
    (table, memory)
}

#[test]
fn copies_across_segment_borders_and_empty_segments() {
    let (_table, memory) = table_with(vec![vec![0; 3], vec![], vec![0; 5]], Access::ReadWrite);
    assert!(memory.write_at(1, &[1, 2, 3, 4]));
    let mut out = [9; 8];
    assert!(memory.read_at(0, &mut out));
    assert_eq!(out, [0, 1, 2, 3, 4, 0, 0, 0]);
    assert!(!memory.write_at(5, &[0; 4]), "past the end");
    assert!(!memory.read_at(u64::MAX, &mut out), "wraps");
    assert!(memory.read_at(8, &mut []), "nothing, at the end");
}

#[test]
fn memory_is_reclaimed_unless_something_refers_to_it() {
    let (table, memory) = table_with(vec![vec![7; 4]], Access::WriteOnly);
    let bytes = memory.reclaim().unwrap().into_owner::<Vec<Vec<u8>>>().unwrap();
    assert_eq!((bytes, table.len()), (vec![vec![7; 4]], 0));

    let (table, memory) = table_with(vec![vec![7; 4]], Access::WriteOnly);
    let lease = table.lease(memory.key(), 0, 4, true).unwrap();
    let memory = memory.reclaim().unwrap_err();
    assert!(table.is_empty(), "no other transfer can begin");
    let (sender, receiver) = mpsc::channel();
    memory.revoke(move |memory| sender.send(memory).unwrap());
    assert!(receiver.try_recv().is_err(), "a transfer may be writing it");
    drop(lease);
    assert!(receiver.try_recv().is_ok());
}

#[test]
fn a_lease_checks_key_access_and_range() {
    let (table, memory) = table_with(vec![vec![0; 8]], Access::ReadOnly);
    assert!(table.lease(memory.key(), 0, 8, false).is_ok());
    let denied = |key, offset, len, write| table.lease(key, offset, len, write).unwrap_err();
    assert_eq!(denied(memory.key(), 0, 8, true), DeniedReason::Access);
    assert_eq!(denied(memory.key(), 1, 8, false), DeniedReason::OutOfRange);
    assert_eq!(denied(memory.key(), u64::MAX, 2, false), DeniedReason::OutOfRange);
    assert_eq!(denied(memory.key() ^ 1, 0, 1, false), DeniedReason::NoSuchKey);
}

#[test]
fn a_vector_goes_back_after_the_last_transfer() {
    use std::sync::Mutex;
    static BACK: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
    let table = RegionTable::new();
    let memory = Memory::from_vec_with(vec![7; 4], |bytes| BACK.lock().unwrap().push(bytes));
    let memory = table.register(memory, Access::ReadOnly).unwrap();
    let lease = table.lease(memory.key(), 0, 4, false).unwrap();
    drop(memory);
    assert!(BACK.lock().unwrap().is_empty(), "a transfer may be reading it");
    let mut bytes = [0; 4];
    assert!(lease.read_at(0, &mut bytes) && bytes == [7; 4]);
    drop(lease);
    assert_eq!(*BACK.lock().unwrap(), [vec![7; 4]]);
}

#[test]
fn memory_comes_back_when_the_last_transfer_ends() {
    let (table, memory) = table_with(vec![vec![7; 4]], Access::ReadOnly);
    let key = memory.key();
    let lease = table.lease(key, 0, 4, false).unwrap();
    let (sender, receiver) = mpsc::channel();
    memory.revoke(move |memory| sender.send(memory).unwrap());
    assert_eq!(table.lease(key, 0, 4, false).unwrap_err(), DeniedReason::NoSuchKey);
    assert!(receiver.try_recv().is_err(), "a transfer still uses it");
    drop(lease);
    let memory = receiver.try_recv().unwrap();
    assert_eq!(memory.into_owner::<Vec<Vec<u8>>>().unwrap(), vec![vec![7; 4]]);
    assert!(table.is_empty());
}

#[test]
fn a_registration_ends_with_the_key_and_before_the_memory_is_given_back() {
    struct Note(mpsc::Sender<&'static str>);
    impl EndRegistration for Note {
        fn end(self: Box<Self>) -> bool {
            self.0.send("registration").unwrap();
            true
        }
    }
    for way in ["revoke", "reclaim", "drop"] {
        let (table, memory) = table_with(vec![vec![7; 4]], Access::ReadOnly);
        let (sender, events) = mpsc::channel();
        memory.region().hold_registration(Box::new(Note(sender.clone())));
        match way {
            "revoke" => memory.revoke(move |_| sender.send("memory").unwrap()),
            "reclaim" => {
                memory.reclaim().unwrap();
                sender.send("memory").unwrap();
            }
            _ => {
                drop(memory);
                sender.send("memory").unwrap();
            }
        }
        assert_eq!(events.try_iter().collect::<Vec<_>>(), ["registration", "memory"], "{way}");
        assert!(table.is_empty());
    }
    let (_table, memory) = table_with(vec![vec![7; 4]], Access::ReadOnly);
    let (sender, events) = mpsc::channel();
    let other = memory.clone();
    memory.revoke(drop);
    other.region().hold_registration(Box::new(Note(sender)));
    assert_eq!(events.try_recv(), Ok("registration"), "it came too late to be held");
}

#[test]
fn memory_whose_registration_does_not_end_is_not_given_back() {
    struct Stuck;
    impl EndRegistration for Stuck {
        fn end(self: Box<Self>) -> bool {
            false
        }
    }
    /// An owner that says when it is gone.
    struct Owner(mpsc::Sender<&'static str>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.send("freed").unwrap();
        }
    }
    for way in ["revoke", "reclaim", "drop"] {
        let (sender, events) = mpsc::channel();
        // SAFETY: there is no memory.
        let memory = unsafe { Memory::from_raw(vec![], Owner(sender.clone())) };
        let table = RegionTable::new();
        let memory = table.register(memory, Access::ReadOnly).unwrap();
        memory.region().hold_registration(Box::new(Stuck));
        let released = move |_| sender.send("given back").unwrap();
        match way {
            "revoke" => memory.revoke(released),
            "reclaim" => memory.reclaim().unwrap_err().revoke(released),
            _ => drop(memory),
        }
        assert_eq!(events.try_iter().next(), None, "{way}");
        assert!(table.is_empty());
    }
}

#[test]
fn a_description_survives_the_wire_and_garbage_does_not() {
    let (_table, memory) = table_with(vec![vec![0; 8]], Access::WriteOnly);
    let description = memory.region().describe();
    assert_eq!(RemoteMem::from_bytes(&description.to_bytes()), Some(description.clone()));
    let mut bytes = description.to_bytes();
    bytes[16] = 0;
    assert_eq!(RemoteMem::from_bytes(&bytes), None);
    assert_eq!(RemoteMem::from_bytes(&bytes[..23]), None);
}

#[test]
fn who_denies_memory_never_drops_it() {
    struct Owned(mpsc::Sender<std::thread::ThreadId>);
    impl Drop for Owned {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }
    let table = RegionTable::new();
    let asked = AtomicU64::new(NO_KEY);
    let (sender, dropped) = mpsc::channel();
    std::thread::scope(|scope| {
        let (table, asked) = (&table, &asked);
        scope.spawn(move || {
            loop {
                match asked.load(Ordering::Relaxed) {
                    u64::MAX => return,
                    key => assert!(table.lease(key, 8, 1, false).is_err()),
                }
            }
        });
        let here = std::thread::current().id();
        let mut always_here = true;
        for _ in 0..50_000 {
            let owner = Owned(sender.clone());
            let segment = RawSegment { ptr: std::ptr::dangling_mut(), len: 0 };
            // SAFETY: no bytes.
            let memory = unsafe { Memory::from_raw(vec![segment], Box::new(owner)) };
            let memory = table.register(memory, Access::ReadWrite).unwrap();
            asked.store(memory.key(), Ordering::Relaxed);
            std::hint::black_box(table.len());
            drop(memory);
            always_here &= dropped.recv().unwrap() == here;
        }
        asked.store(u64::MAX, Ordering::Relaxed);
        assert!(always_here);
    });
}

mod terms {
    use std::time::{Duration, Instant};

    use super::*;

    const WHO: Principal = Principal::User(7);

    fn memory(terms: Terms) -> (RegionTable, LocalMem) {
        let (table, memory) = table_with(vec![vec![7; 6], vec![7; 4]], Access::ReadOnly);
        memory.impose(terms);
        (table, memory)
    }

    /// Returns whether a peer may read so many bytes.
    fn reads((table, memory): &(RegionTable, LocalMem), len: u64, peer: Principal) -> bool {
        match table.lease_by(memory.key(), 0, len, false, || peer) {
            Ok(lease) => {
                assert_eq!(lease.key(), memory.key());
                true
            }
            Err(reason) => {
                assert_eq!(reason, DeniedReason::NoSuchKey, "a stranger is told no more");
                false
            }
        }
    }

    #[test]
    fn without_any_everybody_may() {
        let own = memory(Terms::new());
        assert!(reads(&own, 10, WHO) && reads(&own, 10, Principal::Unknown));
    }

    #[test]
    fn bytes_are_counted_in_whatever_transfers() {
        let own = memory(Terms::new().uses(2));
        // What is refused for another reason takes nothing.
        for (offset, len, write) in [(0, 11, false), (u64::MAX, 2, false), (0, 1, true)] {
            assert!(own.0.lease(own.1.key(), offset, len, write).is_err());
        }
        assert!([10, 3, 3].map(|len| reads(&own, len, WHO)) == [true; 3]);
        assert!(!reads(&own, 5, WHO), "four are left");
        assert!(reads(&own, 4, WHO) && !reads(&own, 1, WHO) && !reads(&own, 0, WHO));
        assert!(!reads(&memory(Terms::new().uses(0)), 1, WHO));
        assert!(reads(&memory(Terms::new().uses(u64::MAX)), 10, WHO));
    }

    #[test]
    fn it_ends_at_its_time() {
        let now = Instant::now();
        assert!(!reads(&memory(Terms::new().until(now)), 1, WHO));
        let later = now + Duration::from_secs(3600);
        assert!(reads(&memory(Terms::new().until(later)), 1, WHO));
    }

    #[test]
    fn it_is_for_one_peer_that_is_known() {
        let own = memory(Terms::new().only_for(WHO));
        assert!(reads(&own, 1, WHO) && !reads(&own, 1, Principal::User(8)));
        let lease = own.0.lease(own.1.key(), 0, 1, false);
        assert_eq!(lease.err(), Some(DeniedReason::NoSuchKey), "nobody says who it is");
        let unknown = memory(Terms::new().only_for(Principal::Unknown));
        assert!(!reads(&unknown, 1, Principal::Unknown));
        let all = Terms::new().only_for(WHO).uses(1);
        let all = memory(all);
        assert!(!reads(&all, 10, Principal::User(8)) && reads(&all, 10, WHO));
        assert!(!reads(&all, 1, WHO));
    }

    #[test]
    fn nobody_copies_there_without_asking() {
        struct Standing;

        impl Offer for Standing {
            fn withdraw(&self) {}

            fn stands(&self) -> bool {
                true
            }

            fn is_used(&self) -> bool {
                false
            }

            fn keep(&self, _: RetiredMemory) {}
        }

        let (table, free) = table_with(vec![vec![7; 6]], Access::ReadOnly);
        assert!(table.find(free.key()).is_some() && free.region().offer(Arc::new(Standing)));
        let (table, bound) = memory(Terms::new());
        assert!(bound.region().has_terms() && table.find(bound.key()).is_none());
        assert!(!bound.region().offer(Arc::new(Standing)));
    }
}

#[test]
fn bytes_elsewhere_are_leased_by_their_length_and_never_copied() {
    let table = RegionTable::new();
    let memory = Memory::elsewhere(100, std::sync::Arc::new("a device"), 7_u32);
    let memory = table.register(memory, Access::ReadOnly).unwrap();
    assert_eq!((memory.len(), memory.segments().len()), (100, 0));
    assert!(memory.elsewhere().is_some_and(|place| place.is::<&str>()));
    assert!(!memory.read_at(0, &mut [0; 1]) && !memory.write_at(99, &[0; 1]));
    assert_eq!(memory.region().fill_at(0, &[0; 1]), Filled::Outside);
    assert!(!memory.region().append_to(0, 1, &mut Vec::new()));
    assert!(memory.region().whole().is_none());
    let lease = |offset, len, write| table.lease(memory.key(), offset, len, write).err();
    assert_eq!(lease(0, 100, false), None);
    assert_eq!(lease(1, 100, false), Some(DeniedReason::OutOfRange));
    assert_eq!(lease(0, 1, true), Some(DeniedReason::Access));
    let memory = memory.reclaim().unwrap();
    assert_eq!(memory.into_owner::<u32>().unwrap(), 7);
}

#[test]
fn an_alias_is_a_part_under_a_key_of_its_own_that_peers_cannot_map() {
    let table = RegionTable::new();
    let whole = Memory::alloc(4096, &crate::AllocOptions::default()).unwrap();
    let whole = table.register_local(whole, Access::ReadWrite).unwrap();
    let part = table.register(whole.alias(10..20).unwrap(), Access::WriteOnly).unwrap();
    assert!(part.region().block().is_none() && whole.region().block().is_some());
    assert!(part.write_at(0, &[7; 10]) && !part.write_at(1, &[7; 10]));
    let mut bytes = [0; 12];
    assert!(whole.read_at(9, &mut bytes));
    assert_eq!(bytes, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
    assert!(whole.alias(0..4097).is_none() && whole.alias(4097..4097).is_none());
    // The memory is there for as long as the part is.
    let key = part.key();
    let whole = whole.reclaim().unwrap_err();
    part.revoke(drop);
    assert!(table.lease(key, 0, 1, true).is_err());
    assert!(whole.reclaim().is_ok());
}

#[test]
fn a_guard_goes_before_the_owner() {
    struct Tells(&'static str, mpsc::Sender<&'static str>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.1.send(self.0).unwrap();
        }
    }
    let (sender, told) = mpsc::channel();
    // SAFETY: no segments.
    let memory = unsafe { Memory::from_raw(Vec::new(), Tells("owner", sender.clone())) };
    drop(memory.guarded_by(Tells("guard", sender)));
    assert_eq!(told.iter().collect::<Vec<_>>(), ["guard", "owner"]);
}
