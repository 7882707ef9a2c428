//! Registrations that share a key, that end under a transfer, and that take their time.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::*;
use crate::fake::{Call, Device, Fake};

const VERBS: &str = "ofi+verbs://127.0.0.1:0";
const CXI: &str = "ofi+cxi://cxi0";

/// Turns that another thread is given to do what it must not.
const TURNS: usize = 100_000;

/// Parts of a buffer that outlives them.
struct Parts(*mut u8);

impl Parts {
    fn expose(&self, node: &Node, parts: &[(usize, usize)]) -> LocalMem {
        let segment = |(start, len): &(usize, usize)| {
            let ptr = self.0.wrapping_add(*start);
            RawSegment { ptr, len: *len }
        };
        // SAFETY: the tests below keep the buffer, which has these parts, until the end.
        let memory = unsafe { Memory::from_raw(parts.iter().map(segment).collect(), ()) };
        node.endpoint.register(memory, Access::ReadWrite).unwrap()
    }
}

/// Reads `len` bytes from `offset` of memory of the same endpoint, by a get.
fn read(node: &Node, of: &LocalMem, offset: u64, len: usize) -> Vec<u8> {
    let local = node.register(vec![0; len], Access::ReadWrite);
    let (remote, remote_offset) = (node.told(node, of), offset);
    let (into, local_offset, len) = (local.clone(), 0, len as u64);
    let transfer = Transfer { local, local_offset, remote, remote_offset, len };
    sent(node.wait(node.transfer(false, &node.endpoint.self_addr(), transfer))).unwrap();
    let mut bytes = vec![0; len as usize];
    assert!(into.read_at(0, &mut bytes));
    bytes
}

fn write(node: &Node, of: &LocalMem, offset: u64, bytes: Vec<u8>) {
    let len = bytes.len() as u64;
    let local = node.register(bytes, Access::ReadWrite);
    let (remote, local_offset, remote_offset) = (node.told(node, of), 0, offset);
    let transfer = Transfer { local, local_offset, remote, remote_offset, len };
    sent(node.wait(node.transfer(true, &node.endpoint.self_addr(), transfer))).unwrap();
}

/// `verbs` keeps what was registered in a cache, and gives its key to all memory within.
#[test]
fn segments_under_one_key_are_told_apart_by_their_addresses() {
    let mut buffer = vec![0u8; 8192].into_boxed_slice();
    let parts = Parts(buffer.as_mut_ptr());
    let fake = Fake::new(Device::verbs());
    let node = Node::open(&fake, VERBS);
    drop(parts.expose(&node, &[(0, 8192)]));
    fake.state().registrations.clear();
    for round in 0..3u8 {
        let first = parts.expose(&node, &[(0, 100)]);
        let second = parts.expose(&node, &[(4096, 100)]);
        let keys: Vec<u64> = fake.state().registrations.iter().map(|own| own.key).collect();
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        write(&node, &first, 0, vec![10 + round; 100]);
        write(&node, &second, 0, vec![20 + round; 100]);
        fake.state().registrations.clear();
        assert_eq!(read(&node, &first, 0, 100), [10 + round; 100]);
        assert_eq!(read(&node, &second, 0, 100), [20 + round; 100]);
        drop(second);
        assert_eq!(read(&node, &first, 90, 10), [10 + round; 10]);
        fake.state().registrations.clear();
    }
}

/// Several regions of the same memory: each is reached as far as it goes.
#[test]
fn regions_that_begin_at_one_address_are_told_apart() {
    let mut buffer = vec![0u8; 8192].into_boxed_slice();
    let parts = Parts(buffer.as_mut_ptr());
    let fake = Fake::new(Device::verbs());
    let node = Node::open(&fake, VERBS);
    let whole = parts.expose(&node, &[(0, 8192)]);
    let short = parts.expose(&node, &[(0, 50)]);
    let pair = parts.expose(&node, &[(0, 50), (4096, 100)]);
    let other = parts.expose(&node, &[(0, 50), (6000, 100)]);
    write(&node, &pair, 50, vec![1; 100]);
    write(&node, &other, 50, vec![2; 100]);
    write(&node, &short, 0, vec![3; 50]);
    assert_eq!(read(&node, &whole, 4096, 100), [1; 100]);
    assert_eq!(read(&node, &whole, 6000, 100), [2; 100]);
    assert_eq!(read(&node, &other, 40, 20), [vec![3; 10], vec![2; 10]].concat());
    drop((short, other));
    assert_eq!(read(&node, &pair, 40, 20), [vec![3; 10], vec![1; 10]].concat());
    // By a part of it, as bulk descriptors have them.
    let handle = node.endpoint.mem_parts(&pair).unwrap().pop().unwrap().handle;
    let remote = node.endpoint.mem_from_bytes(&handle).unwrap();
    let local = node.register(vec![0; 100], Access::ReadWrite);
    let into = local.clone();
    let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len: 100 };
    sent(node.wait(node.transfer(false, &node.endpoint.self_addr(), transfer))).unwrap();
    let mut bytes = [0; 100];
    assert!(into.read_at(0, &mut bytes) && bytes == [1; 100]);
}

