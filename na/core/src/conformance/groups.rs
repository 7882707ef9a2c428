//! Cases about groups of endpoints behind one address, for transports that have them. A group of
//! one passes them, too.
//!
//! ```text
//! fn open_group(options: &na::OpenOptions, shards: usize) -> Vec<Arc<dyn na::Endpoint>> {
//!     na::open_group("na+tcp://127.0.0.1:0", options, shards).unwrap()
//! }
//! na::group_conformance! { open_group }
//! ```
//!
//! `na::group_conformance! { open_group; grows }` has the cases about growth as well, and runs all
//! others on groups that have grown, too. `na::group_conformance! { open_group; if "VARIABLE" }`
//! runs only where that variable of the environment asks for it, as an
//! [`Optional`](super::Optional) transport does.

use std::sync::Arc;

use super::node::{Node, contents, drive, finish, pattern};
use super::peers::{assert_gone, send_until_it_fails};
use crate::{Access, Addr, Endpoint, Error, OpId, OpenOptions, Tag, Transfer};

/// A function that opens a group of so many endpoints.
pub type OpenGroup = fn(&OpenOptions, usize) -> Vec<Arc<dyn Endpoint>>;

/// One run of one case: groups of so many shards, and loops that sleep or poll.
#[derive(Debug, Clone, Copy)]
pub struct GroupCase {
    /// The factory.
    pub open: OpenGroup,
    /// How many endpoints a group has.
    pub shards: usize,
    /// A loop that waits sleeps.
    pub blocking: bool,
}

impl GroupCase {
    fn group(&self, listen: bool) -> Vec<Node> {
        self.group_of(self.shards, listen)
    }

    fn group_of(&self, shards: usize, listen: bool) -> Vec<Node> {
        let group = (self.open)(&OpenOptions::listening(listen), shards);
        assert_eq!(group.len(), shards);
        group.into_iter().map(|shard| Node::of(shard, self.blocking)).collect()
    }

    fn single(&self, listen: bool) -> Node {
        self.group_of(1, listen).remove(0)
    }
}

/// The nodes of several groups, to be driven.
fn all<'a>(groups: &[&'a [Node]]) -> Vec<&'a Node> {
    groups.iter().flat_map(|group| group.iter()).collect()
}

/// The next request at any shard of a group: the shard, and who sent it with which text.
fn next_of(group: &[Node], others: &[Node], posted: &mut [OpId]) -> (usize, Addr, Vec<u8>) {
    let mut came = None;
    drive(&all(&[group, others]), "a request at any shard", || {
        came = (0..group.len()).find(|shard| group[*shard].is_done(posted[*shard]));
        came.is_some()
    });
    let shard = came.expect("a request");
    let (arrival, bytes) = group[shard].received(posted[shard]);
    posted[shard] = group[shard].recv_unexpected();
    (shard, arrival.from, bytes)
}

/// Each caller calls once, `texts` in order, and is answered with its text; returns for each the
/// shard that was called, and what it calls the caller.
fn call_all(group: &[Node], callers: &[Node], texts: &[&str]) -> Vec<(usize, Addr)> {
    let mut posted: Vec<OpId> = group.iter().map(Node::recv_unexpected).collect();
    let mut answers = Vec::new();
    for (caller, text) in callers.iter().zip(texts) {
        let to = caller.addr_of(&group[0]);
        answers.push((caller.recv_expected(&to, 7), to.clone()));
        caller.send_unexpected(&to, 7, text.as_bytes());
    }
    let mut called = vec![None; callers.len()];
    while called.iter().any(Option::is_none) {
        let (shard, from, text) = next_of(group, callers, &mut posted);
        let text = String::from_utf8(text).expect("text");
        let caller = texts.iter().position(|known| *known == text).expect("a known text");
        group[shard].send_expected(&from, 7, text.as_bytes());
        assert!(called[caller].replace((shard, from)).is_none(), "{text} came twice");
    }
    for ((caller, text), (answer, to)) in callers.iter().zip(texts).zip(answers) {
        let mut nodes = vec![caller];
        nodes.extend(all(&[group]));
        finish(&nodes, "an answer", &[answer]);
        let (arrival, bytes) = caller.received(answer);
        assert_eq!((arrival.from, bytes), (to, text.as_bytes().to_vec()), "its own answer");
    }
    posted.iter().zip(group).for_each(|(op, shard)| shard.endpoint.cancel(*op));
    called.into_iter().map(|called| called.expect("it was called")).collect()
}

