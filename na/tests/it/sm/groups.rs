//! Groups of sm endpoints: the conformance suite, what their hellos say, and their ends.

use std::sync::Arc;
use std::time::Instant;

use na::conformance::open_again;
use na::{Addr, Endpoint, Error, OpId, OpenOptions, PeerLink, Tag};

use crate::common::sm::{
    ChildNode, Hostile, Node, PATIENCE, dial, hello, listen, memfd, recv_packet, role, say,
    sleep_for_ever, wait,
};
use crate::common::test_path;

fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
    na::open_group("na+sm://", options, shards).unwrap()
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
        na::open_group("na+sm://", &OpenOptions::listening(true), shards)
    });
}

#[test]
fn the_name_is_free_after_the_last_shard() {
    let uri = format!("na+sm://groups-{}", std::process::id());
    let open = |shards| na::open_group(&uri, &OpenOptions::listening(true), shards);
    for shards in [1, 3, 2] {
        let mut group = open_again(|| open(shards));
        while let Some(shard) = group.pop() {
            assert!(matches!(open(2), Err(Error::Io { .. })), "the name is taken");
            shard.close();
        }
    }
}

// ---- hellos, as bytes ----

/// A hello with shards: own, last, and 1 + wanted.
fn hello_of(uri: &str, shards: [u8; 3]) -> Vec<u8> {
    let mut bytes = hello(uri, false);
    bytes[12] = 8;
    bytes[13..16].copy_from_slice(&shards);
    bytes
}

/// Own and last in a welcome; `None`: it has no shards.
fn shards_in(welcome: &[u8]) -> Option<[u8; 2]> {
    assert_eq!(welcome[..8], *b"MRGO\x04\0\x02\0", "no welcome: {:?}", refusal_in(welcome));
    assert_eq!(welcome[15], 0, "a welcome wants nothing");
    (welcome[12] & 8 != 0).then(|| [welcome[13], welcome[14]])
}

/// The text of a refusal; empty if it is none.
fn refusal_in(packet: &[u8]) -> String {
    let text = packet.get(48..).filter(|_| packet.starts_with(b"MRGO\x04\0\x03\0"));
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

/// The endpoints of a group, with a receive posted at each.
struct Group {
    nodes: Vec<Node>,
    posted: Vec<OpId>,
}

impl Group {
    fn new(shards: usize) -> Self {
        let group = open_group(&OpenOptions::listening(true), shards);
        let mut nodes: Vec<_> = group.into_iter().map(Node::new).collect();
        let posted = nodes.iter_mut().map(Node::recv).collect();
        Self { nodes, posted }
    }

    fn uri(&self) -> String {
        self.nodes[0].endpoint.self_addr().uri().to_owned()
    }

    fn poll(&mut self) {
        self.nodes.iter_mut().for_each(Node::poll);
    }

    fn poll_some(&mut self) {
        // More than the polls between two looks at the kernel.
        (0..3000).for_each(|_| self.poll());
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "waited too long for {what}");
            self.poll();
        }
    }

    /// Connects; the caller, and the answer to its hello.
    fn greet(&mut self, hello: &[u8]) -> (Hostile, Vec<u8>) {
        Hostile::call(&self.uri(), hello, &mut || self.poll())
    }

    /// The next request: the shard that has got it, who sent it, and its bytes.
    fn next(&mut self) -> (usize, Addr, Vec<u8>) {
        let came = |group: &Self| {
            let mut shards = group.nodes.iter().zip(&group.posted);
            shards.position(|(node, posted)| node.is_done(*posted))
        };
        self.until("a request", |group| came(group).is_some());
        let shard = came(self).unwrap();
        let node = &mut self.nodes[shard];
        let (arrival, bytes) = node.received(self.posted[shard]);
        self.posted[shard] = node.recv();
        (shard, arrival.from, bytes)
    }

    /// Answers with `bytes`.
    fn answer(&mut self, shard: usize, to: &Addr, tag: u32, bytes: &[u8]) {
        let node = &mut self.nodes[shard];
        let (op, mut buf) = (node.op(), node.endpoint.alloc_msg());
        assert!(buf.try_extend(bytes));
        node.endpoint.send_expected(op, to, Tag(tag), buf).unwrap();
    }

    /// The caller calls, and is answered; by which shard, and what that calls it.
    fn serve(&mut self, caller: &mut Hostile) -> (usize, Addr) {
        caller.write(1, 5, b"question");
        let (shard, from, bytes) = self.next();
        assert_eq!(bytes, b"question");
        self.answer(shard, &from, 5, b"answer");
        let answer = wait(&mut || self.poll(), || caller.read());
        assert_eq!(answer, (2, b"answer".to_vec()));
        (shard, from)
    }

    /// The open connections of each endpoint.
    fn connected(&self) -> Vec<usize> {
        let count = |node: &Node| {
            let peers = node.endpoint.stats().peers;
            peers.iter().filter(|peer| peer.link == PeerLink::Connected).count()
        };
        self.nodes.iter().map(count).collect()
    }
}

