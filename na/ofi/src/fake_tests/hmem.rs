//! Memory of GPUs that a provider moves by itself (`FI_HMEM`): who is asked for it, what is
//! registered as what, what moves, what is refused. The GPU's memory is where nobody may read it.

use super::*;
use crate::fake::{Call, Device, Fake};
use na_core::{DeviceKind, DevicePieces, RegionTable};
use ofi_sys::raw;

/// Memory of a GPU: addresses that nobody may touch, and a view of the bytes.
struct Gpu {
    at: u64,
    view: *mut u8,
    len: usize,
}

impl Gpu {
    fn new(fake: &Fake, len: usize) -> Self {
        let map = |access| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: the kernel chooses the address, so that no mapping is replaced.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at
        };
        // Both stay for the rest of the process.
        let at = map(libc::PROT_NONE).expose_provenance();
        let view: *mut u8 = map(libc::PROT_READ | libc::PROT_WRITE).cast();
        let start = view.expose_provenance();
        fake.add_gpu(move |wanted, bytes| {
            let within = usize::try_from(wanted).ok()?.checked_sub(at)?;
            (within.checked_add(bytes)? <= len).then_some(start + within)
        });
        Self { at: at as u64, view, len }
    }

    fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: mapped for good, with so many bytes, and no transfer is under way.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.view, bytes.len()) };
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: as above; fresh pages are zeros.
        unsafe { std::slice::from_raw_parts(self.view, self.len) }.to_vec()
    }

    /// All of it, in pieces that end at `ends`.
    fn pieces(&self, ends: &[usize]) -> DevicePieces {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let piece = |(from, to): (usize, &usize)| (self.at + from as u64, to - from);
        let pieces = starts.zip(ends).map(piece).collect();
        DevicePieces { kind: DeviceKind::Cuda, device: 3, pieces }
    }
}

fn asking() -> OpenOptions {
    let mut options = OpenOptions::default();
    options.request_mem_device = true;
    options
}

fn with_hmem(device: Device) -> Device {
    Device { hmem: true, ..device }
}

/// A region that stands for so many bytes elsewhere.
fn region(table: &RegionTable, len: u64, access: Access) -> LocalMem {
    table.register(Memory::elsewhere(len, Arc::new("a GPU"), ()), access).unwrap()
}

/// Lets a node register memory of a GPU.
fn registers(node: &Node, memory: &LocalMem, pieces: &DevicePieces) -> Result<(), Error> {
    // SAFETY: memory of tests, which stays for the rest of the process.
    unsafe { node.endpoint.register_device(memory, pieces) }
}

/// Memory of a GPU that a node has registered.
fn registered(node: &Node, gpu: &Gpu, ends: &[usize], access: Access) -> LocalMem {
    let memory = region(&RegionTable::default(), gpu.len as u64, access);
    registers(node, &memory, &gpu.pieces(ends)).unwrap();
    memory
}

/// A peer's memory as this node learns of it.
fn told_in_parts(node: &Node, other: &Node, memory: &LocalMem) -> RemoteMem {
    let parts = other.endpoint.mem_parts(memory).unwrap();
    let bytes: Vec<u8> = parts.into_iter().flat_map(|part| part.handle).collect();
    node.endpoint.mem_from_bytes(&bytes).unwrap()
}

