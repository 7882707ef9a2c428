//! Memory of devices that a fabric moves by itself, over the fake driver and a fabric without
//! hardware: when that is the way, and that buffers are where it is not.

use std::time::Duration;

use device::fake::Fake;
use device::{DeviceMemory, DriverKind};
use margo::bulk_memory::Terms;
use margo::config::Config;
use margo::{Access, BulkError, Instance, InstanceBuilder, ProviderHandle, device};
use na::ofi::fake_fabric::Fabric;

use super::staged::{SHOW, Two, bytes_of, moves, pattern, until};

/// An owner and an initiator, of which those of `asking` ask the fabric for memory of devices.
fn two_of(fabric: &Fabric, asking: [bool; 2], listening: bool) -> Two {
    let fakes = [Fake::new(2, 1), Fake::new(2, 2)];
    let [owner, peer] = [0, 1].map(|side: usize| {
        let mut config = Config::default();
        config.margo.address = Fabric::URI.to_owned();
        config.mercury.na_request_mem_device = asking[side];
        let adapter = fakes[side].clone();
        fabric.add_gpu(move |at, bytes| adapter.view(at, bytes));
        let builder = InstanceBuilder::from_config(config);
        let builder = builder.device_driver(fakes[side].driver().unwrap());
        fabric.with(|| builder.listen(side == 0 || listening).start()).unwrap()
    });
    Two::with(owner, peer, fakes)
}

fn two(fabric: &Fabric) -> Two {
    two_of(fabric, [true; 2], true)
}

/// Bytes that both have copied through buffers.
fn staged(two: &Two) -> u64 {
    let bytes = |side: &Instance| side.metrics().memory.device_staged_bytes;
    bytes(&two.owner) + bytes(&two.peer)
}

fn registered(fabric: &Fabric) -> usize {
    fabric.counts().0
}

#[test]
fn bytes_move_by_the_fabric_where_it_can() {
    let fabric = Fabric::new(true);
    let two = two(&fabric);
    moves(&two);
    assert_eq!(staged(&two), 0, "no buffer is in the way");
    assert!(registered(&fabric) > 0);
    two.end();
}

#[test]
fn each_side_that_lacks_it_copies_its_own_through_buffers() {
    for (has, asking) in
        [(true, [false, true]), (true, [true, false]), (false, [true; 2]), (true, [false; 2])]
    {
        let fabric = Fabric::new(has);
        let two = two_of(&fabric, asking, true);
        moves(&two);
        assert!(staged(&two) > 0, "{has} {asking:?}");
        assert_eq!(registered(&fabric) > 0, has && asking.contains(&true), "{has} {asking:?}");
        two.end();
    }
}

#[test]
fn memory_that_the_fabric_does_not_take_goes_through_buffers() {
    // At once, and in the midst of pieces.
    for after in [0, 1] {
        let fabric = Fabric::new(true);
        let two = two(&fabric);
        let all = pattern(700_000, 3);
        let pieces = vec![two.memory(0, &all[..300_000]), two.memory(0, &all[300_000..])];
        // The buffers of the device are registered, too, when it is first used.
        drop(two.owner.expose(two.memory(0, &[0; 8]), Access::ReadOnly).unwrap());
        fabric.refuse_registration(after);
        let exposed = two.owner.expose(pieces, Access::ReadOnly).unwrap();
        let mut buffer = two.peer.memory().bulk_buffer(700_000).unwrap();
        two.peer.pull(&two.owner_addr(), exposed.bulk(), 0, &mut buffer, 0..700_000).unwrap();
        assert!(buffer[..] == all && staged(&two) == 700_000, "{after}");
        drop(exposed);
        two.end();
    }
    // Of a device whose kernels may not see what an adapter has written, or whose driver does not
    // tell.
    for kind in [DriverKind::Cuda, DriverKind::Hip] {
        let fabric = Fabric::new(true);
        let mut two = two(&fabric);
        two.fakes.iter().for_each(|fake| fake.order_writes(kind == DriverKind::Hip));
        two.drivers = [0, 1].map(|side: usize| two.fakes[side].driver_of(kind).unwrap());
        moves(&two);
        assert!(registered(&fabric) == 0 && staged(&two) > 0, "{kind:?}");
        two.end();
    }
}

