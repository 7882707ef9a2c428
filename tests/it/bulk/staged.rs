//! Memory of devices, over the fake driver: what moves, what is refused, what ends early, and that
//! everything comes back. Two processes and peers that die are in `staged_processes.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::fake::{Fake, InUse};
use device::{DeviceMemory, Driver, raw};
use margo::bulk_memory::{LocalBulk, MemoryAttr, MemoryKind, Terms};
use margo::{Access, Addr, Bulk, BulkError, Instance, Principal, ProviderHandle, Rpc, device};

use crate::common::{Pair, all_asked_for, builder};

/// Passes a handle on, as a peer gets it.
pub(super) const SHOW: Rpc<Bulk, Bulk> = Rpc::new("show");

pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    crate::bulk_support::pattern(len, seed.into())
}

pub(super) fn bytes_of(memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

/// An owner and an initiator, each with a driver of its own, as two processes have.
pub(super) struct Two {
    pub(super) owner: Instance,
    pub(super) peer: Instance,
    pub(super) fakes: [Fake; 2],
    pub(super) drivers: [Driver; 2],
    /// The device that memory is of.
    device: u32,
}

impl Two {
    pub(super) fn new(transport: &str) -> Self {
        let pair = Pair::new(transport);
        Self::of(pair.service, pair.client)
    }

    pub(super) fn of(owner: Instance, peer: Instance) -> Self {
        Self::with(owner, peer, [Fake::new(2, 1), Fake::new(2, 2)])
    }

    pub(super) fn with(owner: Instance, peer: Instance, fakes: [Fake; 2]) -> Self {
        let drivers = [0, 1].map(|side: usize| fakes[side].driver().unwrap());
        Self { owner, peer, fakes, drivers, device: 1 }
    }

    fn sim(name: &str) -> Self {
        let open = |host| builder(format!("na+sim://{name}/{host}")).start().unwrap();
        Self::of(open("a"), open("b"))
    }

    /// Device memory of the owner (0) or of the initiator (1).
    pub(super) fn memory(&self, side: usize, bytes: &[u8]) -> DeviceMemory {
        let memory = self.drivers[side].device(self.device).unwrap().alloc(bytes.len()).unwrap();
        memory.write_at(0, bytes).unwrap();
        memory
    }

    pub(super) fn owner_addr(&self) -> Addr {
        self.peer.lookup(self.owner.self_addr().uri()).unwrap()
    }

    /// Ends both. Nothing of any driver may be left.
    pub(super) fn end(self) {
        for instance in [self.peer, self.owner] {
            instance.finalize_and_wait().unwrap();
            let weak = instance.downgrade();
            drop(instance);
            let until = Instant::now() + Duration::from_secs(60);
            while weak.upgrade().is_some() && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        self.fakes.iter().for_each(assert_clean);
    }
}

/// Waits until all is given back; the last count of an instance may go a little later.
pub(super) fn assert_clean(fake: &Fake) {
    let until = Instant::now() + Duration::from_secs(60);
    while fake.in_use() != InUse::default() && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(fake.faults(), Vec::<String>::new());
    assert_eq!(fake.in_use(), InUse::default());
}

/// For transfers that come to no other end.
pub(super) const LIMIT: Duration = Duration::from_millis(100);

/// Lengths around the ends of chunks, with offsets of both sides.
const MOVES: [(u64, usize, usize); 6] =
    [(0, 0, 0), (0, 0, 1), (7, 3, 4095), (1, 0, (256 << 10) + 1), (0, 5, 1 << 20), (3, 2, 5 << 20)];

pub(super) fn moves(two: &Two) {
    const BYTES: usize = (5 << 20) + 16;
    let owner = two.owner_addr();
    let (theirs, ours) = (pattern(BYTES, 1), pattern(BYTES, 2));
    for (remote_is_device, local_is_device) in [(true, false), (false, true), (true, true)] {
        let there = two.memory(0, &theirs);
        let host = (!remote_is_device)
            .then(|| two.owner.expose(theirs.clone(), Access::ReadWrite).unwrap());
        let device =
            remote_is_device.then(|| two.owner.expose(there.clone(), Access::ReadWrite).unwrap());
        let remote = match (&host, &device) {
            (Some(host), _) => host.bulk().clone(),
            (_, Some(device)) => device.bulk().clone(),
            _ => unreachable!(),
        };
        let here = two.memory(1, &ours);
        let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
        let mut buffer = two.peer.memory().bulk_buffer(BYTES).unwrap();
        let (mut expect_here, mut expect_there) = (ours.clone(), theirs.clone());
        buffer.copy_from_slice(&ours);
        for (remote_at, local_at, len) in MOVES {
            let range = local_at..local_at + len;
            let there = remote_at as usize..remote_at as usize + len;
            match local_is_device {
                true => two.peer.pull(&owner, &remote, remote_at, &mut local, range.clone()),
                false => two.peer.pull(&owner, &remote, remote_at, &mut buffer, range.clone()),
            }
            .unwrap();
            expect_here[range.clone()].copy_from_slice(&expect_there[there.clone()]);
            // Something else goes back.
            let change = pattern(len, len as u8 ^ 0x55);
            match local_is_device {
                true => here.write_at(local_at, &change).unwrap(),
                false => buffer[range.clone()].copy_from_slice(&change),
            }
            expect_here[range.clone()].copy_from_slice(&change);
            match local_is_device {
                true => two.peer.push(&owner, &remote, remote_at, &mut local, range),
                false => two.peer.push(&owner, &remote, remote_at, &mut buffer, range),
            }
            .unwrap();
            expect_there[there].copy_from_slice(&change);
        }
        let is_here = if local_is_device { bytes_of(&here) } else { buffer.to_vec() };
        assert!(is_here == expect_here, "{remote_is_device} {local_is_device}");
        let is_there = match (host, device) {
            (Some(host), _) => host.release().unwrap(),
            (_, Some(device)) => bytes_of(&device.release().unwrap()),
            _ => unreachable!(),
        };
        assert!(is_there == expect_there, "{remote_is_device} {local_is_device}");
        drop(local.release().unwrap());
    }
}

#[test]
fn bytes_move_between_devices_and_hosts_in_each_direction() {
    for transport in all_asked_for() {
        let two = Two::new(transport);
        moves(&two);
        two.end();
    }
    let two = Two::sim("staged-moves");
    moves(&two);
    two.end();
}

#[test]
fn bytes_move_to_and_from_a_device_of_this_machine() {
    let driver = match Driver::cuda() {
        Ok(driver) => driver,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    for transport in all_asked_for() {
        let drivers = [driver.clone(), driver.clone()];
        let two = Two { drivers, device: 0, ..Two::new(transport) };
        moves(&two);
        two.end();
    }
}

#[test]
fn copies_are_of_pinned_memory() {
    let two = Two::new("na+sm://");
    let memory = two.memory(0, &pattern(3 << 20, 1));
    let before = two.fakes[0].copies();
    let exposed = two.owner.expose(memory, Access::ReadOnly).unwrap();
    let mut buffer = two.peer.memory().bulk_buffer(3 << 20).unwrap();
    two.peer.pull(&two.owner_addr(), exposed.bulk(), 0, &mut buffer, 0..3 << 20).unwrap();
    let after = two.fakes[0].copies();
    assert!(after.pinned > before.pinned + 1, "in chunks");
    assert_eq!(after.pageable, before.pageable);
    drop(exposed);
    two.end();
}

#[test]
fn segments_are_one_range_at_either_side() {
    for transport in all_asked_for() {
        let two = Two::new(transport);
        let all = pattern(700_000, 3);
        let cut = |side: usize, ends: &[usize]| -> Vec<DeviceMemory> {
            let starts = std::iter::once(0).chain(ends.iter().copied());
            starts.zip(ends).map(|(from, to)| two.memory(side, &all[from..*to])).collect()
        };
        let there = two.owner.expose(cut(0, &[1, 1, 300_000, 700_000]), Access::ReadOnly).unwrap();
        assert_eq!(there.bulk().len(), 700_000);
        let pieces = vec![vec![0; 100], vec![], vec![0; 599_900], vec![0; 99_900]];
        let mut rows = two.peer.memory().bulk_segments(pieces).unwrap();
        let (owner, remote) = (two.owner_addr(), there.bulk());
        two.peer.pull(&owner, remote, 50, &mut rows, 10..699_900).unwrap();
        let got = rows.into_segments().concat();
        assert!(got[10..699_900] == all[50..699_940] && got[..10] == [0; 10]);
        // Into pieces of a device.
        let here = cut(1, &[3, 200_001, 650_000]);
        here.iter().for_each(|piece| piece.write_at(0, &vec![0; piece.len()]).unwrap());
        let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
        two.peer.pull(&owner, remote, 1, &mut local, 2..650_000).unwrap();
        let got = here.iter().map(bytes_of).collect::<Vec<_>>().concat();
        assert!(got[2..] == all[1..649_999]);
        drop((there, local, here));
        two.end();
    }
}

#[test]
fn requests_go_on_beside_each_other_and_chunks_work() {
    let two = Two::new("na+tcp://127.0.0.1:0");
    let all = pattern(4 << 20, 9);
    let exposed = two.owner.expose(two.memory(0, &all), Access::ReadWrite).unwrap();
    let (owner, remote) = (two.owner_addr(), exposed.bulk());
    let requests: Vec<_> = (0..8)
        .map(|part| {
            let buffer = two.peer.memory().bulk_buffer(512 << 10).unwrap();
            two.peer.bulk(&owner, remote).start_pull(part * (512 << 10), buffer, 0..512 << 10)
        })
        .collect();
    for (part, request) in requests.into_iter().enumerate() {
        let (result, buffer) = request.wait();
        result.unwrap();
        assert!(buffer[..] == all[part * (512 << 10)..(part + 1) * (512 << 10)]);
    }
    let buffer = |_| two.peer.memory().bulk_buffer(300_000).unwrap();
    let mut buffers: Vec<_> = (0..3).map(buffer).collect();
    let mut seen = Vec::new();
    let transfer = two.peer.bulk(&owner, remote);
    transfer
        .pull_chunks(0..4 << 20, &mut buffers, |_, chunk| {
            seen.extend_from_slice(chunk);
            Ok::<_, BulkError>(())
        })
        .unwrap();
    assert!(seen == all);
    drop((buffers, exposed));
    two.end();
}

#[test]
fn what_the_owner_does_not_allow_is_refused() {
    for transport in all_asked_for() {
        let two = Two::new(transport);
        let owner = two.owner_addr();
        let read_only = two.owner.expose(two.memory(0, &[1; 100]), Access::ReadOnly).unwrap();
        let write_only = two.owner.expose(two.memory(0, &[1; 100]), Access::WriteOnly).unwrap();
        let mut buffer = two.peer.memory().bulk_buffer(200).unwrap();
        let mut told = |pull: bool, bulk: &Bulk, at: u64, len: usize| {
            let moved = match pull {
                true => two.peer.pull(&owner, bulk, at, &mut buffer, 0..len),
                false => two.peer.push(&owner, bulk, at, &mut buffer, 0..len),
            };
            moved.unwrap_err().to_string()
        };
        for (text, error) in [
            ("does not allow writing", told(false, read_only.bulk(), 0, 10)),
            ("does not allow reading", told(true, write_only.bulk(), 0, 10)),
            ("leave the remote memory of 100 bytes", told(true, read_only.bulk(), 91, 10)),
            ("leave the remote memory of 100 bytes", told(true, read_only.bulk(), u64::MAX, 10)),
            ("0..201", told(true, read_only.bulk(), 0, 201)),
        ] {
            assert!(error.contains(text), "{error}");
        }
        // Memory that was taken back, and then the whole key.
        let gone = read_only.bulk().clone();
        drop(read_only.release().unwrap());
        assert!(told(true, &gone, 0, 10).contains("no device memory under that key"));
        drop(write_only);
        two.end();
    }
}

/// A peer that claims more than the owner has said is refused by the owner.
#[test]
fn the_owner_looks_by_itself() {
    let two = Two::new("na+tcp://127.0.0.1:0");
    let exposed = two.owner.expose(two.memory(0, &[1; 100]), Access::ReadOnly).unwrap();
    two.owner.serve(SHOW).returning(|request| request.args().clone()).unwrap();
    let target = ProviderHandle::from(two.owner_addr());
    let forged = |at: usize, byte: u8| {
        let mut bytes = exposed.bulk().as_bytes().to_vec();
        bytes[at] = byte;
        let mut message = (bytes.len() as u64).to_le_bytes().to_vec();
        message.extend(&bytes);
        margo::hg::proc::from_slice::<Bulk>(&message).unwrap()
    };
    let honest = two.peer.forward(SHOW, &target, exposed.bulk()).unwrap();
    let bytes = honest.as_bytes().to_vec();

    let mut buffer = two.peer.memory().bulk_buffer(100).unwrap();
    // All rights: the flags begin at byte 12, of which the lowest bits are those of access.
    let all_rights = forged(12, bytes[12] | 3);
    let error = two.peer.push(&two.owner_addr(), &all_rights, 0, &mut buffer, 0..10).unwrap_err();
    assert!(error.to_string().contains("refuses"), "{error}");
    two.peer.pull(&two.owner_addr(), &honest, 0, &mut buffer, 0..100).unwrap();
    assert_eq!(buffer[..], [1; 100]);
    drop(exposed);
    two.end();
}

#[test]
fn memory_of_a_device_is_never_read_in_place_and_never_sent_along() {
    let two = Two::new("na+sm://");
    let exposed = two.owner.expose(two.memory(0, &[7; 64]), Access::ReadOnly).unwrap();
    let attr = MemoryAttr::new(MemoryKind::Cuda, 1).unwrap();
    assert_eq!((exposed.bulk().attr(), exposed.segments().len()), (Some(attr), 0));
    assert!(matches!(exposed.read_at(0, &mut [0; 1]), Err(BulkError::OfDevice)));
    assert!(matches!(exposed.write_at(0, &[0; 1]), Err(BulkError::OfDevice)));
    assert!(exposed.bulk().local(0, 1).is_err());
    two.owner.serve(SHOW).returning(|request| request.args().clone()).unwrap();
    let target = ProviderHandle::from(two.owner_addr());
    let there = two.peer.forward(SHOW, &target, exposed.bulk()).unwrap();
    assert!(there.eager_data().is_none() && there.attr() == Some(attr));
    // Other attributes than its own, and pieces of two devices, are errors.
    let other = MemoryAttr::new(MemoryKind::Cuda, 0).unwrap();
    let memory = exposed.release().unwrap();
    let error = two.owner.memory().expose_attr(memory.clone(), Access::ReadOnly, other);
    assert!(error.unwrap_err().to_string().contains("not Cuda memory of device 0"));
    let far = two.drivers[0].device(0).unwrap().alloc(8).unwrap();
    let error = two.owner.expose(vec![memory, far], Access::ReadOnly).unwrap_err().to_string();
    assert!(error.contains("device 1") && error.contains("device 0"), "{error}");
    two.end();
}

#[test]
fn terms_hold() {
    let two = Two::new("na+tcp://127.0.0.1:0");
    let owner = two.owner_addr();
    let memory = two.owner.memory();
    let mut buffer = two.peer.memory().bulk_buffer(600_000).unwrap();
    let expose = |terms| {
        memory.expose_on(two.memory(0, &pattern(600_000, 1)), Access::ReadOnly, terms).unwrap()
    };
    let once = expose(Terms::new().uses(1));
    two.peer.pull(&owner, once.bulk(), 0, &mut buffer, 0..600_000).unwrap();
    assert!(buffer[..] == pattern(600_000, 1));
    let late = expose(Terms::new().until(Instant::now()));
    let another = expose(Terms::new().only_for(Principal::User(77)));
    for exposed in [&once, &late, &another] {
        let error = two.peer.pull(&owner, exposed.bulk(), 0, &mut buffer, 0..1).unwrap_err();
        assert!(error.to_string().contains("no device memory under that key"), "{error}");
    }
    drop((once, late, another));
    two.end();
}

#[test]
fn an_owner_that_does_not_listen_pulls_and_pushes_and_says_why_it_is_not_asked() {
    let two = Two::new("na+tcp://127.0.0.1:0");
    two.owner
        .serve(Rpc::<Bulk, String>::new("try"))
        .returning(|request| {
            let mut buffer = request.instance().memory().bulk_buffer(8).unwrap();
            request.pull(request.args(), 0, &mut buffer, 0..8).unwrap_err().to_string()
        })
        .unwrap();
    // The second instance of the pair does not listen.
    let mut local = two.peer.expose(two.memory(1, &[3; 8]), Access::ReadOnly).unwrap();
    let target = ProviderHandle::from(two.owner_addr());
    let told = two.peer.forward(Rpc::<Bulk, String>::new("try"), &target, local.bulk()).unwrap();
    assert!(told.contains("does not listen"), "{told}");
    let there = two.owner.expose(vec![0; 8], Access::ReadWrite).unwrap();
    two.peer.push(&two.owner_addr(), there.bulk(), 0, &mut local, 0..8).unwrap();
    assert_eq!(there.release().unwrap(), [3; 8]);
    drop(local);
    two.end();
}

/// The free buffers of all pools of an instance, and all.
pub(super) fn buffers(instance: &Instance) -> (usize, usize) {
    let pools = instance.metrics().memory.bulk_pools;
    pools.iter().fold((0, 0), |(free, all), pool| (free + pool.free, all + pool.buffers))
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "{what} does not come about");
        std::thread::yield_now();
    }
}

/// A device that does not go on with its copies: what is cancelled ends when it has.
fn ends_early(transport: &str, held: usize, cancel: impl Fn(&Two, &Addr, &Bulk) -> BulkError) {
    let two = Two::new(transport);
    let exposed = two.owner.expose(two.memory(0, &pattern(3 << 20, 1)), Access::ReadOnly).unwrap();
    let owner = two.owner_addr();
    two.fakes[held].hold(true);
    let error = cancel(&two, &owner, exposed.bulk());
    assert!(
        matches!(error, BulkError::Canceled { .. } | BulkError::TimedOut { .. }),
        "{transport} {held}: {error}"
    );
    two.fakes[held].hold(false);
    for side in [&two.owner, &two.peer] {
        until("the return of buffers", || {
            let (free, all) = buffers(side);
            free == all
        });
    }
    // And it works on.
    let mut buffer = two.peer.memory().bulk_buffer(3 << 20).unwrap();
    two.peer.pull(&owner, exposed.bulk(), 0, &mut buffer, 0..3 << 20).unwrap();
    assert!(buffer[..] == pattern(3 << 20, 1));
    drop(exposed);
    two.end();
}

#[test]
fn a_transfer_is_cancelled_in_each_phase() {
    for transport in all_asked_for() {
        // While the owner copies; its memory of the host is free at once.
        ends_early(transport, 0, |two, owner, remote| {
            let buffer = two.peer.memory().bulk_buffer(3 << 20).unwrap();
            let request = two.peer.bulk(owner, remote).start_pull(0, buffer, 0..3 << 20);
            until("a copy of the owner", || two.fakes[0].pending() > 0);
            request.cancel();
            request.wait().0.unwrap_err()
        });
        // While we copy: the device still has buffers and memory, which come back later.
        ends_early(transport, 1, |two, owner, remote| {
            let local = two
                .peer
                .expose(two.drivers[1].device(0).unwrap().alloc(3 << 20).unwrap(), Access::ReadOnly)
                .unwrap();
            let request = two.peer.bulk(owner, remote).start_pull(0, local, 0..3 << 20);
            until("a copy of ours", || two.fakes[1].pending() > 0);
            request.cancel();
            let (result, local) = request.wait();
            let releasing = local.release_timed(Duration::ZERO).unwrap_err();
            two.fakes[1].hold(false);
            drop(releasing.wait().unwrap());
            result.unwrap_err()
        });
        // By its deadline.
        ends_early(transport, 0, |two, owner, remote| {
            let mut buffer = two.peer.memory().bulk_buffer(3 << 20).unwrap();
            let transfer = two.peer.bulk(owner, remote).timeout(Duration::from_millis(50));
            transfer.pull(0, &mut buffer, 0..3 << 20).unwrap_err()
        });
        // Dropped.
        ends_early(transport, 0, |two, owner, remote| {
            let buffer = two.peer.memory().bulk_buffer(3 << 20).unwrap();
            let request = two.peer.bulk(owner, remote).start_pull(0, buffer, 0..3 << 20);
            until("a copy of the owner", || two.fakes[0].pending() > 0);
            drop(request);
            BulkError::Canceled { peer: String::new() }
        });
    }
}

#[test]
fn an_error_of_the_device_reaches_the_initiator_by_name() {
    for transport in all_asked_for() {
        let two = Two::new(transport);
        let exposed = two.owner.expose(two.memory(0, &[1; 100]), Access::ReadWrite).unwrap();
        let mut buffer = two.peer.memory().bulk_buffer(100).unwrap();
        for (function, push) in [
            ("cuMemcpyDtoHAsync", false),
            ("cuMemcpyHtoDAsync", true),
            ("cuEventRecord", false),
            ("cuEventQuery", true),
        ] {
            two.fakes[0].fail(function, 0, raw::CUDA_ERROR_UNKNOWN);
            let moved = match push {
                true => two.peer.push(&two.owner_addr(), exposed.bulk(), 0, &mut buffer, 0..100),
                false => two.peer.pull(&two.owner_addr(), exposed.bulk(), 0, &mut buffer, 0..100),
            };
            let error = moved.unwrap_err().to_string();
            for part in [function, "CUDA_ERROR_UNKNOWN", "device 1"] {
                assert!(error.contains(part), "no {part} in {error}");
            }
        }
        two.peer.pull(&two.owner_addr(), exposed.bulk(), 0, &mut buffer, 0..100).unwrap();
        drop(exposed);
        two.end();
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_told_when_it_is_exposed() {
    let two = Two::new("na+sm://");
    let memory = two.memory(0, &[1; 100]);
    for nth in [0, 3] {
        two.fakes[0].fail("cuMemHostRegister", nth, raw::CUDA_ERROR_OUT_OF_MEMORY);
        let error = two.owner.expose(memory.clone(), Access::ReadOnly).unwrap_err().to_string();
        assert!(error.contains("cuMemHostRegister"), "{error}");
        assert_eq!(two.fakes[0].in_use().pinned, 0);
    }
    drop(two.owner.expose(memory, Access::ReadOnly).unwrap());
    two.end();
}

/// Memory is released when the transfer that has begun is over, and not before.
#[test]
fn a_release_waits_for_what_has_begun() {
    let two = Two::new("na+sm://");
    let exposed = two.owner.expose(two.memory(0, &pattern(1 << 20, 1)), Access::ReadOnly).unwrap();
    let (owner, remote) = (two.owner_addr(), exposed.bulk().clone());
    two.fakes[0].hold(true);
    let buffer = two.peer.memory().bulk_buffer(1 << 20).unwrap();
    let request = two.peer.bulk(&owner, &remote).start_pull(0, buffer, 0..1 << 20);
    until("a copy of the owner", || two.fakes[0].pending() > 0);
    let releasing = exposed.release_timed(Duration::ZERO).unwrap_err();
    two.fakes[0].hold(false);
    let (result, buffer) = request.wait();
    result.unwrap();
    assert!(buffer[..] == pattern(1 << 20, 1));
    drop(releasing.wait().unwrap());
    two.end();
}

/// Memory of one instance, of one device and of two: the driver copies.
#[test]
fn an_instance_moves_between_its_own_devices_by_their_copies() {
    for transport in all_asked_for() {
        let two = Two::new(transport);
        let (own, here) = (&two.owner, two.owner.self_addr());
        let all = pattern(3 << 20, 1);
        let moved = || {
            let memory = own.metrics().memory;
            (memory.device_staged_bytes, memory.device_shared_bytes)
        };
        let pieces: Vec<_> = all.chunks(1 << 20).map(|part| two.memory(0, part)).collect();
        let exposed = own.expose(pieces, Access::ReadWrite).unwrap();
        for (round, device) in [(1, 1), (2, 0)] {
            let memory = two.drivers[0].device(device).unwrap().alloc(3 << 20).unwrap();
            memory.write_at(0, &pattern(3 << 20, 2)).unwrap();
            let mut local = own.expose(memory.clone(), Access::ReadOnly).unwrap();
            own.pull(&here, exposed.bulk(), 5, &mut local, 7..2_500_000).unwrap();
            let mut expected = pattern(3 << 20, 2);
            expected[7..2_500_000].copy_from_slice(&all[5..2_499_998]);
            assert!(bytes_of(&memory) == expected, "{transport} {device}");
            // The same bytes back.
            own.push(&here, exposed.bulk(), 5, &mut local, 7..2_500_000).unwrap();
            assert_eq!(moved(), (0, round * 2 * 2_499_993), "{transport} {device}");
            let read_only = own.expose(two.memory(0, &[1; 64]), Access::ReadOnly).unwrap();
            let error = own.push(&here, read_only.bulk(), 0, &mut local, 0..64).unwrap_err();
            assert!(error.to_string().contains("does not allow writing"), "{error}");
            if device == 0 {
                two.fakes[0].fail("cuMemcpyPeerAsync", 0, raw::CUDA_ERROR_UNKNOWN);
                let error = own.pull(&here, exposed.bulk(), 0, &mut local, 0..9).unwrap_err();
                assert!(error.to_string().contains("cuMemcpyPeerAsync"), "{error}");
            }
            // A device that does not go on: nobody waits, and the memory comes back after that.
            two.fakes[0].hold(true);
            let error = own.bulk(&here, exposed.bulk()).timeout(LIMIT).pull(0, &mut local, 0..9);
            assert!(matches!(error, Err(BulkError::TimedOut { .. })), "{error:?}");
            let releasing = local.release_timed(Duration::ZERO).unwrap_err();
            two.fakes[0].hold(false);
            drop((releasing.wait().unwrap(), memory));
        }
        let back: Vec<_> = exposed.release().unwrap().iter().map(bytes_of).collect();
        assert!(back.concat() == all);
        two.end();
    }
}

/// Both sides wait for each other's buffers at once.
#[test]
fn two_devices_move_to_and_from_each_other_at_once() {
    for transport in all_asked_for() {
        let services: Vec<_> = (0..2).map(|_| builder(transport).start().unwrap()).collect();
        let fakes = [Fake::new(1, 5), Fake::new(1, 6)];
        let gpu = |side: usize| fakes[side].driver().unwrap().device(0).unwrap();
        let exposed: Vec<_> = (0..2)
            .map(|side| {
                let memory = gpu(side).alloc(6 << 20).unwrap();
                memory.write_at(0, &pattern(6 << 20, side as u8)).unwrap();
                services[side].expose(memory, Access::ReadOnly).unwrap()
            })
            .collect();
        let locals: Vec<_> = (0..8)
            .map(|at| {
                let memory = gpu(at % 2).alloc(6 << 20).unwrap();
                services[at % 2].expose(memory, Access::ReadOnly).map(Arc::new).unwrap()
            })
            .collect();
        let requests: Vec<_> = (0..8)
            .map(|at| {
                let (own, other) = (at % 2, 1 - at % 2);
                let peer = services[own].lookup(services[other].self_addr().uri()).unwrap();
                let remote = exposed[other].bulk();
                services[own].bulk(&peer, remote).start_pull(0, locals[at].clone(), 0..6 << 20)
            })
            .collect();
        for request in requests {
            request.wait().0.unwrap();
        }
        for (at, local) in locals.into_iter().enumerate() {
            let memory = Arc::into_inner(local).unwrap().release().unwrap();
            assert!(bytes_of(&memory) == pattern(6 << 20, 1 - (at % 2) as u8));
        }
        drop(exposed);
        services.into_iter().for_each(|service| service.finalize_and_wait().unwrap());
        fakes.iter().for_each(assert_clean);
    }
}

/// The end of an instance ends its transfers.
#[test]
fn the_end_of_an_instance_ends_transfers() {
    for transport in all_asked_for() {
        let two = Two::new(transport);
        let exposed =
            two.owner.expose(two.memory(0, &pattern(3 << 20, 1)), Access::ReadOnly).unwrap();
        two.fakes[0].hold(true);
        let buffer = two.peer.memory().bulk_buffer(3 << 20).unwrap();
        let owner = two.owner_addr();
        let request = two.peer.bulk(&owner, exposed.bulk()).start_pull(0, buffer, 0..3 << 20);
        until("a copy of the owner", || two.fakes[0].pending() > 0);
        two.peer.finalize();
        let (result, _buffer) = request.wait();
        assert!(result.is_err());
        two.fakes[0].hold(false);
        drop((exposed, owner));
        two.end();
    }
}

/// A device that never goes on with its copies holds up no transfer and no end of an instance.
#[test]
fn a_copy_that_never_ends_ends_no_later_than_its_deadline() {
    for transport in all_asked_for() {
        for held in 0..2 {
            let two = Two::new(transport);
            let (there, here) = (two.memory(0, &[1; 1 << 20]), two.memory(1, &[0; 1 << 20]));
            let exposed = two.owner.expose(there, Access::ReadOnly).unwrap();
            let mut local = two.peer.expose(here, Access::ReadOnly).unwrap();
            let owner = two.owner_addr();
            two.fakes[held].hold(true);
            let transfer = two.peer.bulk(&owner, exposed.bulk()).timeout(LIMIT);
            // On a loaded machine the first may be over before the device is asked.
            while two.fakes[held].pending() == 0 {
                let error = transfer.pull(0, &mut local, 0..1 << 20).unwrap_err();
                assert!(matches!(error, BulkError::TimedOut { .. }), "{transport} {held}: {error}");
            }
            two.peer.finalize_and_wait().unwrap();
            two.owner.finalize_and_wait().unwrap();
            assert!(two.fakes[held].pending() > 0, "the device has not gone on");
            two.fakes[held].hold(false);
            drop((exposed, local, owner));
            two.end();
        }
    }
}

/// Generic code takes device memory like any other local side.
#[test]
fn device_memory_is_a_local_side_like_others() {
    fn fetch(
        instance: &Instance,
        (owner, remote): (&Addr, &Bulk),
        into: &mut impl LocalBulk,
        len: usize,
    ) -> Result<(), BulkError> {
        instance.pull(owner, remote, 0, into, 0..len)
    }
    let two = Two::new("na+sm://");
    let there = two.owner.expose(pattern(1000, 4), Access::ReadOnly).unwrap();
    let memory = two.memory(1, &[0; 1000]);
    let local = two.peer.expose(memory.clone(), Access::ReadOnly).unwrap();
    fetch(&two.peer, (&two.owner_addr(), there.bulk()), &mut &local, 1000).unwrap();
    assert!(bytes_of(&memory) == pattern(1000, 4));
    drop((there, local, memory));
    two.end();
}

#[test]
fn devices_are_made_ready_at_the_start_if_that_is_asked_for() {
    let fake = Fake::new(2, 1);
    let start = |devices: &str| {
        let text = format!(
            r#"{{ "mercury": {{ "na_request_mem_device": true }},
                 "margo": {{ "device": {{ "devices": [{devices}], "buffers": 4 }} }} }}"#
        );
        let config = margo::config::Config::from_json(&text).unwrap();
        let builder = margo::InstanceBuilder::from_config(config);
        builder.device_driver(fake.driver().unwrap()).start()
    };
    for (devices, pinned) in [(r#""1""#, 4), ("", 8), (r#""0000:F0:00.0""#, 4)] {
        let instance = start(devices).unwrap();
        assert_eq!(fake.in_use().pinned, pinned, "{devices}");
        instance.finalize_and_wait().unwrap();
        drop(instance);
        assert_clean(&fake);
    }
    let error = start(r#""7""#).unwrap_err().to_string();
    for part in ["na_request_mem_device", "no device 7", "1 (00000000:f1:00.0)"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
    assert_clean(&fake);
}

#[test]
fn an_instance_that_is_to_have_devices_says_what_is_missing() {
    if let Ok(driver) = device::Driver::cuda() {
        return println!("SKIPPED: there is {driver:?}");
    }
    let error = margo::init(r#"{ "mercury": { "na_request_mem_device": true } }"#).unwrap_err();
    assert!(matches!(error, margo::InitError::Device(_)));
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
}