/// The fabrics whose adapters move memory of GPUs.
fn fabrics() -> [(&'static str, Device); 3] {
    let uris = ["ofi+verbs://127.0.0.1:0", "ofi+cxi://cxi0", "ofi+efa://"];
    let devices = [Device::verbs(), Device::cxi(), Device::efa()].map(with_hmem);
    let [a, b, c] = devices;
    [(uris[0], a), (uris[1], b), (uris[2], c)]
}

fn fake_of(uri: &str, device: Device) -> Fake {
    let fake = Fake::new(device);
    fake.state().leaves_open = uri.starts_with("ofi+verbs");
    fake
}

#[test]
fn who_can_is_asked_and_the_others_are_opened_without() {
    for (uri, device) in fabrics() {
        let fake = fake_of(uri, device.clone());
        let node = Node::open_with(&fake, uri, &asking());
        assert!(node.endpoint.moves_device_memory(), "{uri}");
        assert!(node.endpoint.bulk_path().contains("FI_HMEM"));
        let search = fake.state().searches.first().cloned().unwrap();
        assert!(search.hmem && search.mr_mode & raw::FI_MR_HMEM != 0, "{uri}");
        drop(node);

        // A program that does not want it.
        let plain = Node::open(&fake, uri);
        let search = fake.state().searches.last().cloned().unwrap();
        assert!(!search.hmem && search.mr_mode & raw::FI_MR_HMEM == 0, "{uri}");
        assert!(!plain.endpoint.moves_device_memory() && !fake.state().searches.is_empty());
        drop(plain);

        // A provider that was built without.
        let without = fake_of(uri, Device { hmem: false, ..device });
        let node = Node::open_with(&without, uri, &asking());
        assert!(!node.endpoint.moves_device_memory(), "{uri}");
        let searches = without.state().searches.clone();
        assert!(searches[0].hmem && !searches.last().unwrap().hmem, "{uri}");
        let gpu = Gpu::new(&without, 4096);
        let memory = region(&RegionTable::default(), 4096, Access::ReadOnly);
        let error = registers(&node, &memory, &gpu.pieces(&[4096])).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(node.endpoint.mem_parts(&memory).is_none());
    }
    // Its processes copy for each other: nobody is asked.
    let fake = Fake::new(with_hmem(Device::shm()));
    let node = Node::open_with(&fake, "ofi+shm://", &asking());
    assert!(!node.endpoint.moves_device_memory());
    assert!(fake.state().searches.iter().all(|search| !search.hmem));
}

#[test]
fn bytes_move_between_gpus_and_hosts_in_each_direction() {
    const BYTES: usize = 3 << 20;
    let pattern = |seed: usize| -> Vec<u8> { (0..BYTES).map(|at| (at * seed) as u8).collect() };
    for (uri, device) in fabrics() {
        let fake = fake_of(uri, device);
        let (a, b) = Node::pair_with(&fake, uri, &asking());
        let (here, there) = (Gpu::new(&fake, BYTES), Gpu::new(&fake, BYTES));
        there.fill(&pattern(7));
        // The other side has not asked: its adapter reads and writes what ours has told it of.
        let local = registered(&a, &here, &[1, 1 << 20, BYTES], Access::ReadWrite);
        let host = b.register(pattern(3), Access::ReadWrite);
        let to = a.addr_of(&b);
        let remote = a.told(&b, &host);
        let moved =
            |put, local: &LocalMem, local_offset, remote: &RemoteMem, remote_offset, len| {
                let (local, remote) = (local.clone(), remote.clone());
                let transfer = Transfer { local, local_offset, remote, remote_offset, len };
                sent(both(&a, &b, &a, a.transfer(put, &to, transfer)))
            };
        moved(false, &local, 0, &remote, 0, BYTES as u64).unwrap();
        assert!(here.bytes() == pattern(3), "{uri}");
        here.fill(&pattern(5));
        moved(true, &local, 100, &remote, 7, 2 << 20).unwrap();
        let mut bytes = vec![0; 2 << 20];
        assert!(host.read_at(7, &mut bytes) && bytes == pattern(5)[100..100 + (2 << 20)], "{uri}");

        // Memory of a GPU on the other side, and on both.
        let theirs = registered(&a, &there, &[9, BYTES], Access::ReadWrite);
        let far = told_in_parts(&b, &a, &theirs);
        assert_eq!(far.len, BYTES as u64);
        let back = b.addr_of(&a);
        let mine = b.register(vec![0; BYTES], Access::ReadWrite);
        let transfer = Transfer {
            local: mine.clone(),
            local_offset: 0,
            remote: far,
            remote_offset: 3,
            len: (BYTES - 3) as u64,
        };
        sent(both(&a, &b, &b, b.transfer(false, &back, transfer))).unwrap();
        let mut bytes = vec![0; BYTES - 3];
        assert!(mine.read_at(0, &mut bytes) && bytes == pattern(7)[3..], "{uri}");

        // Descriptors and kinds are those of the memory.
        let places: Vec<_> = fake.state().registrations.iter().map(|own| own.place).collect();
        assert_eq!(places.iter().filter(|place| **place == (raw::FI_HMEM_CUDA, 3)).count(), 5);
        assert!(places.contains(&(raw::FI_HMEM_SYSTEM, 0)));
        drop((local, theirs));
    }
}

#[test]
fn each_kind_of_device_is_named_as_c_names_it() {
    let fake = Fake::new(with_hmem(Device::cxi()));
    let node = Node::open_with(&fake, "ofi+cxi://cxi0", &asking());
    for (kind, place) in [
        (DeviceKind::Cuda, (raw::FI_HMEM_CUDA, 3)),
        (DeviceKind::Rocm, (raw::FI_HMEM_ROCR, 0)),
        (DeviceKind::LevelZero, (raw::FI_HMEM_ZE, 3)),
    ] {
        let gpu = Gpu::new(&fake, 4096);
        let memory = region(&RegionTable::default(), 4096, Access::ReadOnly);
        let pieces = DevicePieces { kind, ..gpu.pieces(&[4096]) };
        registers(&node, &memory, &pieces).unwrap();
        let told = fake.state().registrations.last().copied().unwrap();
        assert_eq!((told.base, told.place), (gpu.at, place));
        assert_eq!(told.access & raw::FI_REMOTE_WRITE, 0, "peers may read");
    }
}

#[test]
fn rights_bounds_and_the_end_of_a_key_hold() {
    // Over `verbs` an error ends the connection, and keys outlive their memory.
    for (uri, device) in fabrics().into_iter().skip(1) {
        let fake = fake_of(uri, device);
        let (a, b) = Node::pair_with(&fake, uri, &asking());
        let gpu = Gpu::new(&fake, 8192);
        gpu.fill(&[7; 8192]);
        let (to, local) = (b.addr_of(&a), b.register(vec![9; 8192], Access::ReadWrite));
        let memory = registered(&a, &gpu, &[4096, 8192], Access::ReadOnly);
        let honest = told_in_parts(&b, &a, &memory);
        let forged = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = honest.native.as_ref().unwrap().to_vec();
            change(&mut bytes);
            b.endpoint.mem_from_bytes(&bytes).unwrap()
        };
        let ended = |put, remote: RemoteMem, len| {
            let local = local.clone();
            let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len };
            sent(both(&a, &b, &b, b.transfer(put, &to, transfer)))
        };
        // All rights, and more bytes, than the owner has given.
        let all_rights = forged(&|bytes| (bytes[24], bytes[48 + 24]) = (3, 3));
        ended(true, all_rights, 8192).unwrap_err();
        let longer = forged(&|bytes| {
            for at in [8, 40] {
                bytes[at..at + 8].copy_from_slice(&8192u64.to_le_bytes());
            }
        });
        ended(false, longer, 8192).unwrap_err();
        ended(false, honest.clone(), 8192).unwrap();
        assert_eq!(gpu.bytes(), [7; 8192]);
        // The registration ends with the key, and the memory comes back after that.
        let open = fake.count_open();
        let (tell, told) = std::sync::mpsc::channel();
        memory.revoke(move |memory| tell.send(memory.into_owner::<()>().is_ok()).unwrap());
        assert!(told.recv().unwrap());
        assert_eq!(fake.count_open(), open - 2, "{uri}");
        ended(false, honest, 8192).unwrap_err();
    }
}