const TEXTS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// One address stands for all shards.
pub fn a_group_has_one_address(case: &GroupCase) {
    for listen in [true, false] {
        let group = case.group(listen);
        let first = group[0].endpoint.self_addr();
        for shard in &group {
            assert_eq!(shard.endpoint.self_addr(), first, "one identity");
            let is_own = listen.then(|| shard.endpoint.lookup(first.uri()).expect("lookup"));
            assert!(is_own.is_none_or(|own| own == first));
        }
        let mut connections: Vec<_> =
            group.iter().map(|shard| shard.endpoint.self_addr().connection()).collect();
        connections.dedup();
        assert_eq!(connections.len(), case.shards, "each is good for one endpoint");
    }
}

/// Callers are spread evenly, and answered by the shard that was called.
pub fn a_group_spreads_its_callers(case: &GroupCase) {
    let group = case.group(true);
    let callers: Vec<Node> = (0..8).map(|_| case.single(false)).collect();
    let called = call_all(&group, &callers, &TEXTS);
    for shard in 0..case.shards {
        let count = called.iter().filter(|(of, _)| *of == shard).count();
        assert_eq!(count, 8 / case.shards, "shard {shard}");
    }
    // A connection stays where it is.
    let again = call_all(&group, &callers, &TEXTS);
    assert_eq!(called, again);
}

/// Each shard calls over a connection of its own, and gets its own answer although the tags are
/// the same; the other side knows that it is one peer.
pub fn each_shard_has_a_connection_of_its_own(case: &GroupCase) {
    for listen in [true, false] {
        let callers = case.group(listen);
        let target = [case.single(true)];
        let called = call_all(&target, &callers, &TEXTS[..case.shards]);
        let mut connections: Vec<_> = called.iter().map(|(_, from)| from.connection()).collect();
        connections.sort_unstable();
        connections.dedup();
        assert_eq!(connections.len(), case.shards);
        assert!(called.iter().all(|(_, from)| *from == called[0].1), "one peer");
    }
}

/// Two groups call each other, each shard of one the address of the other.
pub fn groups_call_each_other(case: &GroupCase) {
    let (here, there) = (case.group(true), case.group(true));
    for _ in 0..2 {
        let called = call_all(&there, &here, &TEXTS[..case.shards]);
        assert!(called.iter().all(|(_, from)| *from == called[0].1), "one peer");
        call_all(&here, &there, &TEXTS[..case.shards]);
    }
    // To itself, without a connection.
    let own = here[0].endpoint.self_addr();
    for shard in &here {
        let to = shard.endpoint.lookup(own.uri()).expect("lookup");
        let asked = shard.recv_unexpected();
        shard.send_unexpected(&to, 3, b"myself");
        finish(&[shard], "a message to oneself", &[asked]);
        assert_eq!(shard.received(asked).0.from, own);
    }
}

/// Memory of one shard is read and written through the connections of all of them.
pub fn memory_is_within_reach_through_every_shard(case: &GroupCase) {
    let group = case.group(true);
    let callers: Vec<Node> = (0..8).map(|_| case.single(false)).collect();
    call_all(&group, &callers, &TEXTS);
    let bytes = pattern(1, 70_000);
    let memory = group[0].register(bytes.clone(), Access::ReadWrite);
    for caller in &callers {
        let local = caller.register(vec![0; bytes.len()], Access::ReadWrite);
        let remote = group[0].described_to(caller, &memory);
        let transfer = Transfer {
            local: local.clone(),
            local_offset: 0,
            remote,
            remote_offset: 0,
            len: bytes.len() as u64,
        };
        let to = caller.addr_of(&group[0]);
        let mut nodes = vec![caller];
        nodes.extend(all(&[&group]));
        let got = caller.get(&to, transfer.clone());
        finish(&nodes, "a get", &[got]);
        caller.succeeded(got);
        assert_eq!(contents(&local), bytes);
        let put = caller.put(&to, transfer);
        finish(&nodes, "a put", &[put]);
        caller.succeeded(put);
    }
}

/// Addresses of one shard are of no use to another: an operation is refused with its buffer.
pub fn addresses_are_good_for_one_shard(case: &GroupCase) {
    let (group, target) = (case.group(false), case.single(true));
    let to = group[0].addr_of(&target);
    for other in &group[1..] {
        assert_eq!(other.addr_of(&target), to, "one peer");
        let refused = other.endpoint.send_unexpected(OpId(1), &to, Tag(1), other.message(b"x"));
        let refused = refused.expect_err("another shard's connection");
        assert!(matches!(refused.error, Error::InvalidArgument(_)), "{refused}");
        assert_eq!(refused.buf.as_slice(), b"x");
    }
}

