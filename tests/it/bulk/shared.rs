//! Memory of devices of two processes of one host, which one of the devices copies, over the fake
//! driver: when that is the way, what stays as with buffers, what ends early, and that everything
//! comes back. Two processes are in `shared_processes.rs`.

use std::time::Duration;

use device::{DeviceMemory, Driver, raw};
use margo::bulk_memory::Terms;
use margo::config::{Config, DeviceOptions, Shards};
use margo::{Access, Addr, Bulk, BulkError, Instance, InstanceBuilder, device};
use na::sim::{LinkOptions, Network};

use super::staged::{LIMIT, Two, assert_clean, bytes_of, pattern, until};
use crate::common::shards;

/// An instance that lends device memory to processes of its host, and maps theirs.
pub(super) fn sharing(
    address: impl Into<String>,
    change: impl FnOnce(&mut DeviceOptions),
) -> InstanceBuilder {
    let mut config = Config::default();
    config.margo.address = address.into();
    config.margo.device.share = true;
    change(&mut config.margo.device);
    if shards() > 1 {
        config.margo.shards = Some(Shards::Count(shards()));
    }
    InstanceBuilder::from_config(config)
}

/// An owner and an initiator over a transport that hands descriptors over.
fn two(transport: &str) -> Two {
    two_of(transport, |_| ())
}

fn two_of(transport: &str, change: impl Fn(&mut DeviceOptions)) -> Two {
    let (owner, peer) = match transport.strip_prefix("na+sim://") {
        Some(_) => (format!("{transport}/a"), format!("{transport}/b")),
        None => (transport.to_owned(), transport.to_owned()),
    };
    let owner = sharing(owner, &change).start().unwrap();
    let listens = transport.starts_with("na+sim");
    Two::of(owner, sharing(peer, &change).listen(listens).start().unwrap())
}

/// Memory of the initiator that can be lent.
fn exportable(two: &Two, bytes: &[u8]) -> DeviceMemory {
    let gpu = two.drivers[1].device(1).unwrap();
    let memory = gpu.alloc_exportable(bytes.len()).unwrap();
    memory.write_at(0, bytes).unwrap();
    memory
}

/// Bytes that the instance has copied by buffers, and by a device alone.
fn moved(instance: &Instance) -> (u64, u64) {
    let memory = instance.metrics().memory;
    (memory.device_staged_bytes, memory.device_shared_bytes)
}

/// Pieces of device memory of others that are mapped.
pub(super) fn mappings(instance: &Instance) -> usize {
    instance.metrics().memory.device_mappings
}

#[test]
fn a_device_copies_between_two_processes_of_a_host() {
    const BYTES: usize = (5 << 20) + 16;
    for transport in ["na+sm://", "na+sim://shared-moves"] {
        let two = two(transport);
        let (theirs, ours) = (pattern(BYTES, 1), pattern(BYTES, 2));
        // The owner's may be any.
        let there = two.memory(0, &theirs);
        let exposed = two.owner.expose(there.clone(), Access::ReadWrite).unwrap();
        let here = exportable(&two, &ours);
        let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
        let (owner, remote) = (two.owner_addr(), exposed.bulk());
        let before = two.fakes[0].copies();
        two.peer.pull(&owner, remote, 7, &mut local, 3..3 + (4 << 20)).unwrap();
        two.peer.push(&owner, remote, 1, &mut local, (4 << 20)..5 << 20).unwrap();
        two.peer.pull(&owner, remote, 0, &mut local, 5..5).unwrap();
        let mut expected_here = ours.clone();
        expected_here[3..3 + (4 << 20)].copy_from_slice(&theirs[7..7 + (4 << 20)]);
        let mut expected_there = theirs.clone();
        expected_there[1..1 + (1 << 20)].copy_from_slice(&expected_here[4 << 20..5 << 20]);
        assert!(bytes_of(&here) == expected_here && bytes_of(&there) == expected_there);
        // Mapped once, and no buffer was used.
        assert_eq!((mappings(&two.owner), mappings(&two.peer)), (1, 0));
        assert_eq!(moved(&two.owner), (0, 5 << 20), "{transport}");
        assert_eq!(moved(&two.peer), (0, 0));
        let after = two.fakes[0].copies();
        assert_eq!((after.pinned, after.within), (before.pinned, before.within + 2));
        // Taken back with the memory.
        drop((local.release().unwrap(), here));
        assert_eq!(mappings(&two.owner), 0);
        drop((exposed, there, owner));
        two.end();
    }
}

