//! The bulk cases of Mercury's own tests (`Testing/unit/hg/test_bulk.c`), each as one body for all
//! transports, with another endpoint and with oneself, polling and sleeping; then what they lack.
//!
//! | case of Mercury | here |
//! |---|---|
//! | null bulk: two zero-length NULL segments | `null_bulk` |
//! | size 0 transfer on a real handle | `size_zero` |
//! | contiguous | `contiguous`, `contiguous_at_an_offset`, `contiguous_at_both_offsets` |
//! | bind | `bind_contiguous`, `bind_forwarded_to_a_third` |
//! | small, 2 x 8 bytes | `small`, `small_at_an_offset`, `small_across_segments` |
//! | 16 segments | `segmented`, `segmented_at_an_offset`, `segmented_at_both_offsets` |
//! | 1024 segments | `over_segmented`, `over_segmented_at_an_offset`, `…_at_both_offsets` |
//!
//! Each runs with data embedded in the handle where it fits, and without. Where Mercury only pulls,
//! these pull and push. Between processes: `tests/it/bulk/processes.rs`.

use crate::bulk_support::exchange::{BUF, Exchange};
use crate::bulk_support::{Bed, Mover, Node, Transport, contents, cut, pattern};
use margo::hg::{Bulk, BulkOp, HgError, HgOptions, LocalBytes, MemoryAttr, MemoryKind, proc};
use na::{Access, Memory, RawSegment};

macro_rules! on_all {
    ($($case:ident),+ $(,)?) => {
        on_all! { @bed sm, Sm, false, false; $($case)+ }
        on_all! { @bed sm_sleeping, Sm, false, true; $($case)+ }
        on_all! { @bed sm_oneself, Sm, true, false; $($case)+ }
        on_all! { @bed sm_oneself_sleeping, Sm, true, true; $($case)+ }
        on_all! { @bed tcp, Tcp, false, false; $($case)+ }
        on_all! { @bed tcp_sleeping, Tcp, false, true; $($case)+ }
        on_all! { @bed tcp_oneself, Tcp, true, false; $($case)+ }
        on_all! { @bed tcp_oneself_sleeping, Tcp, true, true; $($case)+ }
        on_all! { @bed sim, Sim, false, false; $($case)+ }
        on_all! { @bed sim_sleeping, Sim, false, true; $($case)+ }
        on_all! { @bed sim_oneself, Sim, true, false; $($case)+ }
        on_all! { @bed sim_oneself_sleeping, Sim, true, true; $($case)+ }
    };
    (@bed $bed:ident, $transport:ident, $oneself:literal, $blocking:literal; $($case:ident)+) => {
        mod $bed {
            $(#[test]
            fn $case() {
                super::run(super::Transport::$transport, $oneself, $blocking, super::$case);
            })+
        }
    };
}

on_all! {
    null_bulk,
    size_zero,
    contiguous,
    contiguous_at_an_offset,
    contiguous_at_both_offsets,
    bind_contiguous,
    bind_forwarded_to_a_third,
    small,
    small_at_an_offset,
    small_across_segments,
    segmented,
    segmented_at_an_offset,
    segmented_at_both_offsets,
    over_segmented,
    over_segmented_at_an_offset,
    over_segmented_at_both_offsets,
    any_cut_to_any_cut,
    the_owner_checks_what_a_handle_may,
    a_handle_says_what_it_is,
}

fn run(transport: Transport, oneself: bool, blocking: bool, case: fn(&mut Bed)) {
    for bulk_eager in [true, false] {
        let mut options = HgOptions::default();
        options.bulk_eager = bulk_eager;
        // Eight nodes' worth of buffers are not the point here.
        options.request_post_init = 16;
        let mut bed = Bed::new(transport, oneself, options);
        bed.blocking = blocking;
        case(&mut bed);
        bed.end();
    }
}

