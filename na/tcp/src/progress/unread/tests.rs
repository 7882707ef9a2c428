//! Unit tests of what peers leave unread.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::*;
use crate::api::endpoint::TcpEndpoint;
use crate::wire::frame::{HEADER_BYTES, Header, Hello, Kind};
use na_core::conformance::PATIENCE;
use na_core::{Addr, Endpoint, Error, OpenOptions, Uri};

fn open(options: &OpenOptions) -> TcpEndpoint {
    TcpEndpoint::open(&Uri::parse("na+tcp://127.0.0.1:0").unwrap(), options).unwrap()
}

/// Fails when a condition does not come true.
struct Patience(Instant);

impl Patience {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn check(&self, what: &str) {
        assert!(self.0.elapsed() < PATIENCE, "no end: {what}");
        std::thread::yield_now();
    }
}

/// An endpoint that answers each request with `answer_bytes` bytes.
struct Server {
    endpoint: TcpEndpoint,
    answer_bytes: usize,
    /// Posts a receive from the first caller, so that something is awaited of it.
    awaits: bool,
    requests: usize,
}

impl Server {
    fn new(options: &OpenOptions, answer_bytes: usize) -> Self {
        let endpoint = open(options);
        for op in 0..64 {
            endpoint.recv_unexpected(OpId(op), endpoint.alloc_msg()).unwrap();
        }
        Self { endpoint, answer_bytes, awaits: false, requests: 0 }
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.endpoint.poll(64, &mut |completion| done.push(completion)).unwrap();
        for completion in done {
            let Completion::Recv { op, mut buf, result: Ok(arrival) } = completion else {
                continue;
            };
            self.requests += 1;
            if std::mem::take(&mut self.awaits) {
                let (from, room) = (&arrival.from, self.endpoint.alloc_msg());
                self.endpoint.recv_expected(OpId(1000), from, Tag(77), room).unwrap();
            }
            buf.set_len(self.answer_bytes);
            buf.as_mut_slice().fill(arrival.tag.0 as u8);
            self.endpoint.send_expected(OpId(2000), &arrival.from, arrival.tag, buf).unwrap();
            self.endpoint.recv_unexpected(op, self.endpoint.alloc_msg()).unwrap();
        }
    }

    fn held(&self) -> usize {
        self.endpoint.core.budget.held()
    }

    fn paused(&self) -> usize {
        self.endpoint.poller.lock().unread.paused.len()
    }

    fn given_up(&self) -> u64 {
        self.endpoint.poller.lock().unread.given_up
    }
}

/// A peer of its own making.
struct Raw {
    stream: TcpStream,
    unsent: VecDeque<u8>,
    sent: u32,
    got: Vec<u8>,
    answers: u32,
    is_over: bool,
}