#[test]
fn bytes_that_are_lent_are_copied_by_a_device_of_this_machine() {
    let driver = match Driver::cuda() {
        Ok(driver) => driver,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let two = two("na+sm://");
    let gpu = driver.device(0).unwrap();
    let (there, here) = (gpu.alloc(5 << 20).unwrap(), gpu.alloc_exportable(5 << 20).unwrap());
    there.write_at(0, &pattern(5 << 20, 1)).unwrap();
    let exposed = two.owner.expose(there, Access::ReadOnly).unwrap();
    let mut local = two.peer.expose(here, Access::ReadOnly).unwrap();
    two.peer.pull(&two.owner_addr(), exposed.bulk(), 0, &mut local, 0..5 << 20).unwrap();
    assert_eq!(moved(&two.owner), (0, 5 << 20), "of (buffers, a device alone)");
    assert!(bytes_of(&local.release().unwrap()) == pattern(5 << 20, 1));
    drop(exposed);
    two.end();
}

#[test]
fn pieces_of_both_sides_are_one_range_each() {
    let two = two("na+sm://");
    let all = pattern(700_000, 3);
    let cut = |ends: &[usize], make: &dyn Fn(&[u8]) -> DeviceMemory| -> Vec<DeviceMemory> {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(ends).map(|(from, to)| make(&all[from..*to])).collect()
    };
    // More copies than are started at a time.
    let ends: Vec<_> = (1..=700).map(|piece| piece * 1000).collect();
    let there = cut(&ends, &|bytes| two.memory(0, bytes));
    let exposed = two.owner.expose(there, Access::ReadOnly).unwrap();
    let here = cut(&[3, 200_001, 650_000], &|bytes| exportable(&two, bytes));
    here.iter().for_each(|piece| piece.write_at(0, &vec![0; piece.len()]).unwrap());
    let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
    two.peer.pull(&two.owner_addr(), exposed.bulk(), 1, &mut local, 2..650_000).unwrap();
    let got = here.iter().map(bytes_of).collect::<Vec<_>>().concat();
    assert!(got[2..] == all[1..649_999]);
    assert_eq!((moved(&two.owner), mappings(&two.owner)), ((0, 649_998), 3));
    drop((exposed, local, here));
    two.end();
}

/// Pulls a MiB, and returns whether a device did it alone.
fn pulls_alone(two: &Two, here: DeviceMemory) -> bool {
    let exposed = two.owner.expose(two.memory(0, &pattern(1 << 20, 5)), Access::ReadOnly).unwrap();
    let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
    let before = moved(&two.owner).1;
    let owner = two.owner_addr();
    for _ in 0..2 {
        here.write_at(0, &[0; 1 << 20]).unwrap();
        two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..1 << 20).unwrap();
        assert!(bytes_of(&here) == pattern(1 << 20, 5));
    }
    let alone = moved(&two.owner).1 - before;
    assert!(alone == 0 || alone == 2 << 20, "{alone}");
    alone > 0
}

