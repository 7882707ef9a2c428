//! Fuzz targets for the input that an sm peer can send, also for the test that replays their
//! corpora.
//!
//! Each function takes any bytes. It panics if a rule does not hold, and must not hang, allocate
//! without bound or touch memory that is not its own.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::address::{self, Name};
use super::link::handshake::{
    ANNOUNCE, ANNOUNCE_BYTES, Kind, PACKET_BYTES_MAX, Packet, Shards, hand_over,
};
use super::link::record::{EXPECTED_PAGE, REQUEST_BYTES_MAX, Request};
use super::link::ring::{Consumer, LINE, Producer, RingMemory, payload_max};
use super::link::segment::{self, RING_BYTES, Segment};
use super::link::socket::{self, Socket};
use na_core::Uri;
use na_core::endpoint::fuzz_target::Target;
use prim::sync::Arc;
use prim::sync::atomic::{AtomicU64, Ordering};

/// Stands for the key of memory that exists.
pub const KEY: u64 = u64::from_le_bytes(*b"KEYKEYKE");

/// A packet of the handshake: bounded, and what is read can be said again.
///
/// # Panics
///
/// If a rule does not hold.
pub fn handshake(data: &[u8]) {
    if let Ok(packet) = Packet::decode(data) {
        assert!(data.len() <= PACKET_BYTES_MAX);
        assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
    }
    let refused = Packet::refused(&String::from_utf8_lossy(data));
    assert_eq!(Packet::decode(&refused.encode()), Ok(refused));
}

/// A request record: bounded, its pieces add up, and what is read can be said again.
///
/// # Panics
///
/// If a rule does not hold.
pub fn request(data: &[u8]) {
    let Some(request) = Request::decode(data) else { return };
    let sum: u128 = request.pieces.iter().map(|piece| u128::from(piece.len)).sum();
    assert_eq!(sum, u128::from(request.len));
    let mut buffer = [0; REQUEST_BYTES_MAX];
    assert_eq!(request.encode(&mut buffer), data);
}

/// Takes values from the front of the fuzzer's bytes; zeroes at the end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let len = self.0.len().min(8);
        bytes[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        u64::from_le_bytes(bytes)
    }
}

/// A ring in plain memory, which checks what it is asked for.
struct Guarded {
    words: Arc<[AtomicU64]>,
    head: Arc<AtomicU64>,
}

const GUARDED_BYTES: usize = 2048;

impl Guarded {
    fn new() -> Self {
        let words = (0..GUARDED_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words, head: Arc::new(AtomicU64::new(0)) }
    }

    fn shared(&self) -> Self {
        Self { words: self.words.clone(), head: self.head.clone() }
    }

    fn place(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= GUARDED_BYTES), "outside");
        self.words[0].as_ptr().cast::<u8>().wrapping_add(offset)
    }
}

impl RingMemory for Guarded {
    fn capacity(&self) -> usize {
        GUARDED_BYTES
    }

    fn commit_word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(LINE));
        &self.words[offset / 8]
    }

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn own(&self, offset: usize) {
        assert!(offset < GUARDED_BYTES);
    }

    unsafe fn write(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: source by the caller's duty; `place` checks that the destination is ours; one
        // thread.
        unsafe { std::ptr::copy_nonoverlapping(from, self.place(offset, len), len) };
    }

    unsafe fn read(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: destination by the caller's duty; `place` checks that the source is ours; one
        // thread.
        unsafe { std::ptr::copy_nonoverlapping(self.place(offset, len), to, len) };
    }
}