impl Raw {
    /// Connects from `host`, an address of this one, and has said hello.
    fn connect(server: &mut Server, host: [u8; 4]) -> Self {
        let address = server.endpoint.self_addr();
        let address = address.uri().strip_prefix("na+tcp://").unwrap().parse::<SocketAddr>();
        let from = SocketAddr::from((host, 0));
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        );
        let socket = socket.unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
        rustix::net::bind(&socket, &from).unwrap();
        rustix::net::connect(&socket, &address.unwrap()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(&Hello::ours(1 << 20, 1, String::new()).encode()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let unsent = VecDeque::new();
        let mut raw = Self { stream, unsent, sent: 0, got: Vec::new(), answers: 0, is_over: false };
        let patience = Patience::new();
        let hello = loop {
            raw.read(1 << 10);
            match Hello::decode(&raw.got).unwrap() {
                Some((_, len)) => break len,
                None => server.poll(),
            }
            patience.check("a hello");
        };
        raw.got.drain(..hello);
        raw
    }

    /// Asks on, as long as the socket takes requests.
    fn ask(&mut self) -> bool {
        self.ask_some(u32::MAX)
    }

    /// Asks at most so often.
    fn ask_some(&mut self, mut most: u32) -> bool {
        let mut asked = false;
        loop {
            if self.unsent.is_empty() {
                if most == 0 {
                    return asked;
                }
                most -= 1;
                let (kind, number) = (Kind::Unexpected, u64::from(self.sent));
                self.unsent.extend(Header { kind, len: 8, number }.encode());
                self.unsent.extend([7; 8]);
                self.sent += 1;
            }
            match self.stream.write(self.unsent.as_slices().0) {
                Ok(bytes) => drop(self.unsent.drain(..bytes)),
                Err(error) => {
                    self.is_over |= error.kind() != ErrorKind::WouldBlock;
                    return asked;
                }
            }
            asked = true;
        }
    }

    /// Sends the rest of the request that was begun.
    fn finish(&mut self) {
        while !self.unsent.is_empty()
            && let Ok(bytes) = self.stream.write(self.unsent.make_contiguous())
        {
            self.unsent.drain(..bytes);
        }
    }

    fn read(&mut self, most: usize) {
        let mut bytes = vec![0; most];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(len) => self.got.extend_from_slice(&bytes[..len]),
            Err(error) => self.is_over |= error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// Reads answers, which come in the order of the requests.
    fn take_answers(&mut self) {
        self.read(1 << 20);
        let mut at = 0;
        while let Some(header) = self.got[at..].first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(header, 1 << 20).unwrap();
            let end = at + HEADER_BYTES + header.len as usize;
            let Some(bytes) = self.got.get(at + HEADER_BYTES..end) else { break };
            assert_eq!((header.kind, header.number), (Kind::Expected, self.answers.into()));
            assert!(bytes.iter().all(|byte| *byte == self.answers as u8));
            self.answers += 1;
            at = end;
        }
        self.got.drain(..at);
    }
}

#[test]
fn a_peer_that_does_not_read_is_not_read_until_it_does() {
    let mut server = Server::new(&OpenOptions::listening(true), 100);
    let mut raw = Raw::connect(&mut server, [127, 0, 0, 1]);
    let patience = Patience::new();
    // Its requests wait in the sockets in the end.
    let (mut idle, mut most) = (0, 0);
    while server.paused() == 0 || idle < 100 {
        idle = if raw.ask() { 0 } else { idle + 1 };
        server.poll();
        most = most.max(server.held());
        patience.check("a pause");
    }
    let requests = server.requests;
    assert!(most > PAUSE_BYTES && most < 4 * PAUSE_BYTES, "{most} bytes");
    assert!((requests as u32) < raw.sent && !raw.is_over);
    // Now it reads, and everything goes on.
    while raw.answers < raw.sent {
        raw.take_answers();
        raw.finish();
        server.poll();
        patience.check("the answers");
    }
    assert_eq!((server.paused(), server.held()), (0, 0));
    assert_eq!(server.requests, raw.sent as usize);
}

#[test]
fn who_is_awaited_is_read_on_and_given_up_at_its_bound() {
    const MAX: usize = 6 << 20;
    let mut options = OpenOptions::listening(true);
    options.unread_answers_max = Some(MAX);
    let mut server = Server::new(&options, 100);
    server.awaits = true;
    let mut raw = Raw::connect(&mut server, [127, 0, 0, 1]);
    let (patience, mut most) = (Patience::new(), 0);
    while !raw.is_over {
        raw.ask();
        server.poll();
        most = most.max(server.held());
        assert_eq!(server.paused(), 0);
        patience.check("the end of the peer");
    }
    // The last poll may have brought some more.
    assert!(most > MAX - PAUSE_BYTES && most < MAX + PAUSE_BYTES, "{most} bytes");
    assert_eq!(server.held(), 0);
}

/// The peers of one host together reach its bound, one of another host is not affected.
#[test]
fn a_crowd_of_one_host_gives_way_alone() {
    const OF_HOST: usize = 4 << 20;
    let mut options = OpenOptions::listening(true);
    options.unread_answers_per_host_max = Some(OF_HOST);
    crowd_gives_way(&options, |last| [127, 0, 0, if last == 0 { 3 } else { 2 }], OF_HOST);
}

/// When all peers together leave too much unread, a peer of the host for which most waits is given
/// up.
#[test]
fn a_crowd_of_all_hosts_gives_way_by_its_largest() {
    const OF_ALL: usize = 4 << 20;
    let mut options = OpenOptions::listening(true);
    options.unread_answers_total_max = Some(OF_ALL);
    crowd_gives_way(&options, |last| [127, 0, 0, 2 + last], OF_ALL);
}

/// Some of the peers that ask on and read nothing are given up. The first peer has left less
/// unread, and stays.
fn crowd_gives_way(options: &OpenOptions, host: impl Fn(u8) -> [u8; 4], max: usize) {
    const CROWD: u8 = 8;
    let mut server = Server::new(options, 100);
    let mut calm = Raw::connect(&mut server, host(0));
    let patience = Patience::new();
    // It leaves something, and less than others will.
    while server.held() == 0 {
        calm.ask_some(100);
        while server.requests < calm.sent as usize {
            server.poll();
            patience.check("something unread");
        }
    }
    assert!(server.held() < PAUSE_BYTES / 4, "{} bytes", server.held());
    let mut crowd: Vec<_> = (1..=CROWD).map(|n| Raw::connect(&mut server, host(n))).collect();
    let (mut most, mut given_up) = (0, 0);
    while given_up < 3 {
        for raw in crowd.iter_mut().filter(|raw| !raw.is_over) {
            raw.ask();
            given_up += u64::from(raw.is_over);
        }
        server.poll();
        most = most.max(server.held());
        patience.check("the end of some peers");
    }
    // What was read before the pauses is answered.
    assert!(most <= max + usize::from(CROWD) * PAUSE_BYTES, "{most} bytes");
    assert!(server.given_up() >= given_up);
    while calm.answers < calm.sent {
        calm.take_answers();
        calm.finish();
        server.poll();
        assert!(!calm.is_over, "the calm one is given up");
        patience.check("the calm one's answers");
    }
    drop(crowd);
    while server.held() > 0 {
        server.poll();
        patience.check("nothing held");
    }
}

/// Data left in a socket goes with the socket when it is closed, though its peer answers that it
/// takes nothing.
#[test]
fn who_is_given_up_leaves_nothing_in_the_kernel() {
    let mut options = OpenOptions::listening(true);
    options.unread_answers_total_max = Some(1 << 20);
    let mut server = Server::new(&options, 100);
    server.awaits = true;
    let mut raw = Raw::connect(&mut server, [127, 0, 0, 1]);
    let ours = raw.stream.local_addr().unwrap().port();
    let patience = Patience::new();
    // Each request is read before the next one, and none comes later: either would reset the
    // connection by itself.
    while server.given_up() == 0 {
        raw.ask_some(1);
        while server.requests < raw.sent as usize && server.given_up() == 0 {
            server.poll();
            patience.check("the end of the peer");
        }
        (0..2).for_each(|_| server.poll());
    }
    let theirs = server.endpoint.self_addr();
    let theirs: SocketAddr = theirs.uri().strip_prefix("na+tcp://").unwrap().parse().unwrap();
    let (local, remote) = (format!(":{:04X}", theirs.port()), format!(":{ours:04X}"));
    let is_there = || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        sockets.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|address| address.ends_with(&local))
                && words.next().is_some_and(|address| address.ends_with(&remote))
        })
    };
    while is_there() {
        assert!(patience.0.elapsed() < Duration::from_secs(20), "the kernel keeps it");
        std::thread::yield_now();
    }
}