#[test]
fn where_memory_cannot_be_lent_buffers_are_the_way() {
    // Other memory than that which has a handle.
    let plain = two("na+sm://");
    let here = plain.memory(1, &[0; 1 << 20]);
    assert!(!pulls_alone(&plain, here));
    assert!(pulls_alone(&plain, exportable(&plain, &[0; 1 << 20])));
    // What the driver refuses, on either side; it is not tried again for that memory.
    for (side, function) in [
        (1, "cuMemExportToShareableHandle"),
        (0, "cuMemImportFromShareableHandle"),
        (0, "cuMemMap"),
        (0, "cuMemSetAccess"),
    ] {
        let here = exportable(&plain, &[0; 1 << 20]);
        plain.fakes[side].fail(function, 0, raw::CUDA_ERROR_NOT_SUPPORTED);
        assert!(!pulls_alone(&plain, here), "{function}");
        assert_eq!(mappings(&plain.owner), 0);
    }
    plain.end();
    // A transport that hands nothing over.
    let far = two("na+tcp://127.0.0.1:0");
    let here = exportable(&far, &[0; 1 << 20]);
    assert!(!pulls_alone(&far, here));
    far.end();
    // One side has not set it.
    for off in 0..2 {
        let side = |own: usize| sharing("na+sm://", |options| options.share = own != off);
        let (owner, peer) = (side(0).start().unwrap(), side(1).listen(false).start().unwrap());
        let two = Two::of(owner, peer);
        let here = exportable(&two, &[0; 1 << 20]);
        assert!(!pulls_alone(&two, here));
        two.end();
    }
}

#[test]
fn what_is_beyond_the_bounds_of_mappings_goes_through_buffers() {
    let few = two_of("na+sm://", |options| options.mapped_bytes_max = (1 << 20) - 1);
    let here = exportable(&few, &[0; 1 << 20]);
    assert!(!pulls_alone(&few, here));
    few.end();
    let two = two("na+sm://");
    let exposed = two.owner.expose(two.memory(0, &pattern(64, 5)), Access::ReadOnly).unwrap();
    let owner = two.owner_addr();
    let mut locals: Vec<_> = (0..20)
        .map(|_| two.peer.expose(exportable(&two, &[0; 64]), Access::ReadOnly).unwrap())
        .collect();
    for local in &mut locals {
        two.peer.pull(&owner, exposed.bulk(), 0, local, 0..64).unwrap();
    }
    assert_eq!(mappings(&two.owner), 16, "of one peer");
    for local in locals {
        assert!(bytes_of(&local.release().unwrap()) == pattern(64, 5));
    }
    assert_eq!(mappings(&two.owner), 0);
    drop((exposed, owner));
    two.end();
}

/// The owner looks each time, as with buffers, and its memory goes to nobody.
#[test]
fn rights_bounds_terms_and_revocation_hold() {
    let two = two("na+sm://");
    let owner = two.owner_addr();
    let mut local = two.peer.expose(exportable(&two, &[9; 100]), Access::ReadOnly).unwrap();
    let once = Terms::new().uses(1);
    let memory = |byte| two.memory(0, &[byte; 100]);
    let exposed = two.owner.expose(memory(1), Access::ReadOnly).unwrap();
    let on_terms = two.owner.memory().expose_on(memory(2), Access::ReadOnly, once).unwrap();
    two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..100).unwrap();
    two.peer.pull(&owner, on_terms.bulk(), 0, &mut local, 0..100).unwrap();
    let error = two.peer.pull(&owner, on_terms.bulk(), 0, &mut local, 0..1).unwrap_err();
    assert!(error.to_string().contains("no device memory under that key"), "{error}");
    let error = two.peer.push(&owner, exposed.bulk(), 0, &mut local, 0..1).unwrap_err();
    assert!(error.to_string().contains("does not allow writing"), "{error}");
    let error = two.peer.pull(&owner, exposed.bulk(), 91, &mut local, 0..10).unwrap_err();
    assert!(error.to_string().contains("leave the remote memory"), "{error}");
    assert_eq!(moved(&two.owner), (0, 200));
    let gone = exposed.bulk().clone();
    drop(exposed.release().unwrap());
    let error = two.peer.pull(&owner, &gone, 0, &mut local, 0..1).unwrap_err();
    assert!(error.to_string().contains("no device memory under that key"), "{error}");
    // What cannot be mapped has not counted against terms before it goes by buffers.
    let once = two.owner.memory().expose_on(memory(3), Access::ReadOnly, Terms::new().uses(1));
    let once = once.unwrap();
    let mut other = two.peer.expose(exportable(&two, &[0; 100]), Access::ReadOnly).unwrap();
    two.fakes[0].fail("cuMemImportFromShareableHandle", 0, raw::CUDA_ERROR_NOT_SUPPORTED);
    two.peer.pull(&owner, once.bulk(), 0, &mut other, 0..100).unwrap();
    assert!(bytes_of(&other.release().unwrap()) == [3; 100]);
    drop(once);
    // Nothing of the owner's was mapped by the other one.
    assert_eq!(mappings(&two.peer), 0);
    drop((on_terms, local));
    two.end();
}