#[test]
fn an_earlier_dialer_is_served_by_one_of_the_shards() {
    let mut group = Group::new(4);
    let mut served = [0; 4];
    let mut callers = Vec::new();
    for at in 0..8 {
        let (mut caller, welcome) = group.greet(&hello(&format!("na+sm://earlier-{at}"), false));
        let [own, last] = shards_in(&welcome).unwrap();
        let (shard, _) = group.serve(&mut caller);
        assert_eq!((usize::from(own), last), (shard, 3), "the shard that it says");
        served[shard] += 1;
        callers.push(caller);
    }
    assert_eq!(served, [2; 4]);
}

#[test]
fn the_shard_that_a_hello_names_answers() {
    let mut group = Group::new(4);
    for (wanted, own) in [(3, Some(2)), (1, Some(0)), (5, None), (255, None)] {
        let hello = hello_of(&format!("na+sm://wants-{wanted}"), [0, 0, wanted]);
        let (mut caller, welcome) = group.greet(&hello);
        let (shard, _) = group.serve(&mut caller);
        assert!(own.is_none_or(|own| own == shard), "{wanted}");
        assert_eq!(shards_in(&welcome), Some([shard as u8, 3]));
    }
}

#[test]
fn an_endpoint_alone_says_nothing_of_shards() {
    let mut alone = Group::new(1);
    for hello in [hello("na+sm://earlier", false), hello_of("na+sm://later", [1, 3, 3])] {
        let (mut caller, welcome) = alone.greet(&hello);
        assert_eq!(shards_in(&welcome), None);
        alone.serve(&mut caller);
    }
}

#[test]
fn a_shard_outside_of_its_group_is_refused() {
    let mut group = Group::new(4);
    for shards in [[4, 3, 0], [1, 0, 0], [255, 254, 1]] {
        let (_caller, answer) = group.greet(&hello_of("na+sm://outside", shards));
        let told = refusal_in(&answer);
        assert!(told.contains("shards are wrong"), "{told}");
    }
    let (mut caller, _) = group.greet(&hello_of("na+sm://inside", [255, 255, 0]));
    group.serve(&mut caller);
}

#[test]
fn a_group_that_calls_has_a_bound_of_connections() {
    let mut group = Group::new(2);
    let calling = |group: &mut Group, name: &str, last: u8, connections: usize| {
        let hello = hello_of(&format!("na+sm://{name}"), [0, last, 1]);
        let (callers, told): (Vec<_>, Vec<_>) = (0..connections)
            .map(|_| {
                let (caller, answer) = group.greet(&hello);
                (caller, refusal_in(&answer))
            })
            .unzip();
        let accepted = told.iter().take_while(|told| told.is_empty()).count();
        let refused = &told[accepted..];
        let most = 3 * (usize::from(last) + 1);
        let told = format!("it has too many connections: {most}, ");
        assert!(refused.iter().all(|text| text.contains(&told)), "{refused:?}");
        (callers, accepted)
    };
    // From each of theirs one for each of ours, and one more.
    assert_eq!(calling(&mut group, "one", 0, 5).1, 3);
    assert_eq!(calling(&mut group, "three", 2, 11).1, 9);
    let (callers, accepted) = calling(&mut group, "one", 0, 5);
    assert_eq!(accepted, 3, "of the first ones there are none");
    let (_others, accepted) = calling(&mut group, "another", 0, 5);
    assert_eq!(accepted, 3);
    drop(callers);
    let deadline = Instant::now() + PATIENCE;
    while calling(&mut group, "one", 0, 1).1 != 1 {
        assert!(Instant::now() < deadline, "connections that have ended still count");
    }
}

