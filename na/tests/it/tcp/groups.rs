//! Groups of tcp endpoints: the conformance suite, and what their hellos say.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use na::conformance::PATIENCE;
use na::{Completion, Endpoint, OpId, OpenOptions, PeerLink, Tag};

const URI: &str = "na+tcp://127.0.0.1:0";

fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
    na::open_group(URI, options, shards).unwrap()
}

na::group_conformance! { open_group; grows }

/// The last endpoint of a group of four, of which the others are closed: it has got the listener.
mod left_alone {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        let mut group = open_group(options, 4);
        let last = group.pop().unwrap();
        group.iter().for_each(|shard| shard.close());
        last
    }

    na::conformance! { open; between_endpoints }
}

/// An endpoint to which others hand each of its connections over.
mod handed_over {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        na::conformance::last_of_group(open_group(options, 4))
    }

    na::conformance! { open; handed_over }
}

#[test]
fn a_group_has_bounds() {
    na::conformance::a_group_has_bounds(|shards| {
        na::open_group(URI, &OpenOptions::listening(true), shards)
    });
}

// ---- hellos, as bytes ----

/// A hello of an endpoint that does not listen; `shards` are own, count, wanted and map.
fn hello(endpoint: u64, peer: u64, shards: Option<[u16; 4]>) -> Vec<u8> {
    let mut bytes = b"MRGO\x01\x00\x01\x00".to_vec();
    bytes[6] |= if shards.is_some() { 2 } else { 0 };
    bytes.extend_from_slice(&4096u32.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&peer.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&[if shards.is_some() { 24 } else { 16 }, 0, 0, 0]);
    bytes.extend_from_slice(&endpoint.to_le_bytes());
    bytes.extend_from_slice(&peer.to_le_bytes());
    shards.into_iter().flatten().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
    bytes
}

/// The fields of a hello that are about its sender.
#[derive(Debug)]
struct Heard {
    refusal: u8,
    endpoint: u64,
    peer: u64,
    shards: Option<[u16; 4]>,
}

/// Reads a hello; `None`: the connection was closed without.
fn hear(stream: &mut TcpStream) -> Option<Heard> {
    let mut fixed = [0; 32];
    stream.read_exact(&mut fixed).ok()?;
    let (uri, extension) = (usize::from(fixed[12]), usize::from(fixed[28]));
    let mut rest = vec![0; uri + extension];
    stream.read_exact(&mut rest).unwrap();
    let extension = &rest[uri..];
    let number = |at: usize| {
        extension.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    };
    let field = |at: usize| u16::from_le_bytes(extension[at..at + 2].try_into().unwrap());
    let has_shards = fixed[6] & 2 != 0;
    assert_eq!(extension.len() == 24, has_shards);
    let shards = has_shards.then(|| [16, 18, 20, 22].map(field));
    Some(Heard { refusal: fixed[14], endpoint: number(0), peer: number(8), shards })
}