/// The origin lends memory in a call; the target pulls a part of it, compares, and pushes other
/// bytes into the same place; the origin finds these, and nothing else changed.
fn exchange(bed: &mut Bed, exchange: Exchange) {
    let Exchange { bytes, cuts, origin_offset, target_offset, len, bind } = exchange;
    let (origin, target) = (0, bed.target());
    let data = pattern(bytes, 0);
    let lent = bed.nodes[origin].expose(cut(&data, cuts.0), Access::ReadWrite);
    let mut bulk = bed.nodes[origin].core.bulk_handle(&lent);
    assert_eq!(bulk.segment_count(), cuts.0);
    if bind {
        bulk = bed.nodes[origin].core.bulk_bind(&bulk, 0).unwrap();
    }
    let request = bed.deliver(origin, target, &bulk, 1);
    let received: Bulk = proc::from_slice(request.payload()).unwrap();
    assert_eq!((received.len(), received.is_bound()), (bytes as u64, bind));

    let zeros = vec![0; bytes.max(1)];
    let local = bed.nodes[target].expose(cut(&zeros, cuts.1), Access::ReadOnly);
    let peer = request.origin().clone();
    let mover = Mover {
        op: BulkOp::Pull,
        bulk: &received,
        remote_offset: origin_offset as u64,
        local: &local,
        local_offset: target_offset as u64,
        len: len as u64,
        owner: (!bind).then_some(&peer),
    };
    assert_eq!(bed.transfer(target, &mover).unwrap(), len as u64);
    let mut expected = zeros;
    let (from, to) = (origin_offset..origin_offset + len, target_offset..target_offset + len);
    expected[to].copy_from_slice(&data[from.clone()]);
    assert!(contents(&local) == expected, "pulled bytes differ: {exchange:?}");

    let other = pattern(len, 100);
    assert!(local.write_at(target_offset as u64, &other));
    let push = Mover { op: BulkOp::Push, ..mover };
    assert_eq!(bed.transfer(target, &push).unwrap(), len as u64);
    bed.answer(request, origin);
    let mut expected = data;
    expected[from].copy_from_slice(&other);
    assert!(bed.release(lent).concat() == expected, "pushed bytes differ: {exchange:?}");
    bed.release(local);
}

fn null_bulk(bed: &mut Bed) {
    let nothing = RawSegment { ptr: std::ptr::null_mut(), len: 0 };
    // SAFETY: no bytes, so there is nothing that must be valid.
    let memory = unsafe { Memory::from_raw(vec![nothing; 2], Vec::<Vec<u8>>::new()) };
    let origin = &bed.nodes[0];
    let lent = origin.core.endpoint().register(memory, Access::ReadWrite).unwrap();
    let bulk = origin.core.bulk_handle(&lent);
    assert_eq!((bulk.segment_count(), bulk.len(), bulk.is_null()), (2, 0, false));
    let target = bed.target();
    let request = bed.deliver(0, target, &bulk, 1);
    let received: Bulk = proc::from_slice(request.payload()).unwrap();
    assert!(received.is_empty() && !received.is_null());
    let local = bed.nodes[target].expose(vec![vec![7; 8]], Access::ReadWrite);
    for op in [BulkOp::Pull, BulkOp::Push] {
        let mover = Mover {
            op,
            bulk: &received,
            remote_offset: 0,
            local: &local,
            local_offset: 8,
            len: 0,
            owner: Some(&request.origin().clone()),
        };
        assert_eq!(bed.transfer(target, &mover).unwrap(), 0);
        let beyond = Mover { len: 1, local_offset: 0, ..mover };
        assert!(matches!(bed.transfer(target, &beyond), Err(HgError::Bulk(_))));
    }
    bed.answer(request, 0);
    bed.release(lent);
    assert_eq!(bed.release(local), [[7; 8]]);
}

/// The cases of that name.
fn exchanges(bed: &mut Bed, name: &str) {
    Exchange::named(name).into_iter().for_each(|one| exchange(bed, one));
}

macro_rules! exchanges {
    ($($case:ident)+) => {
        $(fn $case(bed: &mut Bed) {
            exchanges(bed, stringify!($case));
        })+
    };
}

exchanges! {
    size_zero
    contiguous
    contiguous_at_an_offset
    contiguous_at_both_offsets
    bind_contiguous
    small
    small_at_an_offset
    small_across_segments
    segmented
    segmented_at_an_offset
    segmented_at_both_offsets
    over_segmented
    over_segmented_at_an_offset
    over_segmented_at_both_offsets
}