#[test]
fn a_registration_that_is_refused_leaves_nothing() {
    let fake = Fake::new(with_hmem(Device::cxi()));
    let node = Node::open_with(&fake, "ofi+cxi://cxi0", &asking());
    let gpu = Gpu::new(&fake, 8192);
    let open = fake.count_open();
    let memory = region(&RegionTable::default(), 8192, Access::ReadOnly);
    // At once, and in the midst: by the library, and when it is bound to the endpoint.
    for (call, after) in [(Call::Register, 0), (Call::Register, 1), (Call::Bind, 1)] {
        fake.refuse_after(after, call, raw::FI_EINVAL);
        let error = registers(&node, &memory, &gpu.pieces(&[4096, 8192]));
        assert!(matches!(error, Err(Error::Io { .. })), "{call:?} {after}: {error:?}");
        assert_eq!(fake.count_open(), open, "{call:?} {after}");
        assert!(node.endpoint.mem_parts(&memory).is_none());
    }
    // Pieces of other memory than the region's, and memory of the host.
    for (memory, ends) in [
        (memory.clone(), [4096, 8000]),
        (node.register(vec![0; 8192], Access::ReadOnly), [4096, 8192]),
    ] {
        let error = registers(&node, &memory, &gpu.pieces(&ends)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    registers(&node, &memory, &gpu.pieces(&[4096, 8192])).unwrap();
    let parts = node.endpoint.mem_parts(&memory).unwrap();
    assert_eq!(node.endpoint.region_told_by(&parts[0].handle), Some((memory.key(), 0)));
    assert_eq!(node.endpoint.region_told_by(&parts[1].handle), Some((memory.key(), 4096)));
}

#[test]
fn a_transfer_that_fails_or_is_our_own_is_an_error() {
    let fake = Fake::new(with_hmem(Device::cxi()));
    let (a, b) = Node::pair_with(&fake, "ofi+cxi://cxi0", &asking());
    const BYTES: usize = 12 << 20;
    let gpu = Gpu::new(&fake, BYTES);
    let local = registered(&a, &gpu, &[BYTES], Access::ReadWrite);
    let host = b.register(vec![1; BYTES], Access::ReadWrite);
    let (to, remote) = (a.addr_of(&b), a.told(&b, &host));
    let transfer = || Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: remote.clone(),
        remote_offset: 0,
        len: BYTES as u64,
    };
    fake.fail(Call::Read, libc::EIO as u32, 1);
    sent(both(&a, &b, &a, a.transfer(false, &to, transfer()))).unwrap_err();
    sent(both(&a, &b, &a, a.transfer(false, &to, transfer()))).unwrap();
    assert!(gpu.bytes() == [1; BYTES]);
    // To our own address the processor would copy.
    let own = a.endpoint.self_addr();
    let error = a.endpoint.get(a.op(), &own, transfer()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    // Memory that this endpoint has not registered.
    let other = region(&RegionTable::default(), BYTES as u64, Access::ReadWrite);
    let error = a.endpoint.get(a.op(), &to, Transfer { local: other, ..transfer() }).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    // In flight while the endpoint is closed: the registration ends with it.
    fake.hold(true);
    let op = a.transfer(true, &to, transfer());
    a.endpoint.close();
    sent(a.wait(op)).unwrap_err();
    drop(local);
}