/// The end of a shard ends its connections and no others, and new ones go to those that are left,
/// whichever shard it was; with the last one the address is free.
pub fn a_closed_shard_leaves_the_others(case: &GroupCase) {
    for first in 0..case.shards.min(2) {
        let group = case.group(true);
        let callers: Vec<Node> = (0..8).map(|_| case.single(false)).collect();
        let called = call_all(&group, &callers, &TEXTS);
        let own = group[0].endpoint.self_addr();
        group[first].endpoint.close();
        let (left, gone): (Vec<_>, Vec<_>) = (0..8).partition(|at| called[*at].0 != first);
        for at in gone {
            let to = callers[at].endpoint.lookup(own.uri()).expect("lookup");
            if case.shards == 1 {
                assert_gone(&send_until_it_fails(&callers[at], &to));
            }
        }
        let mut open: Vec<Node> = group;
        drop(open.remove(first));
        let left: Vec<Node> = pick(callers, &left);
        if case.shards > 1 {
            call_all(&open, &left, &TEXTS[..left.len()]);
            let late: Vec<Node> = (0..2).map(|_| case.single(false)).collect();
            call_all(&open, &late, &TEXTS[..2]);
        }
        drop(open);
    }
}

fn pick(nodes: Vec<Node>, wanted: &[usize]) -> Vec<Node> {
    let numbered = nodes.into_iter().enumerate();
    numbered.filter(|(at, _)| wanted.contains(at)).map(|(_, node)| node).collect()
}

/// A shard that is named gets the connection; one that does not exist is a wish that is not
/// granted. Either way the peer is the same one.
pub fn a_shard_may_be_named(case: &GroupCase) {
    let group = case.group(true);
    let own = group[0].endpoint.self_addr();
    let caller = [case.single(false)];
    let mut posted: Vec<OpId> = group.iter().map(Node::recv_unexpected).collect();
    // One wish that is not granted: a caller may have two connections for each shard.
    for wanted in [0, case.shards - 1, case.shards, usize::MAX] {
        let to = caller[0].endpoint.lookup_shard(own.uri(), wanted).expect("lookup");
        assert_eq!(to, caller[0].addr_of(&group[0]), "one peer");
        caller[0].send_unexpected(&to, 5, b"you");
        let (shard, ..) = next_of(&group, &caller, &mut posted);
        assert!(wanted >= case.shards || shard == wanted, "{shard} instead of {wanted}");
    }
}

/// One more endpoint for a group.
fn grow(case: &GroupCase, group: &mut Vec<Node>) {
    let one = group.len() / 2;
    let another = group[one].endpoint.open_another().expect("one more endpoint");
    group.push(Node::of(another, case.blocking));
}

/// One more shard gets the next connections, and the one that names it; those that were there stay
/// where they are. Memory that was registered before is within reach through it.
pub fn a_group_grows(case: &GroupCase) {
    let mut group = case.group(true);
    let callers: Vec<Node> = (0..4).map(|_| case.single(false)).collect();
    let called = call_all(&group, &callers, &TEXTS[..4]);
    let bytes = pattern(1, 70_000);
    let memory = group[0].register(bytes.clone(), Access::ReadOnly);
    let own = group[0].endpoint.self_addr();
    let mut before = Vec::new();
    for _ in 0..2 {
        let new = group.len();
        grow(case, &mut group);
        assert_eq!(group[new].endpoint.self_addr(), own, "one identity");
        assert_ne!(group[new].endpoint.self_addr().connection(), own.connection());
        let late = [case.single(false)];
        assert_eq!(call_all(&group, &late, &TEXTS[..1])[0].0, new, "it has the fewest");
        assert_eq!(call_all(&group, &callers, &TEXTS[..4]), called, "a connection stays");
        let to = late[0].endpoint.lookup_shard(own.uri(), new).expect("lookup");
        let mut posted: Vec<OpId> = group.iter().map(Node::recv_unexpected).collect();
        late[0].send_unexpected(&to, 5, b"you");
        assert_eq!(next_of(&group, &late, &mut posted).0, new);
        posted.iter().zip(&group).for_each(|(op, shard)| shard.endpoint.cancel(*op));
        let local = late[0].register(vec![0; bytes.len()], Access::ReadWrite);
        let remote = group[0].described_to(&late[0], &memory);
        let got = late[0].get(
            &to,
            Transfer {
                local: local.clone(),
                local_offset: 0,
                remote,
                remote_offset: 0,
                len: bytes.len() as u64,
            },
        );
        let mut nodes = vec![&late[0]];
        nodes.extend(all(&[&group]));
        finish(&nodes, "a get", &[got]);
        late[0].succeeded(got);
        assert_eq!(contents(&local), bytes);
        before.extend(late);
    }
    // The new ones call, and the end of the others does not end them.
    let target = [case.single(true)];
    call_all(&target, &group, &TEXTS[..group.len()]);
    group.drain(..case.shards).for_each(drop);
    let late: Vec<Node> = (0..2).map(|_| case.single(false)).collect();
    call_all(&group, &late, &TEXTS[..2]);
    group.iter().for_each(|shard| shard.endpoint.close());
    let refused = group[0].endpoint.open_another().expect_err("a closed group");
    assert!(matches!(refused, Error::Closed), "{refused}");
}