/// The origin calls A; A passes the handle on to B, which moves the data with the origin itself.
fn bind_forwarded_to_a_third(bed: &mut Bed) {
    let (a, b) = (bed.target(), bed.add());
    let data = pattern(BUF, 0);
    let lent = bed.nodes[0].expose(cut(&data, 3), Access::ReadWrite);
    let plain = bed.nodes[0].core.bulk_handle(&lent);
    let bulk = bed.nodes[0].core.bulk_bind(&plain, 5).unwrap();
    let at_a = bed.deliver(0, a, &bulk, 1);
    let passed_on: Bulk = proc::from_slice(at_a.payload()).unwrap();
    let at_b = bed.deliver(a, b, &passed_on, 2);
    let received: Bulk = proc::from_slice(at_b.payload()).unwrap();
    assert_eq!(received.owner_context(), Some(5));
    let owner = bed.nodes[b].core.bulk_owner(&received).unwrap().unwrap();
    assert_eq!(owner, bed.nodes[b].addr_of(&bed.nodes[0]));

    let local = bed.nodes[b].expose(vec![vec![0; BUF]], Access::ReadOnly);
    let mover = Mover {
        op: BulkOp::Pull,
        bulk: &received,
        remote_offset: 0,
        local: &local,
        local_offset: 0,
        len: BUF as u64,
        owner: None,
    };
    assert_eq!(bed.transfer(b, &mover).unwrap(), BUF as u64);
    assert!(contents(&local) == data);
    let other = pattern(BUF, 9);
    assert!(local.write_at(0, &other));
    bed.transfer(b, &Mover { op: BulkOp::Push, ..mover }).unwrap();
    assert_eq!(bed.nodes[a].core.counters().bulk_count, 0, "A moved nothing");
    bed.answer(at_b, a);
    bed.answer(at_a, 0);
    assert!(bed.release(lent).concat() == other);
    // Dead with its memory, also for a third party; and only the owner can bind.
    let error = bed.transfer(b, &mover).unwrap_err();
    assert!(matches!(error, HgError::Na(na::Error::Denied { .. })), "{error}");
    for refused in [&received, &plain, &Bulk::null()] {
        let error = bed.nodes[b].core.bulk_bind(refused, 0).unwrap_err();
        assert!(error.to_string().contains("only the owner"), "{error}");
    }
    let error = bed.transfer(b, &Mover { bulk: &plain, ..mover }).unwrap_err();
    assert!(error.to_string().contains("does not tell its owner"), "{error}");
    bed.release(local);
}

/// Between segmentations that have nothing to do with each other; more segments than bytes leaves
/// empty ones in between.
fn any_cut_to_any_cut(bed: &mut Bed) {
    let mut random = 0x9e37_79b9_u32;
    let mut below = |end: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random as usize / 65_536 % end
    };
    for (bytes, cuts) in [(1000, (1500, 7)), (4097, (2, 1025)), (30_000, (4096, 3000))] {
        for bind in [false, true] {
            let len = below(bytes);
            let (origin_offset, target_offset) = (below(bytes - len + 1), below(bytes - len + 1));
            exchange(bed, Exchange { bytes, cuts, origin_offset, target_offset, len, bind });
        }
    }
}

/// A peer that claims more than it was given is refused by the owner, not by its own good will.
fn the_owner_checks_what_a_handle_may(bed: &mut Bed) {
    let target = bed.target();
    let owner = bed.nodes[target].addr_of(&bed.nodes[0]);
    let local = bed.nodes[target].expose(vec![vec![0; 5000]], Access::ReadWrite);
    for (access, op) in [(Access::ReadOnly, BulkOp::Push), (Access::WriteOnly, BulkOp::Pull)] {
        let lent = bed.nodes[0].expose(cut(&pattern(5000, 0), 3), access);
        let honest = bed.nodes[0].core.bulk_handle(&lent);
        // Read and write, in the flags and in the memory handle behind.
        let mut bytes = honest.as_bytes().to_vec();
        bytes[12] |= 3;
        bytes[40 + 16] |= 3;
        let mut message = (bytes.len() as u64).to_le_bytes().to_vec();
        message.extend(&bytes);
        let forged: Bulk = proc::from_slice(&message).unwrap();
        let mover = Mover {
            op,
            bulk: &forged,
            remote_offset: 0,
            local: &local,
            local_offset: 0,
            len: 5000,
            owner: Some(&owner),
        };
        let error = bed.transfer(target, &mover).unwrap_err();
        assert!(matches!(error, HgError::Na(na::Error::Denied { .. })), "{error}");
        let error = bed.transfer(target, &Mover { bulk: &honest, ..mover }).unwrap_err();
        assert!(matches!(error, HgError::Bulk(_)), "refused before it is asked: {error}");
        let other = if op == BulkOp::Pull { BulkOp::Push } else { BulkOp::Pull };
        bed.transfer(target, &Mover { op: other, ..mover }).unwrap();
        bed.release(lent);
    }
    bed.release(local);
}