#[test]
fn a_dialer_that_dies_on_the_way_takes_no_place() {
    let mut group = Group::new(4);
    for at in 0..12 {
        let (uri, hello) = (group.uri(), hello("na+sm://short", false));
        let (socket, memory) = (dial(&uri), memfd(crate::common::sm::SEGMENT, true));
        // The acceptor alone is polled: it lies in the inbox of another one.
        let fds = [std::os::fd::AsFd::as_fd(&memory)];
        let mut poll = || group.nodes[0].poll();
        wait(&mut poll, || crate::common::sm::is_greeted(&socket, &hello, &fds).then_some(()));
        if at % 2 == 0 {
            (0..3000).for_each(|_| group.nodes[0].poll());
        }
    }
    group.poll_some();
    group.until("the ends of connections", |group| group.connected() == [0; 4]);
    let mut callers = Vec::new();
    let mut served = [0; 4];
    for _ in 0..8 {
        let (mut caller, _) = group.greet(&hello("na+sm://late", false));
        served[group.serve(&mut caller).0] += 1;
        callers.push(caller);
    }
    assert_eq!(served, [2; 4]);
}

#[test]
fn what_a_closed_shard_has_not_taken_goes_to_the_others() {
    for closed in [vec![1], vec![0], vec![1, 0], vec![3, 2, 1], vec![0, 1, 2]] {
        let mut group = Group::new(4);
        let memory: Vec<_> = (0..8).map(|_| memfd(crate::common::sm::SEGMENT, true)).collect();
        let sockets: Vec<_> = memory.iter().map(|_| dial(&group.uri())).collect();
        let hellos: Vec<_> =
            (0..8).map(|at| hello(&format!("na+sm://early-{at}"), false)).collect();
        let is_greeted = |at: usize| {
            let fds = [std::os::fd::AsFd::as_fd(&memory[at])];
            crate::common::sm::is_greeted(&sockets[at], &hellos[at], &fds)
        };
        // Six are handed over, and not taken, but for those that stay; two say nothing yet.
        let mut poll = || group.nodes[0].poll();
        (0..6).for_each(|at| wait(&mut poll, || is_greeted(at).then_some(())));
        (0..3000).for_each(|_| group.nodes[0].poll());
        assert_eq!(group.connected(), [2, 0, 0, 0]);
        closed.iter().for_each(|shard| group.nodes[*shard].endpoint.close());
        let mut at = 0;
        group.nodes.retain(|_| (!closed.contains(&at), at += 1).0);
        (6..8).for_each(|at| wait(&mut || group.poll(), || is_greeted(at).then_some(())));
        let welcomed = |socket| {
            let said = wait(&mut || group.poll(), || recv_packet(socket));
            said.starts_with(b"MRGO\x04\0\x02\0")
        };
        assert_eq!(sockets.iter().map(welcomed).filter(|welcomed| *welcomed).count(), 8);
        // Two were with the acceptor, and have ended with it.
        let left = if closed.contains(&0) { 6 } else { 8 };
        assert_eq!(group.connected().iter().sum::<usize>(), left, "{closed:?}");
    }
}

#[test]
fn an_earlier_listener_serves_each_shard_on_its_own_connection() {
    let uri = format!("na+sm://earlier-{}", std::process::id());
    let listener = listen(&uri);
    let mut group = Group::new(4);
    let mut welcome = hello(&uri, true);
    (welcome[6], welcome[16], welcome[18]) = (2, 0, 0);
    let mut answers = Vec::new();
    for (at, node) in group.nodes.iter_mut().enumerate() {
        let to = node.endpoint.lookup(&uri).unwrap();
        answers.push(node.recv_expected(&to, 5));
        node.send(&to, 5, &[at as u8]);
    }
    let mut listeners = Vec::new();
    for _ in 0..4 {
        let mut poll = || group.nodes.iter_mut().for_each(Node::poll);
        let (mut served, hello) = Hostile::accept(&listener, &welcome, &mut poll);
        assert_eq!((hello[12] & 1, hello[12] & 8), (0, 8), "it is no name that listens");
        assert_eq!(hello[14..16], [3, 0], "one of four, which wants nobody");
        assert_eq!(hello[48..], *group.uri().as_bytes());
        let own = hello[13];
        let mut poll = || group.nodes.iter_mut().for_each(Node::poll);
        assert_eq!(wait(&mut poll, || served.read()), (1, vec![own]));
        served.write(2, 5, &[10 + own]);
        listeners.push(served);
    }
    for (at, (node, answer)) in group.nodes.iter_mut().zip(answers).enumerate() {
        assert_eq!(node.received(answer).1, [10 + at as u8]);
    }
}

// ---- threads ----

/// The tag by which an endpoint is told to end.
const END: u32 = 99;

