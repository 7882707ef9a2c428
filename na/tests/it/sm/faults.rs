//! Broken and hostile peers of the sm transport, and names that they claim. After each, the
//! endpoint still serves.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use na::{Access, Addr, Completion, Endpoint, Error, OpId, OpenOptions, RemoteMem, Tag};

use crate::common::sm::{
    Hostile, Node, RING, SEGMENT, dial, greet, hello, listening, memfd, recv_packet, registered,
    whole, with_attach,
};
use crate::common::test_path;

const GET: u8 = 3;
const DONE: u8 = 5;
const PULL: u8 = 6;
const DATA: u8 = 7;
const SUPPLY: u8 = 8;
const TAKEN: u8 = 19;

#[test]
fn garbage_handshakes_are_refused_with_a_reason() {
    let mut node = listening();
    let uri = node.endpoint.self_addr().uri().to_owned();
    let good = hello("na+sm://me", false);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let (fit, unsealed) = (memfd(SEGMENT, true), memfd(SEGMENT, false));
    let (short, long) = (memfd(SEGMENT - 1, true), memfd(2 * SEGMENT, true));
    let null = std::fs::File::open("/dev/null").expect("null");
    let oversized = [&good[..], &[b'x'; 5000]].concat();
    let cases = [
        ("a web browser", b"GET / HTTP/1.1\r\n".to_vec(), vec![fit.as_fd()], "MRGO"),
        ("one byte", vec![b'!'], vec![], "MRGO"),
        ("version 9", with(4, 9), vec![fit.as_fd()], "version 9"),
        ("a welcome", with(6, 2), vec![fit.as_fd()], "not a hello"),
        ("kind 7", with(6, 7), vec![fit.as_fd()], "unknown kind"),
        ("text too long", with(20, 200), vec![fit.as_fd()], "wrong"),
        ("cut", good[..39].to_vec(), vec![fit.as_fd()], "wrong"),
        ("no memory", good.clone(), vec![], "no memory"),
        ("memory that can shrink", good.clone(), vec![unsealed.as_fd()], "not sealed"),
        ("too little memory", good.clone(), vec![short.as_fd()], "bytes instead"),
        ("too much memory", good.clone(), vec![long.as_fd()], "bytes instead"),
        ("no memfd", good.clone(), vec![null.as_fd()], "sealed"),
        ("rings of no power of two", with(16, 1), vec![fit.as_fd()], "rings"),
        ("huge rings", with(19, 0x40), vec![fit.as_fd()], "rings"),
        ("no rings", with(18, 0), vec![fit.as_fd()], "rings"),
        ("too long", oversized, vec![fit.as_fd()], ""),
    ];
    for (what, bytes, fds, reason) in cases {
        let socket = dial(&uri);
        greet(&mut node, &socket, &bytes, &fds);
        let mut said = String::new();
        node.until(what, |_| match recv_packet(&socket) {
            Some(packet) if packet.is_empty() => true,
            Some(packet) => {
                said = String::from_utf8_lossy(&packet).into_owned();
                false
            }
            None => false,
        });
        assert!(said.contains(reason), "{what}: {said}");
        node.still_serves();
    }
    // Those who say nothing, or several things at once, hurt nobody either.
    let silent: Vec<_> = (0..30).map(|_| dial(&uri)).collect();
    node.still_serves();
    drop(silent);
    let many = dial(&uri);
    greet(&mut node, &many, &good, &[fit.as_fd(), null.as_fd(), unsealed.as_fd(), long.as_fd()]);
    node.still_serves();
}

/// Attaches a hostile peer, lets it act, and expects that its connection ends as a breach.
#[track_caller]
fn expect_breach(what: &str, act: impl FnOnce(&mut Hostile, &mut Node, &Addr)) {
    let mut node = listening();
    let (mut hostile, addr) = Hostile::attach(&mut node);
    let waiting = node.recv_expected(&addr, 9);
    act(&mut hostile, &mut node, &addr);
    let error = node.error(waiting);
    assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
    node.until("the end of the connection", |_| hostile.is_closed());
    node.still_serves();
}