/// The owner's device stands still while it copies; `cancel` ends that.
fn ends_early(cancel: impl Fn(&Two, (&Addr, &Bulk), DeviceMemory) -> BulkError) {
    let two = two("na+sm://");
    let exposed = two.owner.expose(two.memory(0, &pattern(3 << 20, 1)), Access::ReadOnly).unwrap();
    let owner = two.owner_addr();
    let here = exportable(&two, &[0; 3 << 20]);
    two.fakes[0].hold(true);
    let error = cancel(&two, (&owner, exposed.bulk()), here.clone());
    assert!(matches!(error, BulkError::Canceled { .. } | BulkError::TimedOut { .. }), "{error}");
    two.fakes[0].hold(false);
    until("the end of the mapping", || mappings(&two.owner) == 0);
    // And it works on.
    let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
    two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..3 << 20).unwrap();
    assert!(bytes_of(&here) == pattern(3 << 20, 1));
    // One that was dropped may have been over before that was heard.
    let (staged, alone) = moved(&two.owner);
    assert!(staged == 0 && alone >= 3 << 20, "{staged} {alone}");
    drop((exposed, local, here, owner));
    two.end();
}

/// The memory that was lent comes back when the device has gone on, and not before.
#[test]
fn a_copy_is_cancelled_and_the_memory_comes_back_when_the_device_is_done() {
    ends_early(|two, (owner, remote), here| {
        let local = two.peer.expose(here, Access::ReadOnly).unwrap();
        let request = two.peer.bulk(owner, remote).start_pull(0, local, 0..3 << 20);
        until("a copy of the owner", || two.fakes[0].pending() > 0);
        request.cancel();
        let (result, local) = request.wait();
        let releasing = local.release_timed(Duration::ZERO).unwrap_err();
        two.fakes[0].hold(false);
        drop(releasing.wait().unwrap());
        result.unwrap_err()
    });
    ends_early(|two, (owner, remote), here| {
        let mut local = two.peer.expose(here, Access::ReadOnly).unwrap();
        let transfer = two.peer.bulk(owner, remote).timeout(LIMIT);
        // On a loaded machine the first may be over before the device is asked.
        let error = loop {
            let error = transfer.pull(0, &mut local, 0..3 << 20).unwrap_err();
            if two.fakes[0].pending() > 0 {
                break error;
            }
        };
        // Another one into it could meet the bytes of this one.
        let again = transfer.pull(0, &mut local, 0..1).unwrap_err().to_string();
        assert!(again.contains("may still be written"), "{again}");
        error
    });
    // Dropped.
    ends_early(|two, (owner, remote), here| {
        let local = two.peer.expose(here, Access::ReadOnly).unwrap();
        let request = two.peer.bulk(owner, remote).start_pull(0, local, 0..3 << 20);
        until("a copy of the owner", || two.fakes[0].pending() > 0);
        drop(request);
        BulkError::Canceled { peer: String::new() }
    });
}

#[test]
fn a_device_that_never_goes_on_holds_up_no_end() {
    for ends_first in 0..2 {
        let two = two("na+sm://");
        let exposed = two.owner.expose(two.memory(0, &[1; 1 << 20]), Access::ReadOnly).unwrap();
        let local = two.peer.expose(exportable(&two, &[0; 1 << 20]), Access::ReadOnly).unwrap();
        let owner = two.owner_addr();
        two.fakes[0].hold(true);
        let request = two.peer.bulk(&owner, exposed.bulk()).start_pull(0, local, 0..1 << 20);
        until("a copy of the owner", || two.fakes[0].pending() > 0);
        let both = [&two.owner, &two.peer];
        both[ends_first].finalize_and_wait().unwrap();
        let (result, local) = request.wait();
        assert!(result.is_err());
        both[1 - ends_first].finalize_and_wait().unwrap();
        assert!(two.fakes[0].pending() > 0, "the device has not gone on");
        two.fakes[0].hold(false);
        drop((exposed, local, owner));
        two.end();
    }
}