/// A shard that is taken out of its group, whichever it is, gets no connections any more, and those
/// that it has go on.
pub fn a_retired_shard_gets_no_connections(case: &GroupCase) {
    for retired in [0, 1] {
        let mut group = case.group(true);
        grow(case, &mut group);
        let callers: Vec<Node> = (0..8).map(|_| case.single(false)).collect();
        let called = call_all(&group, &callers, &TEXTS);
        group[retired].endpoint.retire().expect("it has others");
        group[retired].endpoint.retire().expect("nothing changes");
        let late: Vec<Node> = (0..4).map(|_| case.single(false)).collect();
        let shards = call_all(&group, &late, &TEXTS[..4]);
        assert!(shards.iter().all(|(shard, _)| *shard != retired), "{shards:?}");
        assert_eq!(call_all(&group, &callers, &TEXTS), called, "a connection stays");
        let own = group[0].endpoint.self_addr();
        let to = late[0].endpoint.lookup_shard(own.uri(), retired).expect("lookup");
        let mut posted: Vec<OpId> = group.iter().map(Node::recv_unexpected).collect();
        late[0].send_unexpected(&to, 5, b"you");
        assert_ne!(next_of(&group, &late, &mut posted).0, retired, "a wish that is not granted");
        posted.iter().zip(&group).for_each(|(op, shard)| shard.endpoint.cancel(*op));
        // It still calls, and the group still grows.
        let target = [case.single(true)];
        call_all(&target, &group, &TEXTS[..group.len()]);
        let new = group.len();
        grow(case, &mut group);
        let late = [case.single(false)];
        assert_eq!(call_all(&group, &late, &TEXTS[..1])[0].0, new, "it has the fewest");
        group[retired].endpoint.close();
        let refused = group[retired].endpoint.retire().expect_err("it is closed");
        assert!(matches!(refused, Error::Closed), "{refused}");
    }
}

/// An endpoint grows while it and another one dial each other, or have done so: either side is
/// answered, whichever connections came about.
pub fn a_group_grows_while_it_dials(case: &GroupCase) {
    for dials in [[true, true], [true, false], [false, true], [false, false]] {
        let (mut group, other) = (case.group(true), [case.single(true)]);
        if dials == [false, false] {
            call_all(&other, &group[..1], &TEXTS[..1]);
        }
        // Before any poll, so that they cross.
        let first = dials[0].then(|| begin_call(&group[0], &other[0]));
        grow(case, &mut group);
        let second = dials[1].then(|| begin_call(&other[0], &group[0]));
        answer_one(&other, &group, &group[0], first);
        answer_one(&group, &other, &other[0], second);
        // Over what there is now.
        call_all(&group, &other, &TEXTS[..1]);
        call_all(&other, &group, &TEXTS[..group.len()]);
        call_all(&group, &other, &TEXTS[..1]);
    }
}

/// A call that is on its way: the receive of its answer.
fn begin_call(from: &Node, to: &Node) -> OpId {
    let to = from.addr_of(to);
    let answer = from.recv_expected(&to, 9);
    from.send_unexpected(&to, 9, b"a call");
    answer
}