#[test]
fn pieces_are_one_range_and_small_memory_of_the_host_comes_with_its_handle() {
    let fabric = Fabric::new(true);
    let two = two(&fabric);
    let all = pattern(700_000, 3);
    let cut = |side: usize, ends: &[usize]| -> Vec<DeviceMemory> {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(ends).map(|(from, to)| two.memory(side, &all[from..*to])).collect()
    };
    let there = two.owner.expose(cut(0, &[1, 1, 300_000, 700_000]), Access::ReadOnly).unwrap();
    two.owner.serve(SHOW).returning(|request| request.args().clone()).unwrap();
    let (owner, target) = (two.owner_addr(), ProviderHandle::from(two.owner_addr()));
    let remote = two.peer.forward(SHOW, &target, there.bulk()).unwrap();
    assert_eq!((remote.attr(), remote.len()), (there.bulk().attr(), 700_000));
    assert!(remote.eager_data().is_none() && remote.device_key().is_none());
    let here = cut(1, &[3, 200_001, 650_000]);
    here.iter().for_each(|piece| piece.write_at(0, &vec![0; piece.len()]).unwrap());
    let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
    two.peer.pull(&owner, &remote, 1, &mut local, 2..650_000).unwrap();
    let got = here.iter().map(bytes_of).collect::<Vec<_>>().concat();
    assert!(got[2..] == all[1..649_999] && staged(&two) == 0);
    // By way of a handle that has the bytes with it.
    let small = two.owner.expose(pattern(64, 9), Access::ReadOnly).unwrap();
    two.owner
        .serve(margo::Rpc::<(), margo::Bulk>::new("small"))
        .returning({
            let bulk = small.bulk().clone();
            move |_| bulk.clone()
        })
        .unwrap();
    let small_there = two.peer.forward(margo::Rpc::<(), margo::Bulk>::new("small"), &target, &());
    let small_there = small_there.unwrap();
    assert!(small_there.eager_data().is_some());
    two.peer.pull(&owner, &small_there, 0, &mut local, 0..64).unwrap();
    let got = here.iter().map(bytes_of).collect::<Vec<_>>().concat();
    assert!(got[..64] == pattern(64, 9));
    drop((there, local, small, here));
    two.end();
}

#[test]
fn memory_on_terms_and_of_our_own_address_is_moved_by_its_owner() {
    let fabric = Fabric::new(true);
    let two = two(&fabric);
    let (owner, memory) = (two.owner_addr(), two.owner.memory());
    let before = registered(&fabric);
    let all = pattern(600_000, 1);
    let once = memory.expose_on(two.memory(0, &all), Access::ReadOnly, Terms::new().uses(1));
    let once = once.unwrap();
    assert_eq!(registered(&fabric), before);
    let mut buffer = two.peer.memory().bulk_buffer(600_000).unwrap();
    two.peer.pull(&owner, once.bulk(), 0, &mut buffer, 0..600_000).unwrap();
    assert!(buffer[..] == all);
    let error = two.peer.pull(&owner, once.bulk(), 0, &mut buffer, 0..1).unwrap_err();
    assert!(error.to_string().contains("no device memory under that key"), "{error}");

    // From one device memory to another of the same instance, and to its host.
    let exposed = two.owner.expose(two.memory(0, &all), Access::ReadWrite).unwrap();
    let target = two.memory(0, &[0; 600_000]);
    let mut local = two.owner.expose(target.clone(), Access::ReadOnly).unwrap();
    two.owner.pull(&two.owner.self_addr(), exposed.bulk(), 0, &mut local, 0..600_000).unwrap();
    assert!(bytes_of(&target) == all);
    let mut own = memory.bulk_buffer(600_000).unwrap();
    two.owner.pull(&two.owner.self_addr(), exposed.bulk(), 5, &mut own, 5..600_000).unwrap();
    assert!(own[5..] == all[5..]);
    drop((once, exposed, local, target));
    two.end();
}