/// A long get into memory that is taken back while it is held up.
struct TakenBack {
    op: OpId,
    /// How often the memory has come back.
    back: Arc<AtomicUsize>,
    /// The number of open objects before the memory was registered.
    open: usize,
    _theirs: LocalMem,
}

impl TakenBack {
    fn begin(fake: &Fake, a: &Node, b: &Node) -> Self {
        const LEN: usize = 200_000;
        let theirs = b.register(vec![7; LEN], Access::ReadWrite);
        let (open, (memory, back)) = (fake.count_open(), counted(LEN));
        let local = a.endpoint.register(memory, Access::ReadWrite).unwrap();
        let (mine, remote) = (local.clone(), a.told(b, &theirs));
        fake.hold(true);
        let len = LEN as u64;
        let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len };
        let op = a.transfer(false, &a.addr_of(b), transfer);
        mine.revoke(|_| {});
        Self { op, back, open, _theirs: theirs }
    }
}

/// Operations that the device has, and those that follow, are given its descriptor.
#[test]
fn a_registration_ends_after_the_transfers_of_its_memory() {
    for canceled in [false, true] {
        let fake = Fake::new(Device { message_bytes: 4096, ..Device::verbs() });
        let (a, b) = Node::pair(&fake, VERBS);
        let TakenBack { op, back, open, _theirs } = TakenBack::begin(&fake, &a, &b);
        a.poll().unwrap();
        assert_eq!(back.load(Ordering::Relaxed), 0, "it is worked on");
        if canceled {
            a.endpoint.cancel(op);
        }
        fake.hold(false);
        assert_eq!(sent(a.wait(op)).is_ok(), !canceled);
        while a.poll().unwrap() > 0 {}
        assert_eq!((back.load(Ordering::Relaxed), fake.count_open()), (1, open));
    }
}

/// The endpoint is closed, or does not close, under the transfer.
#[test]
fn a_registration_that_was_taken_back_ends_with_the_endpoint() {
    for refused in [false, true] {
        let fake = Fake::new(Device { message_bytes: 4096, ..Device::efa() });
        fake.state().leaves_open = refused;
        let (a, b) = Node::pair(&fake, "ofi+efa://");
        let TakenBack { op, back, _theirs, .. } = TakenBack::begin(&fake, &a, &b);
        if refused {
            fake.refuse(Call::CloseEndpoint, ofi_sys::raw::FI_EBUSY, 1);
        }
        a.endpoint.close();
        assert!(matches!(sent(a.wait(op)), Err(Error::Closed)));
        assert_eq!(back.load(Ordering::Relaxed), usize::from(!refused));
    }
}

/// Where memory is bound to the endpoint, too: `cxi` pins all of it in the call.
#[test]
fn nothing_waits_for_memory_that_is_being_registered() {
    for closed in [false, true] {
        let fake = Fake::new(Device::cxi());
        let endpoint = fake.open(CXI).unwrap();
        let (memory, back) = counted(100);
        let pause = fake.pause(Call::Register);
        let (done, polled) = channel();
        let (polled, result) = thread::scope(|scope| {
            let registering = scope.spawn(|| endpoint.register(memory, Access::ReadWrite));
            pause.wait();
            scope.spawn(|| {
                endpoint.poll(1, &mut |_| {}).unwrap();
                if closed {
                    endpoint.close();
                }
                done.send(()).unwrap();
            });
            // However long it takes; without an end for who waits for the other one.
            let polled = polled.recv_timeout(Duration::from_secs(60));
            pause.wait();
            (polled, registering.join().unwrap())
        });
        assert!(polled.is_ok(), "a poll waited");
        match closed {
            true => assert!(matches!(result, Err(Error::Closed)), "{result:?}"),
            false => drop(result.unwrap()),
        }
        assert_eq!(back.load(Ordering::Relaxed), 1);
    }
}

/// It would not close as long as memory is bound to it, and be left open for good.
#[test]
fn an_endpoint_is_closed_after_registrations_that_are_ending() {
    let fake = Fake::new(Device::cxi());
    let endpoint = fake.open(CXI).unwrap();
    let memory = endpoint.register(Memory::from_vec(vec![0; 100]), Access::ReadWrite).unwrap();
    let pause = fake.pause(Call::CloseMemory);
    thread::scope(|scope| {
        scope.spawn(|| drop(memory));
        pause.wait();
        scope.spawn(|| endpoint.close());
        for _ in 0..TURNS {
            if fake.count(Call::CloseEndpoint) > 0 {
                break;
            }
            thread::yield_now();
        }
        pause.wait();
    });
    assert_eq!(fake.count(Call::CloseEndpoint), 1);
}
