//! Bulk handles and transfers against bad timing and bad bytes.

use std::sync::{Mutex, mpsc};

use proptest::prelude::*;

use super::*;
use crate::bulk::desc::{BulkDesc, flags};
use crate::{Bulk, BulkOp, proc};

/// A handle of `memory` as it arrives elsewhere, without embedded data.
fn sent(core: &Core<u32>, memory: &LocalMem) -> Bulk {
    Bulk::from_bytes(core.bulk_handle(memory).as_bytes()).unwrap()
}

/// A transfer of 8 pieces, canceled between the moment at which one of them is claimed and that at
/// which the network learns of it; the others wait until the network is told of the cancel.
#[test]
fn a_cancel_beside_the_start_of_a_piece_is_not_lost() {
    let options = HgOptions { bulk_chunk_bytes: 10, bulk_window: 4, ..HgOptions::default() };
    let (mut origin, mut target) = pair_with(options);
    let peer = target.addr_of(&origin);
    let memory = origin.expose(pattern(80), Access::ReadWrite);
    let bulk = sent(&origin.core, &memory);
    let local = target.expose(vec![0; 80], Access::ReadWrite);
    // The slots are reused last in, first out: this is the name that the transfer will have.
    let name = Arc::new(Mutex::new(None::<OpRef>));
    for _ in 0..2 {
        let known = *name.lock().unwrap();
        if let Some(op) = known {
            let core = target.core.clone();
            target.endpoint.before_a_move(move || core.cancel(op));
        }
        let op = target.core.transfer(BulkOp::Pull, &peer, &bulk, 0, &local, 0, 80, 1).unwrap();
        if known.is_some() {
            assert_eq!(known, Some(op));
            assert_eq!(target.endpoint.moves_started(), 8 + 1, "no further piece");
            // The network was told, so it does not depend on the owner.
            target.endpoint.freeze_moves(true);
        }
        settle(&mut origin, &mut target);
        let ended = target.notes.bulks.remove(&1).unwrap();
        assert_eq!(matches!(ended, Err(HgError::Canceled)), known.is_some(), "{ended:?}");
        *name.lock().unwrap() = Some(op.reused());
    }
    assert_eq!(target.core.in_flight(), 0);
}

/// The origin of a one-way call knows nothing of what the target does with its memory. It may drop
/// it at any time: who reads already reads to the end, who comes later is refused.
#[test]
fn a_one_way_call_cannot_free_memory_under_its_reader() {
    let (mut origin, mut target) = pair();
    let memory = origin.expose(pattern(5000), Access::ReadOnly);
    let bulk = origin.core.bulk_handle(&memory);
    let to = origin.addr_of(&target);
    let one_way = ForwardOptions { no_response: true, ..ForwardOptions::default() };
    let encode = |writer: &mut crate::Writer| proc::to_writer(writer, &bulk);
    origin.core.forward(&to, SUM, one_way, encode, 1).unwrap();
    let request = arrive(&mut origin, &mut target);
    let received: Bulk = proc::from_slice(request.payload()).unwrap();
    assert!(origin.notes.responses.contains_key(&1), "for the origin it is over");

    // A reader holds the memory as a transport's serving side does: by a lease.
    let lease = memory.clone();
    let (sender, freed) = mpsc::channel();
    memory.revoke(move |memory| sender.send(memory).unwrap());
    assert!(freed.try_recv().is_err(), "it is still read");
    let mut bytes = vec![0; 5000];
    assert!(lease.read_at(0, &mut bytes) && bytes == pattern(5000));
    drop(lease);
    assert_eq!(freed.try_recv().unwrap().into_owner::<Vec<u8>>().unwrap(), pattern(5000));

    let local = target.expose(vec![0; 5000], Access::ReadOnly);
    let peer = target.addr_of(&origin);
    target.core.transfer(BulkOp::Pull, &peer, &received, 0, &local, 0, 5000, 2).unwrap();
    settle(&mut origin, &mut target);
    let error = target.notes.bulks[&2].as_ref().unwrap_err();
    assert!(matches!(error, HgError::Na(na::Error::Denied { .. })), "{error}");
    assert_eq!(read(&local), vec![0; 5000], "nothing of what stands there now");
}

/// A bound handle with embedded data: all that a descriptor of ours can have.
fn full() -> (Side, Bulk, Vec<u8>) {
    let (origin, _target) = pair();
    let memory = origin.expose(pattern(20), Access::ReadWrite);
    let bound = origin.core.bulk_bind(&origin.core.bulk_handle(&memory), 3).unwrap();
    let mut desc = BulkDesc::from_bytes(bound.as_bytes()).unwrap();
    let data = pattern(20);
    desc.flags |= flags::EAGER;
    desc.eager = Some(&data);
    let bytes = desc.to_bytes();
    (origin, bound, bytes)
}

#[test]
fn every_cut_and_every_flipped_bit_is_survived() {
    let (origin, bound, bytes) = full();
    let whole = Bulk::from_bytes(&bytes).unwrap();
    assert_eq!(whole.eager_data(), Some(&pattern(20)[..]));
    assert_eq!((whole.owner_context(), bound.owner_context()), (Some(3), Some(3)));
    for at_owner in [&whole, &bound] {
        let owner = origin.core.bulk_owner(at_owner).unwrap();
        assert_eq!(owner, Some(origin.core.self_addr()));
    }
    for cut in 1..bytes.len() {
        assert!(Bulk::from_bytes(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(bulk) = Bulk::from_bytes(&changed) {
            use_it(&origin, &bulk);
        }
    }
}

/// Does with a handle all that a receiver could; whatever it is, nothing panics or is reached.
fn use_it(side: &Side, bulk: &Bulk) {
    let _ = (side.core.bulk_owner(bulk), bulk.attr(), bulk.segment_count(), bulk.is_virtual());
    let _ = (bulk.local(0, bulk.len()), bulk.local(1, u64::MAX), side.core.bulk_bind(bulk, 0));
    let local = side.expose(vec![0; 64], Access::ReadWrite);
    for op in [BulkOp::Pull, BulkOp::Push] {
        let len = bulk.len().min(64);
        let _ = side.core.transfer(op, None, bulk, bulk.len() - len, &local, 0, len, 9);
    }
    while side.core.progress(16).unwrap() + side.core.trigger(&mut Ignore) > 0 {}
    assert_eq!(side.core.in_flight(), 0);
}

struct Ignore;

impl Sink<u32> for Ignore {
    fn request(&mut self, _: RequestHandle<u32>) {}
    fn response(&mut self, _: u32, _: Result<Response, HgError>) {}
    fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
    fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
}

proptest! {
    #[test]
    fn any_change_of_a_descriptor_is_survived(
        changes in proptest::collection::vec((0usize..200, any::<u8>()), 1..6),
    ) {
        let (origin, _, mut bytes) = full();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(bulk) = Bulk::from_bytes(&bytes) {
            use_it(&origin, &bulk);
        }
    }
}
