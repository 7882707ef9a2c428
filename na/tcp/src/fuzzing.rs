//! Entry points for the bytes of a tcp peer, used by fuzzers and by the test that replays their
//! corpora.
//!
//! Each function takes any bytes. It panics if a rule does not hold, and must not hang, allocate
//! without bound or touch memory that is not its own.

use std::cell::OnceCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use crate::Tcp;
use crate::stream::frame_reader::{
    Buffers, Destination, ExpectedData, FrameReader, Parsed, ReadPlan,
};
use crate::wire::frame::{CHUNK_BYTES_MAX, HEADER_BYTES, Header, Hello, Kind, Request, Status};
use na_core::endpoint::fuzz_target::Target;
use na_core::{Access, LocalMem, Memory, OpId, OpenOptions, Plugin, RegionTable, Tag, Uri};

const MESSAGE_BYTES_MAX: usize = 4096;

/// Stands for the key of memory that exists.
pub const KEY: [u8; 8] = *b"KEYKEYKE";

/// Decodes the first bytes of a connection. They mean the same however they are cut, and a hello
/// that was read can be written again.
///
/// # Panics
///
/// If a rule does not hold.
pub fn greeting(data: &[u8]) {
    let whole = Hello::decode(data);
    let first = (0..=data.len()).map(|end| Hello::decode(&data[..end])).find(|r| *r != Ok(None));
    assert_eq!(first.unwrap_or(Ok(None)), whole, "a hello depends on how it arrives");
    if let Ok(Some((hello, len))) = whole {
        assert!(len <= data.len() && hello.uri.len() <= len);
        let again = hello.encode();
        let said = Hello::decode(&again);
        assert_eq!(said, Ok(Some((hello, again.len()))));
    }
}

/// Decodes frames in pieces: headers are bounded, payloads are whole, and data stays inside its
/// memory.
///
/// # Panics
///
/// If a rule does not hold.
pub fn frames(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else { return };
    let (mut theirs, ours) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket");
    let table = RegionTable::new();
    let guarded = Memory::from_vecs(vec![vec![0; 100], vec![], vec![0; 9000], vec![0; 50]]);
    let memory = table.register(guarded, Access::ReadWrite).expect("register");
    let (mut incoming, mut buffers) =
        (FrameReader::new(MESSAGE_BYTES_MAX), Buffers::new(MESSAGE_BYTES_MAX));
    for piece in data.chunks(1 + usize::from(step) * 16) {
        theirs.write_all(piece).expect("room in the socket");
        loop {
            if !handle(&mut incoming, &memory) {
                return;
            }
            let appetite = match step % 4 {
                0 | 1 => ReadPlan::Any,
                careful => ReadPlan::ExpectedData(ExpectedData {
                    kind: Kind::PutData,
                    number: GUESSED,
                    memory: memory.clone(),
                    offset: 0,
                    len: memory.len(),
                    careful: careful == 2,
                }),
            };
            if incoming.fill(&ours, &mut buffers, appetite).is_err() {
                break;
            }
            incoming.rest(&mut buffers);
        }
    }
}

/// The transfer that a reader expects to go on.
const GUESSED: u64 = 7;

/// Handles what has arrived; `false` when a rule is broken.
fn handle(incoming: &mut FrameReader, memory: &LocalMem) -> bool {
    loop {
        match incoming.next() {
            Err(_) => return false,
            Ok(Parsed::NeedMore) => return true,
            Ok(Parsed::Frame(header)) => {
                let payload = incoming.payload(header);
                assert_eq!(payload.len(), header.len as usize);
                assert!(payload.len() <= MESSAGE_BYTES_MAX);
                assert_eq!(decoded_again(header), header);
                if let Some(request) = Request::decode(payload) {
                    assert_eq!(request.encode()[..], payload[..request.encode().len()]);
                }
                if let Ok(status) = Status::decode(payload) {
                    assert_eq!(status.encode()[..], payload[..4]);
                }
                incoming.consume(header);
            }
            // As if no receive were posted for it.
            Ok(Parsed::Long(Header { kind: Kind::Unexpected | Kind::Expected, .. })) => {
                return true;
            }
            Ok(Parsed::Long(header)) => {
                assert!((1..=CHUNK_BYTES_MAX).contains(&(header.len as usize)));
                // The transfers check this on a connection.
                let is_guessed = (header.kind, header.number) == (Kind::PutData, GUESSED);
                let offset = if is_guessed { 0 } else { header.number % 64 };
                let fits = offset + u64::from(header.len) <= memory.len();
                let to = match fits {
                    true => Destination::Memory(memory.clone(), offset),
                    false => Destination::Nowhere,
                };
                assert!(incoming.begin(header, to));
            }
            Ok(Parsed::Gone) => unreachable!("its pages are there"),
            Ok(Parsed::End(..)) => {}
        }
    }
}