/// Two that call each other.
struct Pair {
    ends: [TcpEndpoint; 2],
    /// At each end, the address of the other.
    to: [Addr; 2],
}

const LONG: usize = 64 << 10;

impl Pair {
    fn new() -> Self {
        let mut options = OpenOptions::listening(true);
        options.message_bytes_max = LONG;
        options.unread_answers_max = Some(64 << 20);
        let ends = [open(&options), open(&options)];
        // One session of both.
        let to_second = ends[0].lookup(ends[1].self_addr().uri()).unwrap();
        ends[1].recv_unexpected(OpId(0), ends[1].alloc_msg()).unwrap();
        ends[0].send_unexpected(OpId(0), &to_second, Tag(0), ends[0].alloc_msg()).unwrap();
        let (patience, mut from) = (Patience::new(), None);
        while from.is_none() {
            ends[0].poll(64, &mut drop).unwrap();
            let mut sink = |completion| {
                if let Completion::Recv { result: Ok(arrival), .. } = completion {
                    from = Some(arrival.from);
                }
            };
            ends[1].poll(64, &mut sink).unwrap();
            patience.check("the first message");
        }
        Self { ends, to: [to_second, from.unwrap()] }
    }

    /// End `at` asks `count` times, under tags from `first` on.
    fn call(&self, at: usize, first: u32, count: u32) {
        let (end, to) = (&self.ends[at], &self.to[at]);
        for tag in first..first + count {
            let op = OpId(u64::from(tag) << 1);
            end.recv_expected(op, to, Tag(tag), end.alloc_msg()).unwrap();
            let mut request = end.alloc_msg();
            request.set_len(8);
            end.send_unexpected(OpId(op.0 | 1), to, Tag(tag), request).unwrap();
        }
    }

    /// Polls end `at`, answers the requests that come, and counts the answers.
    fn serve(&self, at: usize, answers: &mut u32) {
        let end = &self.ends[at];
        let (mut requests, mut ops) = (Vec::new(), Vec::new());
        let mut sink = |completion| match completion {
            Completion::Recv { op, buf, result: Ok(arrival) } if buf.len() == 8 => {
                ops.push(op);
                requests.push((buf, arrival));
            }
            Completion::Recv { buf, result: Ok(_), .. } => {
                assert_eq!(buf.len(), LONG);
                *answers += 1;
            }
            Completion::Recv { result: Err(error), .. }
            | Completion::Send { result: Err(error), .. } => {
                assert!(matches!(error, Error::Canceled), "{at}: {error}");
            }
            _ => {}
        };
        end.poll(64, &mut sink).unwrap();
        for (mut buf, arrival) in requests {
            buf.set_len(LONG);
            end.send_expected(OpId(1 << 40), &arrival.from, arrival.tag, buf).unwrap();
        }
        for op in ops {
            end.recv_unexpected(op, end.alloc_msg()).unwrap();
        }
    }