/// A ring whose other side writes what it likes: the reader stays inside the ring and inside the
/// record, and the writer never overtakes what was not given back.
///
/// # Panics
///
/// If a rule does not hold.
pub fn ring(data: &[u8]) {
    let mut script = Script(data);
    let (read, written) = (Guarded::new(), Guarded::new());
    let mut consumer = Consumer::new(read.shared());
    let mut producer = Producer::new(written.shared());
    let (mut reading, mut writing) = (true, true);
    while let Some(step) = script.byte() {
        match step % 5 {
            0 => {
                let at = usize::from(script.byte().unwrap_or(0)) % read.words.len();
                read.words[at].store(script.word(), Ordering::Relaxed);
            }
            1 => {
                // An honest record where the reader probably is.
                let word = u64::from(step) | 1 << 24;
                let at = usize::from(script.byte().unwrap_or(0)) % (GUARDED_BYTES / LINE);
                read.words[at * LINE / 8].store(word, Ordering::Relaxed);
            }
            2 if reading => match consumer.peek() {
                Ok(Some(record)) => {
                    assert!(record.len <= payload_max(GUARDED_BYTES) && record.kind != 0);
                    let mut bytes = vec![0; record.len];
                    consumer.read(&record, 0, &mut bytes);
                    consumer.advance(record);
                }
                Ok(None) => {}
                Err(_) => reading = false,
            },
            3 => written.head.store(script.word(), Ordering::Relaxed),
            4 if writing => {
                let len = script.word() as usize % (payload_max(GUARDED_BYTES) + 1);
                match producer.reserve(len) {
                    Ok(Some(slot)) => {
                        producer.write(&slot, 0, &vec![step; len]);
                        producer.publish(slot, 1, 0);
                    }
                    Ok(None) => {}
                    Err(_) => writing = false,
                }
            }
            _ => {}
        }
    }
}

/// A second mapping of the segment, through which the hostile peer writes.
struct Scratch {
    base: NonNull<u8>,
    len: usize,
}

impl Scratch {
    fn map(fd: &OwnedFd, len: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address; the file has that size.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)
        };
        let base = NonNull::new(base.expect("map").cast::<u8>()).expect("not at zero");
        Self { base, len }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let offset = offset % (self.len / 8) * 8;
        // SAFETY: inside the mapping.
        let place = unsafe { self.base.add(offset) }.cast::<AtomicU64>();
        // SAFETY: aligned, valid as long as `self`, and shared with whom uses it as an atomic too
        // (or copies from it, whatever it holds).
        unsafe { place.as_ref() }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, to which no reference is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A connection to a listening endpoint: any handshake if the first byte is odd, else an honest one
/// and then any writes into the shared segment, packets on the socket and polls in between, with
/// [`KEY`] replaced by a key that exists. When we hang up, so does the endpoint.
///
/// # Panics
///
/// If a rule does not hold.
pub fn connection(data: &[u8]) {
    thread_local! {
        static TARGET: OnceCell<Target> = const { OnceCell::new() };
    }
    TARGET.with(|target| talk(target.get_or_init(|| Target::new(&super::Sm, "na+sm://")), data));
}

fn talk(target: &Target, data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let uri = target.endpoint.self_addr();
    let name = Uri::parse(uri.uri()).and_then(|uri| Name::of(&uri, address::own_uid()));
    let name = name.and_then(|name| name.socket()).expect("a socket name");
    let dial = || {
        let ours = socket::new(&Arc::default()).expect("a socket");
        rustix::net::connect(&ours, &name).expect("connect");
        socket::permit_descriptors(&ours, true);
        ours
    };
    let mut ours = dial();
    let ring_bytes = *RING_BYTES.start();
    let (segment, fd) = Segment::create(ring_bytes).expect("a segment");
    drop(segment);
    let scratch = Scratch::map(&fd, segment::total_bytes(ring_bytes));
    if first % 2 == 1 {
        let hello = &data[..data.len().min(2 * PACKET_BYTES_MAX)];
        // Refused when it is empty.
        let _ = send_hello(target, &ours, hello, &[fd.as_fd()][..usize::from(first % 4 == 1)]);
    } else {
        let hello = Packet {
            kind: Kind::Hello,
            message_bytes_max: 4096,
            listens: false,
            attach: false,
            never_sleeps: first % 3 == 0,
            for_mercury: first % 7 == 0,
            shards: (first % 5 == 0).then_some(Shards { own: 0, last: 0, wanted: Some(1) }),
            ring_bytes: ring_bytes as u32,
            nonce_addr: 0,
            nonce: 0,
            slot: None,
            text: "na+sm://fuzz".into(),
        };
        // While what earlier connections have left is being closed, further ones are refused.
        let until = Instant::now() + Duration::from_secs(30);
        while let Err(errno) = send_hello(target, &ours, &hello.encode(), &[fd.as_fd()]) {
            assert!(Instant::now() < until, "no hello can be sent: {errno}");
            ours = dial();
        }
        (0..3).for_each(|_| target.poll());
        misbehave(target, &ours, (&fd, &scratch), Script(data));
    }
    (0..3).for_each(|_| target.poll());
    socket::say_goodbye(&ours);
    // The endpoint may leave the closing to a thread of its own.
    let until = Instant::now() + Duration::from_secs(30);
    while socket::is_alive(&ours, None) {
        assert!(Instant::now() < until, "the connection does not end");
        target.poll();
    }
}