fn decoded_again(header: Header) -> Header {
    let bytes: [u8; HEADER_BYTES] = header.encode();
    Header::decode(&bytes, MESSAGE_BYTES_MAX).expect("it was decoded before")
}

/// The hello of an honest peer.
fn honest_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let own = Uri::parse("na+tcp://127.0.0.1:0").expect("parse");
    let origin = Tcp.open(&own, &OpenOptions::default()).expect("open");
    let uri = format!("na+tcp://{}", listener.local_addr().expect("an address"));
    let to = origin.lookup(&uri).expect("an address");
    origin.send_unexpected(OpId(1), &to, Tag(1), origin.alloc_msg()).expect("send");
    origin.poll(1, &mut |_| {}).expect("poll");
    let (mut stream, _) = listener.accept().expect("accept");
    stream.set_nonblocking(true).expect("a socket");
    let (mut hello, mut part) = (Vec::new(), [0; 1024]);
    while !matches!(Hello::decode(&hello), Ok(Some(_))) {
        assert!(!origin.prepare_wait() || origin.wait_fd().is_some());
        origin.poll(1, &mut |_| {}).expect("poll");
        match stream.read(&mut part) {
            Ok(got) => hello.extend_from_slice(&part[..got]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }
    hello
}

/// Connects to a listening endpoint and sends it bytes: an honest hello if the first byte is even,
/// then the other bytes, in steps that the first byte chooses, with [`KEY`] replaced by a key that
/// exists. When we hang up, so does the endpoint.
///
/// # Panics
///
/// If a rule does not hold.
pub fn connection(data: &[u8]) {
    thread_local! {
        static TARGET: OnceCell<(Target, Vec<u8>)> = const { OnceCell::new() };
    }
    let make = || (Target::new(&Tcp, "na+tcp://127.0.0.1:0"), honest_hello());
    TARGET.with(|target| talk(target.get_or_init(make), data));
}

fn talk((target, hello): &(Target, Vec<u8>), data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let mut bytes = Vec::new();
    if first % 2 == 0 {
        bytes.extend_from_slice(hello);
    }
    bytes.extend_from_slice(data);
    let key = target.memory.key().to_le_bytes();
    while let Some(at) = bytes.windows(KEY.len()).position(|window| window == KEY) {
        bytes[at..at + KEY.len()].copy_from_slice(&key);
    }
    let uri = target.endpoint.self_addr();
    let address = uri.uri().strip_prefix("na+tcp://").expect("a tcp address");
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_nonblocking(true).expect("a socket");
    let (mut written, mut answer) = (0, [0; 4096]);
    let mut hung_up = false;
    let step = [4096, 256, 17, 1][usize::from(first) / 2 % 4];
    for _ in 0..100_000 {
        target.poll();
        if written < bytes.len() {
            let end = bytes.len().min(written + step);
            match stream.write(&bytes[written..end]) {
                Ok(sent) => written += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => written = bytes.len(),
            }
        } else if !hung_up {
            hung_up = true;
            // It may have been closed by the other side.
            let _ = stream.shutdown(Shutdown::Write);
        }
        match stream.read(&mut answer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    panic!("the connection does not end");
}