/// Errors of the device that copies are told, and the next transfer works.
#[test]
fn an_error_of_the_owners_device_reaches_the_initiator() {
    let two = two("na+sm://");
    let exposed = two.owner.expose(two.memory(0, &[1; 100]), Access::ReadWrite).unwrap();
    let mut local = two.peer.expose(exportable(&two, &[0; 100]), Access::ReadOnly).unwrap();
    let owner = two.owner_addr();
    two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..100).unwrap();
    for function in ["cuMemcpyDtoDAsync", "cuEventRecord", "cuEventQuery"] {
        two.fakes[0].fail(function, 0, raw::CUDA_ERROR_UNKNOWN);
        let error = two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..100).unwrap_err();
        assert!(error.to_string().contains(function), "{error}");
    }
    two.peer.pull(&owner, exposed.bulk(), 0, &mut local, 0..100).unwrap();
    drop((exposed, local, owner));
    two.end();
}

/// Several transfers at once lend the memory once.
#[test]
fn transfers_at_once_share_a_mapping() {
    let two = two("na+sm://");
    let all = pattern(8 << 20, 9);
    let exposed = two.owner.expose(two.memory(0, &all), Access::ReadOnly).unwrap();
    let here = exportable(&two, &vec![0; 8 << 20]);
    let local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
    let (local, owner) = (std::sync::Arc::new(local), two.owner_addr());
    let requests: Vec<_> = (0..8)
        .map(|part| {
            let range = part << 20..(part + 1) << 20;
            let transfer = two.peer.bulk(&owner, exposed.bulk());
            transfer.start_pull(range.start as u64, local.clone(), range)
        })
        .collect();
    for request in requests {
        request.wait().0.unwrap();
    }
    assert!(bytes_of(&here) == all);
    assert_eq!((mappings(&two.owner), moved(&two.owner)), (1, (0, 8 << 20)));
    drop((exposed, local, here, owner));
    two.end();
}

/// Seeds by which the network loses packets, and the node of one side dies at some time: each
/// transfer moves all or is an error, and nothing of either device is left.
#[test]
fn a_node_that_dies_at_any_time_leaves_nothing_mapped() {
    for seed in 0..40_u64 {
        let name = format!("shared-deaths-{seed}");
        let limit = Duration::from_millis(50);
        let link = LinkOptions::unreliable(0.05);
        let network = Network::builder(&name).seed(seed).link(link).peer_limit(limit);
        let network = network.build().unwrap();
        let two = two(&format!("na+sim://{name}"));
        let exposed = two.owner.expose(two.memory(0, &pattern(1 << 20, 1)), Access::ReadWrite);
        let exposed = exposed.unwrap();
        let here = exportable(&two, &pattern(1 << 20, 2));
        let mut local = two.peer.expose(here.clone(), Access::ReadOnly).unwrap();
        let owner = two.owner_addr();
        // Up to the time that some transfers take.
        let at = network.now() + Duration::from_micros(seed * 97 % 2000);
        let dies = if seed % 2 == 0 { "a" } else { "b" };
        network.schedule(at, move |network| network.crash(dies));
        for round in 0..6 {
            let transfer = two.peer.bulk(&owner, exposed.bulk()).timeout(Duration::from_secs(60));
            let moved = match round % 2 {
                0 => transfer.pull(0, &mut local, 0..1 << 20),
                _ => transfer.push(0, &mut local, 0..1 << 20),
            };
            match moved {
                Ok(()) => assert!(bytes_of(&here) == pattern(1 << 20, 1), "{seed} {round}"),
                Err(_) => break,
            }
        }
        let fakes = two.fakes.clone();
        for instance in [&two.peer, &two.owner] {
            instance.finalize();
            // An endpoint that has crashed is an error, and the end all the same.
            let _ = instance.wait_for_finalize();
        }
        drop((exposed, local, here, owner, two));
        fakes.iter().for_each(assert_clean);
    }
}