/// Sends the first packet, once the target is ready for its descriptors.
fn send_hello(
    target: &Target,
    ours: &Socket,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut sent = socket::send_packet(ours, bytes, fds);
    for _ in 0..10_000 {
        if sent != Err(Errno::PERM) {
            break;
        }
        target.poll();
        sent = socket::send_packet(ours, bytes, fds);
    }
    sent
}

fn misbehave(
    target: &Target,
    ours: &Socket,
    (fd, scratch): (&OwnedFd, &Scratch),
    mut script: Script<'_>,
) {
    let key = target.memory.key();
    let mut tail = 4096;
    while let Some(step) = script.byte() {
        match step % 8 {
            0 => scratch.word(script.word() as usize).store(script.word(), Ordering::Release),
            1 => {
                // A word of the control page: positions, bells and gates are 128 bytes apart.
                let at = usize::from(script.byte().unwrap_or(0)) % 32 * 16;
                scratch.word(at).store(script.word(), Ordering::Release);
            }
            2 => target.poll(),
            3 if step / 8 % 4 == 3 => {
                // Memory of ours, of which anything is said.
                let mut packet = [0; ANNOUNCE_BYTES];
                (packet[0], packet[1]) = (ANNOUNCE, script.byte().unwrap_or(0));
                let (len, there, id) = (script.word(), script.word(), u64::from(step / 32));
                for (place, word) in packet[8..].chunks_exact_mut(8).zip([id, there, len]) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
                let _ = socket::send_packet(ours, &packet, &[fd.as_fd()]);
            }
            3 if step / 8 % 4 == 2 && step & 32 == 0 => {
                // As memory of a device, which nobody expects.
                let packet = hand_over(script.word());
                let _ = socket::send_packet(ours, &packet, &[fd.as_fd()]);
            }
            3 => {
                let packet = [step; 4];
                // It may have hung up.
                let _ = socket::send_packet(ours, &packet[..usize::from(step / 8 % 4)], &[]);
            }
            4 => scratch.word(tail / 8).store(script.word(), Ordering::Release),
            _ => {
                // A complete record where the endpoint reads.
                let (kind, len) = (script.byte().unwrap_or(0), usize::from(step / 8) * 8);
                for at in 0..len / 8 {
                    let word = script.word();
                    let word = if word == KEY { key } else { word };
                    scratch.word(tail / 8 + 1 + at).store(word, Ordering::Relaxed);
                }
                let span = (8 + len).next_multiple_of(LINE);
                scratch.word((tail + span) / 8).store(0, Ordering::Relaxed);
                let word = len as u64
                    | u64::from(kind % (EXPECTED_PAGE + 1)) << 24
                    | u64::from(step) << 32;
                scratch.word(tail / 8).store(word, Ordering::Release);
                tail += span;
            }
        }
    }
}