/// Answers a call of `caller`, one of `others`, at whatever shard of `group` it comes to.
fn answer_one(group: &[Node], others: &[Node], caller: &Node, call: Option<OpId>) {
    let Some(answer) = call else { return };
    let mut posted: Vec<OpId> = group.iter().map(Node::recv_unexpected).collect();
    let (shard, from, text) = next_of(group, others, &mut posted);
    assert_eq!(text, b"a call");
    group[shard].send_expected(&from, 9, b"an answer");
    let mut nodes = vec![caller];
    nodes.extend(all(&[group, others]).into_iter().filter(|node| !std::ptr::eq(*node, caller)));
    finish(&nodes, "an answer", &[answer]);
    assert_eq!(caller.received(answer).1, b"an answer");
    posted.iter().zip(group).for_each(|(op, shard)| shard.endpoint.cancel(*op));
}

/// A number of shards that cannot be is refused.
pub fn a_group_has_bounds(open: impl Fn(usize) -> Result<Vec<Arc<dyn Endpoint>>, Error>) {
    for shards in [0, 129, usize::MAX] {
        let error = open(shards).expect_err("that many shards");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
}

/// A group cannot grow beyond what there can be. Closed endpoints count.
pub fn growth_has_a_bound(open: impl Fn(usize) -> Result<Vec<Arc<dyn Endpoint>>, Error>) {
    let mut group = open(126).expect("as many as there can be but two");
    group.drain(1..).for_each(drop);
    for _ in 0..2 {
        group[0].open_another().expect("one more");
    }
    let error = group[0].open_another().expect_err("one too many");
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
}

/// A group of `shards` endpoints, of which one was opened first and the others added.
pub fn grown(open: OpenGroup, options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
    let mut group = open(options, 1);
    while group.len() < shards {
        let another = group[0].open_another().expect("one more endpoint");
        group.push(another);
    }
    group
}

/// Instantiates the cases about groups as tests, for groups of one and of four. See
/// [`groups`](self).
#[macro_export]
macro_rules! group_conformance {
    // Of a transport whose groups grow.
    ($open:path; grows) => {
        mod grown {
            use super::*;
            fn open_grown(
                options: &$crate::OpenOptions,
                shards: usize,
            ) -> Vec<std::sync::Arc<dyn $crate::Endpoint>> {
                $crate::conformance::grown($open, options, shards)
            }
            $crate::group_conformance! { @cases open_grown; 4, false }
        }
        mod grows {
            use super::*;
            mod from_one {
                use super::*;
                $crate::group_conformance! { @growth $open; 1, false }
                mod blocking {
                    use super::*;
                    $crate::group_conformance! { @growth $open; 1, true }
                }
            }
            mod from_three {
                use super::*;
                $crate::group_conformance! { @growth $open; 3, false }
            }
        }
        $crate::group_conformance! { $open }
    };
    (@growth $open:path; $shards:literal, $blocking:literal) => {
        $crate::group_conformance! { @tests $open, []; $shards, $blocking;
            a_group_grows,
            a_retired_shard_gets_no_connections,
            a_group_grows_while_it_dials }
    };
    ($open:path $(; if $variable:literal)?) => {
        mod of_one {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::group_conformance! { @cases $open $(, $variable)?; 1, false }
        }
        mod of_four {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::group_conformance! { @cases $open $(, $variable)?; 4, false }
        }
        mod of_four_blocking {
            #[allow(unused_imports, reason = "the factory may be named in full")]
            use super::*;
            $crate::group_conformance! { @cases $open $(, $variable)?; 4, true }
        }
    };
    (@cases $open:path $(, $variable:literal)?; $shards:literal, $blocking:literal) => {
        $crate::group_conformance! { @tests $open, [$($variable)?]; $shards, $blocking;
            a_group_has_one_address,
            a_group_spreads_its_callers,
            each_shard_has_a_connection_of_its_own,
            groups_call_each_other,
            memory_is_within_reach_through_every_shard,
            addresses_are_good_for_one_shard,
            a_closed_shard_leaves_the_others,
            a_shard_may_be_named }
    };
    (@tests $open:path, $variable:tt; $shards:literal, $blocking:literal; $($case:ident),+) => {
        $(
            #[test]
            fn $case() {
                if let Some(lacks) = $crate::conformance::not_asked_for(&$variable) {
                    return println!("SKIPPED: {lacks}");
                }
                $crate::conformance::$case(&$crate::conformance::GroupCase {
                    open: $open,
                    shards: $shards,
                    blocking: $blocking,
                });
            }
        )+
    };
}