#[test]
fn a_corrupted_ring_ends_its_connection() {
    let word = |len: u64, kind: u64| len | kind << 24;
    for (what, commit) in [
        ("a record longer than a quarter", word(RING as u64 / 4, 1)),
        ("the longest length", word(0xff_ffff, 1)),
        ("a message beyond the limit", word(4097, 1)),
        ("no kind", 5),
        ("an unknown kind", word(0, 200)),
        ("padding with a length", word(1, 255)),
        ("all ones", u64::MAX),
    ] {
        expect_breach(what, |hostile, _, _| hostile.commit(commit));
    }
    expect_breach("padding without a record behind", |hostile, _, _| {
        hostile.word(4096).store(0, Ordering::Relaxed);
        hostile.commit(word(0, 255));
    });
    expect_breach("padding behind padding", |hostile, _, _| {
        hostile.word(4096).store(word(0, 255), Ordering::Relaxed);
        hostile.commit(word(0, 255));
    });
}

#[test]
fn nonsense_in_control_records_ends_the_connection() {
    let nothing: &[u8] = &[];
    let lies = [[1; 40].as_slice(), &[2; 16]].concat();
    for (what, kind, payload) in [
        ("an empty request", GET, nothing),
        ("a request cut short", GET, &[1; 31]),
        ("a request whose pieces do not add up", GET, &lies),
        ("a request that is too long", GET, &[0; 4000]),
        ("the end of nothing", DONE, &[0; 16]),
        ("a short end", DONE, &[0; 8]),
        ("a long control record", DONE, &[0; 17]),
        ("a pull of nothing", PULL, &[0; 16]),
        ("a pull without its second word", PULL, &[0; 8]),
        ("a pull with a wrong flag", PULL, &[2; 16]),
        ("data of nothing", DATA, &[0; 100]),
        ("data without prefix", DATA, &[0; 20]),
        ("supply of nothing", SUPPLY, &[0; 100]),
        ("a report without its last word", TAKEN, &[0; 16]),
        ("a report that is too long", TAKEN, &[0; 32]),
        ("a long ping", 10, &[0; 8]),
    ] {
        expect_breach(what, |hostile, _, _| hostile.write(kind, 0, payload));
    }
}

#[test]
fn an_impossible_read_position_ends_the_connection() {
    for (what, head) in [("ahead of us", 1u64 << 40), ("between lines", 65), ("wrapped", u64::MAX)]
    {
        expect_breach(what, |hostile, node, addr| {
            // Our ring towards it, never read: the position is looked at when it seems full.
            hostile.word(256).store(head, Ordering::Release);
            for tag in 0..200 {
                node.send(addr, tag, &[0; 4096]);
            }
        });
    }
}

#[test]
fn too_many_transfers_end_the_connection() {
    let mut node = listening();
    let (mut hostile, addr) = Hostile::attach(&mut node);
    let memory = registered(&node, 1 << 20, Access::ReadWrite);
    let waiting = node.recv_expected(&addr, 9);
    // Puts through the ring (we offered no attach), whose data never comes.
    for part in 0..100u64 {
        let words = [part, memory.key(), 0, 8, 4096, 8, 0];
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        hostile.write(4, 0, &payload);
    }
    assert!(matches!(node.error(waiting), Error::Protocol { .. }));
    let (sender, released) = channel();
    memory.revoke(move |memory| sender.send(memory).expect("the test waits"));
    node.until("the memory", |_| released.try_recv().is_ok());
    node.still_serves();
}

#[test]
fn noise_on_the_socket_ends_the_connection_and_bells_do_not() {
    let mut node = listening();
    let (hostile, addr) = Hostile::attach(&mut node);
    for _ in 0..100 {
        rustix::net::send(&hostile.socket, b"!", rustix::net::SendFlags::NOSIGNAL).expect("ring");
    }
    node.still_serves();
    assert!(!hostile.is_closed());
    let waiting = node.recv_expected(&addr, 9);
    rustix::net::send(&hostile.socket, b"noise", rustix::net::SendFlags::NOSIGNAL).expect("send");
    assert!(matches!(node.error(waiting), Error::Protocol { .. }));
    node.still_serves();
}

