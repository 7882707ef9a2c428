//! Requirements of devices on memory (`mr_mode` in `fi_mr.3`), and memory that devices refuse.

use ofi_sys::raw;

use super::*;
use crate::fake::{Call, Device, Fake, RemoteAccess};

const URI: &str = "ofi+tcp://127.0.0.1:0";

fn with_mode(mr_mode: u32) -> Device {
    Device { mr_mode, ..Device::tcp() }
}

/// Every subset of what is dealt with.
fn modes() -> impl Iterator<Item = u32> {
    let bits = [
        raw::FI_MR_VIRT_ADDR,
        raw::FI_MR_PROV_KEY,
        raw::FI_MR_ENDPOINT,
        raw::FI_MR_LOCAL,
        raw::FI_MR_ALLOCATED,
    ];
    (0..1u32 << bits.len()).map(move |set| {
        let chosen = bits.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
        chosen.map(|(_, bit)| bit).sum()
    })
}

#[test]
fn transfers_name_memory_as_the_device_wants_it() {
    for mode in modes() {
        let fake = Fake::new(with_mode(mode));
        let (a, b) = Node::pair(&fake, URI);
        let to_b = a.addr_of(&b);
        let memory = Memory::from_vecs(vec![vec![1; 100], vec![2; 50]]);
        let theirs = b.endpoint.register(memory, Access::ReadWrite).unwrap();
        let bases = [0, 1].map(|at| theirs.segments()[at].ptr.addr() as u64);
        let told = a.told(&b, &theirs);
        let keys: Vec<u64> = {
            let state = fake.state();
            let of = |base| state.registrations.iter().find(|own| own.base == base).unwrap().key;
            bases.map(of).to_vec()
        };
        assert_ne!(keys[0], keys[1]);
        let ours = a.register(vec![0; 150], Access::ReadWrite);
        fake.state().accesses.clear();
        for put in [true, false] {
            // From the middle of the first segment to that of the second.
            let (local, remote) = (ours.clone(), told.clone());
            let (local_offset, remote_offset, len) = (10, 90, 30);
            let transfer = Transfer { local, local_offset, remote, remote_offset, len };
            if put {
                assert!(ours.write_at(10, &[7; 30]));
            } else {
                assert!(theirs.write_at(90, &[8; 30]));
            }
            let op = a.transfer(put, &to_b, transfer);
            sent(a.wait(op)).unwrap();
            let mut bytes = [0; 30];
            let moved =
                if put { theirs.read_at(90, &mut bytes) } else { ours.read_at(10, &mut bytes) };
            assert!(moved);
            assert_eq!(bytes, [if put { 7 } else { 8 }; 30], "{mode:#x}");
            let [first, second] = match mode & raw::FI_MR_VIRT_ADDR {
                0 => [90, 0],
                _ => [bases[0] + 90, bases[1]],
            };
            let accesses = std::mem::take(&mut fake.state().accesses);
            let wanted = [
                RemoteAccess { put, addr: first, key: keys[0], len: 10 },
                RemoteAccess { put, addr: second, key: keys[1], len: 20 },
            ];
            assert_eq!(accesses, wanted, "{mode:#x}");
        }
    }
}

#[test]
fn registrations_ask_for_what_is_allowed_and_needed() {
    let own = raw::FI_READ | raw::FI_WRITE;
    let remote = raw::FI_REMOTE_READ | raw::FI_REMOTE_WRITE;
    for mode in modes() {
        let fake = Fake::new(with_mode(mode));
        let node = Node::open(&fake, URI);
        let mut keys = Vec::new();
        for (access, bits) in [
            // A region that peers may read is the source of our own puts, and the reverse.
            (Access::ReadOnly, raw::FI_REMOTE_READ | raw::FI_WRITE),
            (Access::WriteOnly, raw::FI_REMOTE_WRITE | raw::FI_READ),
            (Access::ReadWrite, own | remote),
        ] {
            let memory = node.register(vec![0; 64], access);
            let last = *fake.state().registrations.last().unwrap();
            assert_eq!((last.access, last.len), (bits, 64));
            assert_eq!(last.base, memory.segments()[0].ptr.addr() as u64);
            let is_theirs = mode & raw::FI_MR_PROV_KEY != 0;
            assert_eq!(last.wanted_key == 0, is_theirs, "{mode:#x}");
            keys.push(last.key);
        }
        keys.dedup();
        assert_eq!(keys.len(), 3);
    }
}