/// Serves callers until it is told to end, or has answered `most`; asleep whenever it can be.
/// Returns how many it has answered.
fn serve_asleep(endpoint: Arc<dyn Endpoint>, most: usize) -> usize {
    let mut node = Node::new(endpoint);
    let (mut posted, mut answered) = (node.recv(), 0);
    loop {
        node.poll();
        if node.is_done(posted) {
            let (arrival, _) = node.received(posted);
            if arrival.tag == Tag(END) || answered == most {
                node.endpoint.close();
                return answered;
            }
            let (op, buf) = (node.op(), node.endpoint.alloc_msg());
            node.endpoint.send_expected(op, &arrival.from, arrival.tag, buf).unwrap();
            answered += 1;
            posted = node.recv();
        } else if node.endpoint.prepare_wait() {
            node.woken();
        }
    }
}

/// Calls once, from an endpoint of its own. `false`: whom it has called has gone meanwhile.
fn call_once(uri: &str) -> bool {
    let mut node = Node::new(na::open("na+sm://", &OpenOptions::default()).unwrap());
    let to = node.endpoint.lookup(uri).unwrap();
    let answer = node.recv_expected(&to, 1);
    let sent = node.send(&to, 1, b"question");
    node.until("an answer", |node| node.is_done(answer));
    match node.finish(answer) {
        na::Completion::Recv { result: Ok(_), .. } => return true,
        na::Completion::Recv { result: Err(error), .. } => {
            let is_gone = matches!(error, Error::PeerGone { .. } | Error::Unreachable { .. });
            assert!(is_gone, "{error}");
        }
        other => panic!("{other:?}"),
    }
    node.finish(sent);
    false
}

#[test]
fn callers_are_served_while_shards_sleep_and_close_on_threads() {
    const CALLS: usize = 100;
    let group = open_group(&OpenOptions::listening(true), 4);
    let uri = group[0].self_addr().uri().to_owned();
    let answered = std::thread::scope(|scope| {
        let limits = [5, 10, usize::MAX, 15];
        let shards: Vec<_> = group
            .into_iter()
            .zip(limits)
            .map(|(shard, most)| scope.spawn(move || serve_asleep(shard, most)))
            .collect();
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..CALLS / 4 {
                        let deadline = Instant::now() + PATIENCE;
                        while !call_once(&uri) {
                            assert!(Instant::now() < deadline, "nobody answers");
                        }
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        // Whoever is left.
        let mut last = Node::new(na::open("na+sm://", &OpenOptions::default()).unwrap());
        while !shards.iter().all(|shard| shard.is_finished()) {
            let shard = shards.iter().position(|shard| !shard.is_finished()).unwrap_or(0);
            let to = last.endpoint.lookup_shard(&uri, shard).unwrap();
            let told = last.send(&to, END, b"");
            last.finish(told);
        }
        shards.into_iter().map(|shard| shard.join().unwrap()).sum::<usize>()
    });
    assert!(answered >= CALLS, "{answered}");
}

// ---- who it is ----

/// A caller and endpoints that it calls by several addresses: every answer, and every call back,
/// goes the way that the call came, whoever has called first.
#[test]
fn each_connection_is_answered_by_itself() {
    for (shards, called_first) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut group = Group::new(shards);
        let mut caller = Node::new(na::open("na+sm://", &OpenOptions::listening(true)).unwrap());
        let (uri, own) = (group.uri(), caller.endpoint.self_addr());
        let known = |shard: usize| group.nodes[shard].endpoint.lookup(own.uri()).unwrap();
        let mut back: Vec<_> = (0..shards).map(|shard| (shard, known(shard))).collect();
        let mut ways = vec![caller.endpoint.lookup(&uri).unwrap()];
        ways.extend((0..2).map(|shard| caller.endpoint.lookup_shard(&uri, shard).unwrap()));
        if called_first {
            for (shard, to) in &back {
                call_back(&mut group, *shard, to, &mut caller, &ways[0]);
            }
        }
        for way in ways.iter().chain(&ways) {
            let answered = caller.recv_expected(way, 7);
            caller.send(way, 7, b"question");
            let (shard, from) = next_of(&mut group, &mut caller);
            assert_eq!(from, group.nodes[shard].endpoint.lookup(own.uri()).unwrap(), "one peer");
            group.answer(shard, &from, 7, b"answer");
            group.until("an answer", |_| {
                caller.poll();
                caller.is_done(answered)
            });
            assert_eq!(caller.received(answered).0.from.connection(), way.connection());
            back.push((shard, from));
        }
        for (shard, to) in &back {
            call_back(&mut group, *shard, to, &mut caller, &ways[0]);
        }
    }
}