/// An owner that breaks the protocol while it copies: the operation ends, but our memory stays ours
/// until it has stopped.
#[test]
fn memory_is_kept_while_a_lost_owner_copies() {
    for dies in [false, true] {
        let mut node = listening();
        let (mut hostile, addr) = Hostile::attach(&mut node);
        let memory = registered(&node, 4096, Access::ReadWrite);
        let remote = RemoteMem { key: 1, len: 4096, access: Access::ReadWrite, native: None };
        let op = node.op();
        node.endpoint.get(op, &addr, whole(&memory, &remote)).expect("start");
        // The request is the first record of our ring.
        let ring = 4096 + RING;
        node.until("the request", |_| hostile.word(ring).load(Ordering::Acquire) != 0);
        hostile.half(640).store(1, Ordering::SeqCst);
        hostile.commit(u64::MAX);
        node.until("the gate's end", |_| hostile.half(1024).load(Ordering::SeqCst) == 1);
        assert!(matches!(node.error(op), Error::Protocol { .. }));
        assert!(memory.may_be_written());
        let (sender, released) = channel();
        memory.revoke(move |memory| sender.send(memory).expect("the test waits"));
        for _ in 0..5000 {
            node.poll();
        }
        assert!(released.try_recv().is_err(), "given back while it is being copied");
        if dies {
            drop(hostile);
        } else {
            hostile.half(640).store(0, Ordering::SeqCst);
        }
        node.until("the memory", |_| released.try_recv().is_ok());
        node.still_serves();
    }
}

#[test]
fn a_name_belongs_to_one_endpoint_at_a_time() {
    let uri = format!("na+sm://name.in_use-{}x", std::process::id());
    let options = OpenOptions::listening(true);
    let first = na::open(&uri, &options).expect("open");
    assert_eq!(first.self_addr().uri(), uri);
    let error = na::open(&uri, &options).expect_err("taken").to_string();
    assert!(error.contains(&uri) && error.contains("another endpoint"), "{error}");
    Node::new(first.clone()).still_serves();
    first.close();
    drop(first);
    let again = na::conformance::open_again(|| na::open(&uri, &options));
    Node::new(again).still_serves();
}

/// As another user could, or a process with the same number in another pid namespace.
#[test]
fn made_up_names_cannot_be_taken_in_advance() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let (process, user) = (std::process::id(), rustix::process::geteuid().as_raw());
    let taken: Vec<_> = (1..=50)
        .map(|count| {
            let name = format!("margo-sm/{user}/{process}-{count}");
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
            let socket = socket.expect("a socket");
            rustix::net::bind(&socket, &address).expect("bind");
            socket
        })
        .collect();
    listening().still_serves();
    // Nor does who is called like that, but does not listen, take such a name for its own.
    let mut client = Node::new(na::open("na+sm://", &OpenOptions::default()).expect("open"));
    for count in 1..=taken.len() {
        let uri = format!("na+sm://{process}-{count}");
        let named = client.endpoint.lookup(&uri).expect("a name");
        assert_ne!(named, client.endpoint.self_addr());
        let sent = client.send(&named, 1, b"x");
        assert!(client.error(sent).to_string().contains("nobody listens"));
    }
}

#[test]
fn a_name_that_nobody_listens_at_is_told() {
    let mut node = with_attach(true, false);
    let nobody = node.endpoint.lookup("na+sm://nobody.listens.here").expect("only parsed");
    let op = node.send(&nobody, 1, b"x");
    let error = node.error(op);
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("nobody listens"), "{error}");
    let bad = node.endpoint.lookup("na+sm://").expect_err("names nobody");
    assert!(matches!(bad, Error::BadUri { .. }), "{bad}");
}