#[test]
fn an_owner_that_does_not_listen_is_not_asked_where_the_fabric_moves() {
    let pull_back = margo::Rpc::<margo::Bulk, Result<Vec<u8>, String>>::new("pull-back");
    for has in [true, false] {
        let fabric = Fabric::new(has);
        let two = two_of(&fabric, [true; 2], false);
        let pulls = two.owner.serve(pull_back).returning(|request| {
            let mut buffer = request.instance().memory().bulk_buffer(8).unwrap();
            let pulled = request.pull(request.args(), 0, &mut buffer, 0..8);
            pulled.map(|()| buffer.to_vec()).map_err(|error| error.to_string())
        });
        pulls.unwrap();
        let target = ProviderHandle::from(two.owner_addr());
        let told = |refused| {
            if refused {
                fabric.refuse_registration(0);
            }
            let local = two.peer.expose(two.memory(1, &[3; 8]), Access::ReadOnly).unwrap();
            two.peer.forward(pull_back, &target, local.bulk()).unwrap()
        };
        match has {
            true => assert_eq!(told(false), Ok(vec![3; 8])),
            false => assert!(told(false).unwrap_err().contains("does not listen")),
        }
        if has {
            assert!(told(true).unwrap_err().contains("does not listen"));
        }
        two.end();
    }
}

#[test]
fn what_fails_is_cancelled_or_was_taken_back_is_an_error() {
    let fabric = Fabric::new(true);
    let two = two(&fabric);
    let owner = two.owner_addr();
    let all = pattern(3 << 20, 1);
    let exposed = two.owner.expose(two.memory(0, &all), Access::ReadOnly).unwrap();
    let here = two.memory(1, &vec![0; 3 << 20]);
    let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
    fabric.fail_read();
    let error = two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..3 << 20).unwrap_err();
    assert!(matches!(error, BulkError::Transfer { .. }), "{error}");
    let error = two.peer.push(&owner, exposed.bulk(), 0, &mut local, 0..10).unwrap_err();
    assert!(error.to_string().contains("does not allow writing"), "{error}");
    two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..3 << 20).unwrap();
    assert!(bytes_of(&here) == all);

    // The adapter goes on with what has begun, and so long it has the memory.
    fabric.hold(true);
    let before = fabric.counts().1;
    let request = two.peer.bulk(&owner, exposed.bulk()).start_pull(0, local, 0..3 << 20);
    until("a transfer", || fabric.counts().1 > before);
    request.cancel();
    assert!(!request.test());
    fabric.hold(false);
    let (result, mut local) = request.wait();
    assert!(matches!(result, Err(BulkError::Canceled { .. })), "{result:?}");
    let gone = exposed.bulk().clone();
    drop(exposed.release().unwrap());
    two.peer.pull(&owner, &gone, 0, &mut local, 0..10).unwrap_err();
    assert!(local.release_timed(Duration::from_secs(60)).is_ok());
    drop(here);
    two.end();
}

/// Both directions at once, by several requests, until one side ends in their midst.
#[test]
fn requests_go_on_beside_each_other_until_an_instance_ends() {
    let fabric = Fabric::new(true);
    let two = two(&fabric);
    let sides = [&two.owner, &two.peer];
    let all = [1, 2].map(|seed| pattern(2 << 20, seed));
    let there = [0, 1].map(|side: usize| {
        sides[side].expose(two.memory(side, &all[side]), Access::ReadOnly).unwrap()
    });
    let start = |at: usize| {
        let (own, other) = (at % 2, 1 - at % 2);
        let memory = two.memory(own, &vec![0; 2 << 20]);
        let local = sides[own].expose(memory.clone(), Access::ReadOnly).unwrap();
        let peer = sides[own].lookup(sides[other].self_addr().uri()).unwrap();
        let bulk = there[other].bulk();
        (memory, sides[own].bulk(&peer, bulk).start_pull(0, local, 0..2 << 20))
    };
    let started: Vec<_> = (0..8).map(start).collect();
    for (at, (memory, request)) in started.into_iter().enumerate() {
        request.wait().0.unwrap();
        assert!(bytes_of(&memory) == all[1 - at % 2], "{at}");
    }
    assert_eq!(staged(&two), 0);
    let before = fabric.counts().1;
    fabric.hold(true);
    let (memory, request) = start(1);
    until("a transfer", || fabric.counts().1 > before);
    two.peer.finalize();
    let (result, local) = request.wait();
    assert!(result.is_err());
    fabric.hold(false);
    drop((memory, there, local));
    two.end();
}