/// An endpoint of the group calls `to`, which is `caller`, and is answered; `is` is the group.
fn call_back(group: &mut Group, shard: usize, to: &Addr, caller: &mut Node, is: &Addr) {
    let (asked, answered) = (caller.recv(), group.nodes[shard].recv_expected(to, 8));
    group.nodes[shard].send(to, 8, b"back");
    group.until("a call back", |_| {
        caller.poll();
        caller.is_done(asked)
    });
    let (arrival, _) = caller.received(asked);
    assert_eq!(arrival.from, *is, "one peer");
    let (op, buf) = (caller.op(), caller.endpoint.alloc_msg());
    caller.endpoint.send_expected(op, &arrival.from, Tag(8), buf).unwrap();
    group.until("an answer", |group| {
        caller.poll();
        group.nodes[shard].is_done(answered)
    });
    group.nodes[shard].received(answered);
}

fn next_of(group: &mut Group, caller: &mut Node) -> (usize, Addr) {
    let posted = group.posted.clone();
    group.until("a request", |group| {
        caller.poll();
        group.nodes.iter().zip(&posted).any(|(node, posted)| node.is_done(*posted))
    });
    let (shard, from, _) = group.next();
    (shard, from)
}

/// The child's part: a group that listens, whose shards call the parent's; serves until it is
/// killed.
fn play(role: &[String]) -> ! {
    let mut group = Group::new(role[1].parse().unwrap());
    say(&group.uri());
    for node in &mut group.nodes {
        let to = node.endpoint.lookup(&role[0]).unwrap();
        let text = node.endpoint.self_addr().uri().to_owned();
        node.send(&to, 1, text.as_bytes());
    }
    group.until("the end, which does not come", |_| false);
    sleep_for_ever()
}

#[test]
fn a_name_that_another_process_has_makes_nobody_that_process() {
    if let Some(role) = role() {
        play(&role);
    }
    let test = test_path!("a_name_that_another_process_has_makes_nobody_that_process");
    for shards in [1, 2] {
        let mut group = Group::new(shards);
        let child = ChildNode::start(test, &format!("{} 3", group.uri()));
        let uri = child.line();
        let true_ones: Vec<_> = (0..3).map(|_| group.next()).collect();
        for (shard, from, text) in &true_ones {
            assert_eq!((from.uri().as_bytes(), &text[..]), (uri.as_bytes(), uri.as_bytes()));
            assert_eq!(*from, group.nodes[*shard].endpoint.lookup(&uri).unwrap());
            assert_eq!(*from, true_ones[0].1);
        }
        let mut liars = Vec::new();
        for hello in [hello_of(&uri, [0, 2, 0]), hello_of(&uri, [1, 2, 0]), hello(&uri, true)] {
            let (mut caller, _) = group.greet(&hello);
            let (_, from) = group.serve(&mut caller);
            assert_ne!(from, true_ones[0].1, "it has the name of another process");
            liars.push((caller, from));
        }
        assert_eq!(liars[0].1, liars[1].1, "by its own process they are one");
        assert_ne!(liars[0].1.connection(), liars[1].1.connection());
    }
}

#[test]
fn the_death_of_a_process_reaches_every_shard_that_is_connected_with_it() {
    if let Some(role) = role() {
        play(&role);
    }
    let test = test_path!("the_death_of_a_process_reaches_every_shard_that_is_connected_with_it");
    for (here, there) in [(1, 4), (4, 1), (2, 3)] {
        let mut group = Group::new(here);
        let mut child = ChildNode::start(test, &format!("{} {there}", group.uri()));
        let uri = child.line();
        let mut awaited = Vec::new();
        for _ in 0..there {
            let (shard, from, _) = group.next();
            awaited.push((shard, group.nodes[shard].recv_expected(&from, 9)));
        }
        // Those that the child has called, and those that call it.
        for (shard, node) in group.nodes.iter_mut().enumerate() {
            let to = node.endpoint.lookup(&uri).unwrap();
            awaited.push((shard, node.recv_expected(&to, 9)));
            node.send(&to, 2, b"hello");
        }
        group.until("connections", |group| group.connected().iter().sum::<usize>() >= here + there);
        child.kill();
        for (shard, op) in awaited {
            group.until("the death", |group| group.nodes[shard].is_done(op));
            let error = group.nodes[shard].error(op);
            assert!(matches!(error, Error::PeerGone { .. }), "{error}");
        }
        group.until("the ends of connections", |group| group.connected().iter().all(|n| *n == 0));
        // Its address can be called again as soon as somebody listens there.
        let node = &mut group.nodes[0];
        let to = node.endpoint.lookup(&uri).unwrap();
        let sent = node.send(&to, 3, b"anybody?");
        assert!(matches!(node.error(sent), Error::Unreachable { .. }));
    }
}