/// A message of kind 1 or 2.
fn message(kind: u8, tag: u32, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, 0, 0, 0];
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(&u64::from(tag).to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

fn group_of(shards: usize) -> Vec<Arc<dyn Endpoint>> {
    open_group(&OpenOptions::listening(true), shards)
}

fn connect(group: &[Arc<dyn Endpoint>]) -> TcpStream {
    let uri = group[0].self_addr().uri().to_owned();
    let stream = TcpStream::connect(uri.strip_prefix("na+tcp://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Runs `other` on a thread while all endpoints are polled here, each received message answered by
/// its text; returns its result and how many messages came to each endpoint.
fn while_polled<R: Send>(
    group: &[Arc<dyn Endpoint>],
    other: impl FnOnce() -> R + Send,
) -> (R, Vec<usize>) {
    let mut came = vec![0; group.len()];
    for shard in group {
        (0..4).for_each(|op| shard.recv_unexpected(OpId(op), shard.alloc_msg()).unwrap());
    }
    let result = std::thread::scope(|scope| {
        let other = scope.spawn(other);
        while !other.is_finished() {
            for (shard, came) in group.iter().zip(&mut came) {
                let mut done = Vec::new();
                shard.poll(64, &mut |completion| done.push(completion)).unwrap();
                for completion in done {
                    let Completion::Recv { op, buf, result } = completion else { continue };
                    let arrival = result.unwrap();
                    *came += 1;
                    shard.send_expected(OpId(99), &arrival.from, arrival.tag, buf).unwrap();
                    shard.recv_unexpected(op, shard.alloc_msg()).unwrap();
                }
            }
        }
        other.join().unwrap()
    });
    (0..4).for_each(|op| group.iter().for_each(|shard| shard.cancel(OpId(op))));
    for shard in group {
        while shard.poll(64, &mut |_| ()).unwrap() > 0 {}
    }
    (result, came)
}

fn poll_some(group: &[Arc<dyn Endpoint>]) {
    for shard in group.iter().cycle().take(100 * group.len()) {
        shard.poll(64, &mut |_| ()).unwrap();
    }
}

/// The connections of an endpoint.
fn connected(shard: &Arc<dyn Endpoint>) -> usize {
    shard.stats().peers.iter().filter(|peer| peer.link == PeerLink::Connected).count()
}

/// Says `hello` and one message, and hears the answer.
fn call(stream: &mut TcpStream, hello: &[u8]) -> Option<Heard> {
    stream.write_all(hello).unwrap();
    let heard = hear(stream)?;
    if heard.refusal == 0 {
        stream.write_all(&message(1, 5, b"text")).ok()?;
        let mut answer = [0; 20];
        stream.read_exact(&mut answer).ok()?;
        assert_eq!(answer[..], message(2, 5, b"text"));
    }
    Some(heard)
}

#[test]
fn an_earlier_dialer_is_served_by_one_of_the_shards() {
    let group = group_of(4);
    let mut streams: Vec<_> = (0..8).map(|_| connect(&group)).collect();
    let (heard, came) = while_polled(&group, || {
        let calls = streams.iter_mut().enumerate();
        calls.map(|(at, stream)| call(stream, &hello(7, at as u64, None)).unwrap()).collect()
    });
    let heard: Vec<Heard> = heard;
    assert_eq!(came, [2; 4]);
    assert!(heard.iter().all(|hello| hello.endpoint == heard[0].endpoint), "one endpoint");
    let mut peers: Vec<_> = heard.iter().map(|hello| hello.peer).collect();
    peers.sort_unstable();
    peers.dedup();
    assert_eq!(peers.len(), 8, "another number on each connection");
    for hello in &heard {
        let [own, count, wanted, map] = hello.shards.unwrap();
        assert!(own < 4 && (count, wanted, map) == (4, 0, 0), "{hello:?}");
    }
}

#[test]
fn the_shard_that_a_hello_names_answers() {
    let group = group_of(4);
    for (wanted, own) in [(3, Some(2)), (1, Some(0)), (5, None), (u16::MAX, None)] {
        let mut stream = connect(&group);
        let (heard, came) = while_polled(&group, || {
            call(&mut stream, &hello(u64::from(wanted), 1, Some([0, 1, wanted, 0]))).unwrap()
        });
        let answered = heard.shards.unwrap()[0];
        assert!(own.is_none_or(|own| own == answered), "{wanted}: {heard:?}");
        assert_eq!(came[usize::from(answered)], 1);
    }
}

#[test]
fn an_endpoint_alone_says_nothing_of_shards() {
    let alone = group_of(1);
    for shards in [None, Some([1, 4, 3, 9])] {
        let mut stream = connect(&alone);
        let (heard, _) = while_polled(&alone, || call(&mut stream, &hello(7, 1, shards)).unwrap());
        assert_eq!(heard.shards, None);
    }
}

#[test]
fn a_shard_outside_of_its_group_breaks_a_rule() {
    let group = group_of(4);
    for shards in [[4, 4, 0, 0], [0, 0, 0, 0], [u16::MAX, 9, 1, 1]] {
        let mut stream = connect(&group);
        let (heard, _) = while_polled(&group, || {
            let heard = call(&mut stream, &hello(7, 1, Some(shards)));
            // What follows is the end.
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
            heard
        });
        assert!(heard.is_none_or(|hello| hello.endpoint == 0), "it is only told what we speak");
    }
    let mut stream = connect(&group);
    while_polled(&group, || call(&mut stream, &hello(7, 1, Some([3, 4, 0, 0]))).unwrap());
}

#[test]
fn a_group_that_calls_has_a_bound_of_connections() {
    let group = group_of(2);
    let calling = |count: u16, connections: usize| {
        let mut streams: Vec<_> = (0..connections).map(|_| connect(&group)).collect();
        let endpoint = u64::from(count);
        let (heard, _) = while_polled(&group, || {
            let calls = streams.iter_mut().enumerate();
            let calls = calls.map(|(at, stream)| {
                call(stream, &hello(endpoint, at as u64, Some([0, count, 1, 0]))).unwrap().refusal
            });
            calls.collect::<Vec<_>>()
        });
        (heard, streams)
    };
    // From each of theirs one for each of ours, and one more.
    assert_eq!(calling(1, 4).0, [0, 0, 0, 1]);
    assert_eq!(calling(3, 10).0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let (heard, streams) = calling(2, 7);
    assert_eq!(heard, [0, 0, 0, 0, 0, 0, 1]);
    // When they are gone others may come.
    drop(streams);
    let deadline = Instant::now() + PATIENCE;
    while calling(2, 1).0 != [0] {
        assert!(Instant::now() < deadline, "connections that have ended still count");
    }
}

#[test]
fn a_dialer_that_dies_on_the_way_takes_no_place() {
    let group = group_of(4);
    let dead: Vec<_> = (0..12).map(|_| connect(&group)).collect();
    for (at, mut stream) in dead.into_iter().enumerate() {
        stream.write_all(&hello(7, at as u64, None)).unwrap();
        // Before anybody looks at it, in part after its message.
        if at % 2 == 0 {
            stream.write_all(&message(1, 5, b"text")).unwrap();
        }
    }
    // The acceptor alone: they lie in the inboxes of the others.
    poll_some(&group[..1]);
    poll_some(&group);
    let deadline = Instant::now() + PATIENCE;
    while group.iter().any(|shard| connected(shard) > 0) {
        assert!(Instant::now() < deadline, "the end of a connection is not seen");
        poll_some(&group);
    }
    let mut late: Vec<_> = (0..8).map(|_| connect(&group)).collect();
    let (heard, _) = while_polled(&group, || {
        let calls = late.iter_mut().enumerate();
        calls.map(|(at, stream)| call(stream, &hello(8, at as u64, None)).unwrap()).collect()
    });
    let heard: Vec<Heard> = heard;
    let shards = |own: u16| heard.iter().filter(|hello| hello.shards.unwrap()[0] == own).count();
    assert_eq!([0, 1, 2, 3].map(shards), [2; 4]);
}

#[test]
fn what_a_closed_shard_has_not_taken_goes_to_the_others() {
    for closed in [vec![1], vec![0], vec![1, 0], vec![3, 2, 1], vec![0, 1, 2]] {
        let mut group = group_of(4);
        let mut streams: Vec<_> = (0..8).map(|_| connect(&group)).collect();
        for (at, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&hello(7, at as u64, None)).unwrap();
        }
        // They are handed over, and not taken; every fourth one stays.
        let deadline = Instant::now() + PATIENCE;
        while connected(&group[0]) < 2 {
            assert!(Instant::now() < deadline, "nothing is accepted");
            poll_some(&group[..1]);
        }
        poll_some(&group[..1]);
        for shard in &closed {
            group[*shard].close();
        }
        let mut at = 0;
        group.retain(|_| (!closed.contains(&at), at += 1).0);
        let (heard, came) = while_polled(&group, || {
            let calls = streams.iter_mut();
            calls.filter_map(|stream| call(stream, &[])).collect()
        });
        let heard: Vec<Heard> = heard;
        // Two were with the acceptor, and had been answered before it was closed.
        let lost = if closed.contains(&0) { 2 } else { 0 };
        assert_eq!(heard.len(), 8 - lost, "{closed:?}: {heard:?}");
        assert_eq!(came.iter().sum::<usize>(), heard.len(), "{closed:?}");
    }
}

#[test]
fn an_earlier_listener_serves_each_shard_on_its_own_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", listener.local_addr().unwrap());
    let group = group_of(4);
    for (at, shard) in group.iter().enumerate() {
        let to = shard.lookup(&uri).unwrap();
        shard.recv_expected(OpId(50), &to, Tag(5), shard.alloc_msg()).unwrap();
        let mut buf = shard.alloc_msg();
        assert!(buf.try_extend(&[at as u8]));
        shard.send_unexpected(OpId(51), &to, Tag(5), buf).unwrap();
    }
    let (heard, _) = while_polled(&group, || {
        let mut heard = Vec::new();
        let mut streams = Vec::new();
        for _ in 0..4 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let hello_of_shard = hear(&mut stream).unwrap();
            stream.write_all(&hello(9, heard.len() as u64, None)).unwrap();
            let mut call = [0; 17];
            stream.read_exact(&mut call).unwrap();
            let own = hello_of_shard.shards.unwrap()[0];
            assert_eq!(call[..], message(1, 5, &[own as u8]), "the shard that it says");
            stream.write_all(&message(2, 5, &[own as u8])).unwrap();
            heard.push(hello_of_shard);
            streams.push(stream);
        }
        heard
    });
    let numbers: HashSet<_> = heard.iter().map(|hello| hello.peer).collect();
    assert_eq!(numbers.len(), 4, "other numbers of the receiver: {heard:?}");
    assert!(heard.iter().all(|hello| hello.endpoint == heard[0].endpoint), "one endpoint");
}