#[test]
fn keys_fit_into_the_bytes_that_there_are() {
    for (key_bytes, largest) in [(2, 0xffff), (4, u64::from(u32::MAX)), (8, u64::MAX - 1)] {
        let fake = Fake::new(Device { key_bytes, ..Device::tcp() });
        let node = Node::open(&fake, URI);
        let held: Vec<_> = (0..100).map(|_| node.register(vec![0; 8], Access::ReadOnly)).collect();
        assert!(fake.state().registrations.iter().all(|own| own.wanted_key <= largest));
        drop(held);
    }
}

#[test]
fn another_key_is_tried_when_one_is_taken() {
    for errno in [raw::FI_ENOKEY, raw::FI_EKEYREJECTED] {
        let fake = Fake::new(Device::tcp());
        let node = Node::open(&fake, URI);
        fake.refuse(Call::Register, errno, 3);
        node.register(vec![0; 8], Access::ReadOnly);
        assert_eq!(fake.count(Call::Register), 4);
    }
    // Where they are not ours, it is the device's last word.
    let fake = Fake::new(with_mode(raw::FI_MR_PROV_KEY));
    let node = Node::open(&fake, URI);
    fake.refuse(Call::Register, raw::FI_ENOKEY, 1);
    let refused = node.endpoint.register(Memory::from_vec(vec![0; 8]), Access::ReadOnly);
    assert!(refused.unwrap_err().to_string().contains("cannot register 8 bytes"));
}

/// Raw keys, of more than 8 bytes, fit into no description that C knows.
#[test]
fn devices_with_longer_keys_are_not_taken() {
    let fake = Fake::new(with_mode(raw::FI_MR_RAW));
    let error = fake.open(URI).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

#[test]
fn local_registration_is_offered_only_where_it_is_needed() {
    for (device, searches) in [(Device::tcp(), 1), (with_mode(raw::FI_MR_LOCAL), 3)] {
        let fake = Fake::new(device);
        drop(Node::open(&fake, URI));
        let state = fake.state();
        let offered = state.searches.iter().map(|search| search.mr_mode & raw::FI_MR_LOCAL != 0);
        // `tcp` and `net` without it, then with it.
        assert_eq!(offered.collect::<Vec<_>>(), [false, false, true][..searches]);
    }
}

/// The others register it again for each part of a transfer, or copy it.
#[test]
fn providers_that_gain_by_it_get_the_descriptors_of_what_is_registered() {
    for (device, uri) in [(Device::efa(), "ofi+efa://"), (Device::verbs(), "ofi+verbs://127.0.0.1")]
    {
        for takes_local in [true, false] {
            let fake = Fake::new(Device { takes_local, ..device.clone() });
            let (a, b) = Node::pair(&fake, uri);
            assert_eq!(fake.state().searches.len(), 2, "one for each");
            let offered = fake.mr_modes();
            assert!(offered.iter().all(|mode| (mode & raw::FI_MR_LOCAL != 0) == takes_local));
            let theirs = b.register(vec![1; 5000], Access::ReadWrite);
            let ours = a.register(vec![2; 5000], Access::ReadWrite);
            let registered = fake.count(Call::Register);
            for put in [true, false] {
                let (local, remote) = (ours.clone(), a.told(&b, &theirs));
                let (local_offset, remote_offset, len) = (100, 300, 4000);
                let transfer = Transfer { local, local_offset, remote, remote_offset, len };
                let op = a.transfer(put, &a.addr_of(&b), transfer);
                sent(a.wait(op)).unwrap();
            }
            assert_eq!(fake.count(Call::Register), registered);
        }
    }
}

/// A transfer that is under way has its memory's descriptor until the endpoint is closed.
#[test]
fn registrations_end_after_an_endpoint_that_they_are_not_bound_to() {
    let fake = Fake::new(Device::efa());
    let (a, b) = Node::pair(&fake, "ofi+efa://");
    let (memory, back) = counted(100);
    let local = a.endpoint.register(memory, Access::ReadWrite).unwrap();
    let remote = b.register(vec![1; 100], Access::ReadWrite);
    fake.hold(true);
    let remote = a.told(&b, &remote);
    let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len: 100 };
    let op = a.transfer(false, &a.addr_of(&b), transfer);
    a.endpoint.close();
    assert!(matches!(sent(a.wait(op)), Err(Error::Closed)));
    assert_eq!(back.load(Ordering::Relaxed), 1, "nobody has it any more");
}