/// As in a container with a network of its own.
#[test]
fn a_name_of_another_network_namespace_is_not_found_and_the_error_says_where_names_are() {
    const URI: &str = "NA_SM_FOREIGN_URI";
    if let Ok(uri) = std::env::var(URI) {
        let kill = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(kill).expect("a signal");
        let mut inside = with_attach(true, false);
        let foreign = inside.endpoint.lookup(&uri).expect("only parsed");
        let op = inside.send(&foreign, 1, b"x");
        return println!("error: {}", inside.error(op));
    }
    let unshare = |arguments: &[&str]| {
        let mut command = std::process::Command::new("unshare");
        command.arg("--net").args(arguments);
        command
    };
    // Who is not root needs a user namespace for it, in which the user stays the same.
    let ways = [&[][..], &["--user", "--map-current-user"]];
    let may = |way: &&&[&str]| {
        let tried = unshare(way).arg("true").output();
        tried.is_ok_and(|output| output.status.success())
    };
    na::conformance::hear_of_children();
    let Some(way) = ways.iter().find(may) else {
        return println!("SKIPPED: network namespaces are not permitted here");
    };
    let node = listening();
    let test = test_path!(
        "a_name_of_another_network_namespace_is_not_found_and_the_error_says_where_names_are"
    );
    let output = unshare(way)
        .arg(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture"])
        .env(URI, node.endpoint.self_addr().uri())
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
    for part in ["nobody listens there", "share", "net:["] {
        assert!(output.status.success() && said.contains(part), "{said}");
    }
    assert!(!said.contains(&*own.to_string_lossy()), "{said}");
}

#[test]
fn both_may_connect_at_the_same_time() {
    let (mut a, mut b) = (listening(), listening());
    let to_b = a.endpoint.lookup(b.endpoint.self_addr().uri()).expect("look up");
    let to_a = b.endpoint.lookup(a.endpoint.self_addr().uri()).expect("look up");
    let receives: Vec<_> = (0..100).map(|_| (a.recv(), b.recv())).collect();
    // Both have connected before either polls.
    for tag in 0..100 {
        a.send(&to_b, tag, b"from a");
        b.send(&to_a, tag, b"from b");
    }
    for (tag, (at_a, at_b)) in receives.into_iter().enumerate() {
        a.until("a message", |node| {
            b.poll();
            node.is_done(at_a) && b.is_done(at_b)
        });
        let (at_a, at_b) = (a.received(at_a), b.received(at_b));
        assert_eq!((at_a.0.tag.0 as usize, &at_a.1[..]), (tag, &b"from b"[..]));
        assert_eq!((at_b.0.tag.0 as usize, &at_b.1[..]), (tag, &b"from a"[..]));
        assert_eq!((at_a.0.from, at_b.0.from), (to_b.clone(), to_a.clone()));
    }
    let waiting = a.recv_expected(&to_b, 1);
    b.endpoint.close();
    assert!(matches!(a.error(waiting), Error::PeerGone { .. }));
}

/// Our connection to it has no answer yet when the one that it made ends.
#[test]
fn a_peer_that_ends_with_one_of_two_connections_open_ends_its_receives() {
    let (mut node, silent) = (listening(), listening());
    let uri = silent.endpoint.self_addr().uri().to_owned();
    let to_silent = node.endpoint.lookup(&uri).expect("look up");
    let unanswered = node.send(&to_silent, 1, b"into a connection that is not accepted");
    let (hostile, from) = Hostile::attach_as(&mut node, &uri, true);
    assert_eq!(from, to_silent, "one peer, two connections");
    let waiting = node.recv_expected(&from, 7);
    drop(hostile);
    assert!(matches!(node.error(waiting), Error::PeerGone { .. }));
    assert!(!node.is_done(unanswered), "that connection is still being made");
    silent.endpoint.close();
    assert!(matches!(node.error(unanswered), Error::Unreachable { .. }));
}

/// Records that the end of a connection may leave behind are no licence for the other connection.
#[test]
fn a_peer_with_two_connections_stays_bounded_when_one_ends() {
    const PAYLOAD: [u8; 56] = [3; 56];
    // Records of one line each, and what messages may wait here, with room to spare.
    const WINDOW: usize = RING / 64 / 2;
    const TOO_MANY: usize = 4 * (256 << 10) / PAYLOAD.len();
    let (mut node, other) = (listening(), listening());
    let uri = other.endpoint.self_addr().uri().to_owned();
    let (first, from) = Hostile::attach_as(&mut node, &uri, true);
    let (mut second, again) = Hostile::attach_as(&mut node, &uri, true);
    assert_eq!(from, again, "one peer, two connections");
    drop(first);
    // The second one's greeting was a record as well.
    let (mut written, mut idle) = (1, 0);
    // Enough polls for several looks at the sockets.
    while idle < 10_000 {
        let head = second.word(128).load(Ordering::Acquire) as usize / 64;
        assert!(head < TOO_MANY, "{head} messages were taken, for which nobody waits");
        idle += 1;
        while written < head + WINDOW {
            second.write(1, 5, &PAYLOAD);
            (written, idle) = (written + 1, 0);
        }
        node.poll();
    }
    assert!(!second.is_closed());
}

#[test]
fn the_smaller_message_limit_holds_for_both() {
    let mut large = listening();
    let options = OpenOptions::default();
    let small = {
        let mut options = options;
        options.message_bytes_max = 100;
        Node::new(na::open("na+sm://", &options).expect("open"))
    };
    let mut small = small;
    let to_large = small.endpoint.lookup(large.endpoint.self_addr().uri()).expect("look up");
    let asked = large.recv();
    small.send(&to_large, 1, &[7; 100]);
    large.until("a message", |node| {
        small.poll();
        node.is_done(asked)
    });
    let (arrival, _) = large.received(asked);
    let op = large.send(&arrival.from, 1, &[7; 101]);
    assert!(matches!(large.error(op), Error::TooLong { len: 101, max: 100 }));
    let received = small.recv();
    large.send(&arrival.from, 2, &[7; 100]);
    small.until("a message", |node| {
        large.poll();
        node.is_done(received)
    });
    assert_eq!(small.received(received).0.tag, Tag(2));
}

#[test]
fn nothing_appears_in_the_file_system() {
    let name = format!("no.files-{}x", std::process::id());
    let endpoint = na::open(&format!("na+sm://{name}"), &OpenOptions::listening(true));
    let mut node = Node::new(endpoint.expect("open"));
    let (_hostile, _addr) = Hostile::attach(&mut node);
    node.still_serves();
    for directory in ["/dev/shm", "/tmp", "/var/tmp"] {
        let Ok(entries) = std::fs::read_dir(directory) else { continue };
        for entry in entries.flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            assert!(!file.contains(&name), "{directory}/{file}");
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
    let ours: Vec<_> = maps.lines().filter(|line| line.contains("margo-sm")).collect();
    let no_file = |line: &&str| line.contains("/memfd:margo-sm") && line.ends_with(" (deleted)");
    assert!(ours.iter().all(no_file), "{ours:?}");
}

/// The completions that a closed endpoint still has to report come, each once.
#[test]
fn close_in_a_sink_is_allowed() {
    let endpoint: Arc<dyn Endpoint> =
        na::open("na+sm://", &OpenOptions::listening(true)).expect("open");
    for op in 0..10 {
        endpoint.recv_unexpected(OpId(op), endpoint.alloc_msg()).expect("post");
    }
    endpoint.cancel(OpId(3));
    let mut ends = Vec::new();
    while ends.len() < 10 {
        let mut sink = |completion: Completion| {
            let Completion::Recv { op, result: Err(error), .. } = completion else {
                panic!("{completion:?}");
            };
            endpoint.close();
            ends.push((op.0, matches!(error, Error::Canceled)));
        };
        endpoint.poll(4, &mut sink).expect("poll");
    }
    ends.sort_unstable();
    let expected: Vec<_> = (0..10).map(|op| (op, op == 3)).collect();
    assert_eq!(ends, expected);
}

crate::common::in_groups! {
    garbage_handshakes_are_refused_with_a_reason,
    a_corrupted_ring_ends_its_connection,
    nonsense_in_control_records_ends_the_connection,
    an_impossible_read_position_ends_the_connection,
    too_many_transfers_end_the_connection,
    noise_on_the_socket_ends_the_connection_and_bells_do_not,
    memory_is_kept_while_a_lost_owner_copies,
}