fn a_handle_says_what_it_is(bed: &mut Bed) {
    let target = bed.target();
    let data = pattern(100, 0);
    let lent = bed.nodes[0].expose(cut(&data, 4), Access::ReadOnly);
    let near = MemoryAttr::new(MemoryKind::Host, 7).unwrap();
    let bulk = bed.nodes[0].core.bulk_handle_attr(&lent, near).unwrap();
    let Ok(LocalBytes::Memory(part)) = bulk.local(20, 40) else { panic!("the memory is here") };
    let lens: Vec<_> = part.segments().iter().map(|segment| segment.len).collect();
    assert_eq!(lens, [5, 25, 10]);
    assert_eq!(part.segments()[0].ptr, lent.segments()[0].ptr.wrapping_add(20));
    let mut copy = [0; 30];
    assert!(part.read_at(10, &mut copy) && copy == data[30..60]);
    assert!(!part.read_at(11, &mut copy) && !part.read_at(u64::MAX, &mut copy), "outside");
    assert!(bulk.local(61, 40).is_err() && bulk.local(u64::MAX, 2).is_err());
    drop(part);

    let request = bed.deliver(0, target, &bulk, 1);
    let received: Bulk = proc::from_slice(request.payload()).unwrap();
    assert!(received.is_virtual() && !bulk.is_virtual());
    assert_eq!(received.attr(), Some(near), "the device has come along");
    match (received.eager_data().is_some(), received.local(20, 40)) {
        (true, Ok(LocalBytes::Embedded(bytes))) => assert_eq!(bytes, &data[20..60]),
        (false, Err(error)) => assert!(error.to_string().contains("elsewhere"), "{error}"),
        other => panic!("{other:?}"),
    }
    bed.answer(request, 0);

    let gpu = MemoryAttr::new(MemoryKind::Cuda, 3).unwrap();
    let error = bed.nodes[0].core.bulk_handle_attr(&lent, gpu).unwrap_err();
    assert!(error.to_string().contains("Cuda memory of device 3"), "{error}");
    assert!(MemoryAttr::new(MemoryKind::Cuda, MemoryAttr::DEVICE_MAX + 1).is_none());
    bed.release(lent);
    assert!(bulk.local(0, 1).unwrap_err().to_string().contains("no longer registered"));
}

/// A transport-less check of the other end: memory of a device that some other peer describes.
#[test]
fn memory_of_a_device_is_refused_by_name() {
    let node = Node::open("na+sm://", true, HgOptions::default());
    let lent = node.expose(vec![vec![0; 64]], Access::ReadWrite);
    let mut bytes = node.core.bulk_handle(&lent).as_bytes().to_vec();
    bytes[14] = 0x52; // Kind 2, device 5.
    let mut message = 64u64.to_le_bytes().to_vec();
    message.extend(&bytes);
    let bulk: Bulk = proc::from_slice(&message).unwrap();
    assert_eq!(bulk.attr(), MemoryAttr::new(MemoryKind::Rocm, 5));
    let to = node.core.self_addr();
    let refused = node.core.transfer(BulkOp::Pull, &to, &bulk, 0, &lent, 0, 8, 1);
    let error = refused.unwrap_err().0.to_string();
    assert!(error.contains("Rocm memory of device 5") && error.contains("host memory"), "{error}");
    message[8 + 14] = 0x04;
    assert!(proc::from_slice::<Bulk>(&message).is_err(), "a kind of the future");
}

/// A node that does not listen cannot be reached by third parties, and says so at once.
#[test]
fn a_handle_is_bound_only_by_who_listens() {
    for uri in ["na+sm://", "na+tcp://"] {
        let node = Node::open(uri, false, HgOptions::default());
        let lent = node.expose(vec![vec![0; 64]], Access::ReadOnly);
        let bulk = node.core.bulk_handle(&lent);
        let error = node.core.bulk_bind(&bulk, 0).unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
    }
}