    fn post(&self, count: u64) {
        for end in &self.ends {
            for op in 0..count {
                end.recv_unexpected(OpId(1 << 41 | op), end.alloc_msg()).unwrap();
            }
        }
    }

    fn unread(&self, at: usize) -> usize {
        self.ends[at].core.budget.held()
    }

    fn paused(&self, at: usize) -> usize {
        self.ends[at].poller.lock().unread.paused.len()
    }
}

/// Each side has more answers for the other than may wait until reading pauses, and neither takes
/// any before the other does.
#[test]
fn two_that_call_each_other_get_their_long_answers() {
    const COUNT: u32 = 400;
    let pair = Pair::new();
    pair.post(COUNT.into());
    (0..2).for_each(|at| pair.call(at, 1, COUNT));
    let (patience, mut answers, mut most) = (Patience::new(), [0; 2], [0; 2]);
    while answers != [COUNT; 2] {
        for at in 0..2 {
            pair.serve(at, &mut answers[at]);
            most[at] = most[at].max(pair.unread(at));
        }
        patience.check("the answers");
    }
    assert!(most.iter().all(|most| *most > 2 * PAUSE_BYTES), "{most:?}");
    assert_eq!([0, 1].map(|at| pair.unread(at)), [0, 0]);
}

/// Both have given up their calls, so nobody reads; then one of them calls again.
#[test]
fn two_that_have_paused_go_on_when_one_of_them_calls() {
    const COUNT: u32 = 400;
    let pair = Pair::new();
    pair.post(COUNT.into());
    (0..2).for_each(|at| pair.call(at, 1, COUNT));
    // All requests are there before the first answer can come.
    let (patience, mut answers) = (Patience::new(), [0; 2]);
    for at in 0..2 {
        (1..=COUNT).for_each(|tag| pair.ends[at].cancel(OpId(u64::from(tag) << 1)));
    }
    while pair.paused(0) + pair.paused(1) < 2 {
        (0..2).for_each(|at| pair.serve(at, &mut answers[at]));
        patience.check("a pause on both sides");
    }
    // The kernel may move what it has, until its buffers are full.
    let mut unread = [0; 2];
    while unread != [0, 1].map(|at| pair.unread(at)) {
        unread = [0, 1].map(|at| pair.unread(at));
        for _ in 0..1000 {
            (0..2).for_each(|at| pair.serve(at, &mut answers[at]));
        }
        patience.check("neither reads");
    }
    assert!(unread.iter().all(|bytes| *bytes > PAUSE_BYTES / 2), "{unread:?}");
    assert_eq!(answers, [0, 0], "whoever waits for none gets none");
    pair.call(1, 10_000, 1);
    while answers != [0, 1] {
        (0..2).for_each(|at| pair.serve(at, &mut answers[at]));
        patience.check("the answer");
    }
    while pair.unread(0) + pair.unread(1) > 0 {
        (0..2).for_each(|at| pair.serve(at, &mut answers[at]));
        patience.check("nothing unread");
    }
}

#[test]
fn a_socket_that_is_closed_is_bounded_in_time() {
    let mut server = Server::new(&OpenOptions::listening(true), 100);
    let raw = Raw::connect(&mut server, [127, 0, 0, 1]);
    let poller = server.endpoint.poller.lock();
    let socket = poller.conns.iter().next().unwrap().socket.clone();
    drop(poller);
    let options = |socket: &std::os::fd::OwnedFd| {
        use rustix::net::sockopt::{socket_linger, tcp_user_timeout};
        (tcp_user_timeout(socket).unwrap(), socket_linger(socket).unwrap())
    };
    let mut leaving = crate::system::leaving::Leaving::default();
    leaving.closes(&socket);
    assert_eq!(options(&socket), (0, None), "there is nothing that it could leave");
    while rustix::net::send(&socket, &[1; 4096], rustix::net::SendFlags::DONTWAIT).is_ok() {}
    leaving.closes(&socket);
    assert_eq!(options(&socket), (30_000, None));
    // So much is left by many of them.
    while options(&socket).1.is_none() {
        leaving.closes(&socket);
    }
    assert_eq!(options(&socket).1, Some(Duration::ZERO));
    drop(raw);
}