#[test]
fn memory_that_cannot_be_registered_is_given_back() {
    let mode = raw::FI_MR_ENDPOINT;
    for (call, errno, said) in [
        (Call::Register, raw::FI_ENOMEM, "Cannot allocate memory"),
        (Call::Register, raw::FI_EINVAL, "Invalid argument"),
        (Call::Bind, raw::FI_EINVAL, "Invalid argument"),
        (Call::EnableMemory, raw::FI_ENOMEM, "Cannot allocate memory"),
    ] {
        let fake = Fake::new(with_mode(mode));
        let node = Node::open(&fake, URI);
        let open = fake.count_open();
        let (memory, back) = counted(100);
        fake.refuse(call, errno, 1);
        let error = node.endpoint.register(memory, Access::ReadWrite).unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        assert!(told.contains("100 bytes") && told.contains(said), "{told}");
        assert_eq!((fake.count_open(), back.load(Ordering::Relaxed)), (open, 1), "{call:?}");
        assert_eq!(fake.count(Call::EnableMemory), usize::from(call == Call::EnableMemory));
        node.register(vec![0; 100], Access::ReadWrite);
    }
}

/// The second of two segments is refused: the first is not left behind.
#[test]
fn regions_are_registered_whole_or_not_at_all() {
    let fake = Fake::new(Device::tcp());
    let node = Node::open(&fake, URI);
    let open = fake.count_open();
    let memory = || Memory::from_vecs(vec![vec![0; 10], vec![0; 20]]);
    fake.refuse_after(1, Call::Register, raw::FI_ENOMEM);
    let error = node.endpoint.register(memory(), Access::ReadOnly).unwrap_err();
    assert!(error.to_string().contains("20 bytes"), "{error}");
    assert_eq!(fake.count_open(), open);
    let first = node.endpoint.register(memory(), Access::ReadOnly).unwrap();
    assert_eq!(fake.count_open(), open + 2);
    drop(first);
    assert_eq!(fake.count_open(), open);
}

#[test]
fn memory_whose_registration_does_not_end_is_kept() {
    for closes_first in [false, true] {
        let fake = Fake::new(with_mode(raw::FI_MR_PROV_KEY));
        fake.state().leaves_open = true;
        let node = Node::open(&fake, URI);
        let (memory, back) = counted(100);
        let memory = node.endpoint.register(memory, Access::ReadWrite).unwrap();
        fake.refuse(Call::CloseMemory, raw::FI_EBUSY, usize::MAX);
        if closes_first {
            node.endpoint.close();
        }
        drop(memory);
        drop(node);
        assert_eq!(back.load(Ordering::Relaxed), 0, "a device may still write there");
    }
}

/// The device goes on with everything that it has: none of it may be somebody else's by then.
#[test]
fn what_an_endpoint_has_that_does_not_close_is_kept() {
    for mode in [0, raw::FI_MR_LOCAL, raw::FI_MR_LOCAL | raw::FI_MR_ENDPOINT] {
        let fake = single(with_mode(mode));
        fake.state().leaves_open = true;
        let (a, b) = Node::pair(&fake, URI);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        let (memory, back) = counted(100);
        let local = a.endpoint.register(memory, Access::ReadWrite).unwrap();
        let remote = b.register(vec![1; 100], Access::ReadWrite);
        fake.hold(true);
        let transfer = Transfer {
            local,
            local_offset: 0,
            remote: a.told(&b, &remote),
            remote_offset: 0,
            len: 100,
        };
        let ops =
            [a.recv_unexpected(), a.recv_expected(&to_b, 9), a.transfer(false, &to_b, transfer)];
        fake.refuse(Call::CloseEndpoint, raw::FI_EBUSY, 1);
        a.endpoint.close();
        // Into the receives that are still the device's.
        let late = [b.send_unexpected(&to_a, 1, &[7; 200]), b.send_expected(&to_a, 9, &[7; 300])];
        fake.hold(false);
        for op in late {
            sent(b.wait(op)).unwrap();
        }
        for op in ops {
            let ended = a.wait(op);
            if let Completion::Recv { buf, .. } = &ended {
                assert!(buf.as_slice().is_empty());
            }
            assert!(matches!(sent(ended), Err(Error::Closed)));
        }
        drop(a);
        assert_eq!(back.load(Ordering::Relaxed), 0, "the transfer may be under way");
    }
}
