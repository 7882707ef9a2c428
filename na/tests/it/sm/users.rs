//! The sm transport between processes of different users. Needs root, to become somebody else.

use na::{Access, Error, OpenOptions, PeerUsers};

use crate::common::sm::{
    self as support, ChildNode, Node, registered, role, say, sleep_for_ever, whole,
};
use crate::common::test_path;

/// The user `nobody`.
const OTHER: u32 = 65534;

fn open(users: PeerUsers, listen: bool) -> Node {
    let mut options = OpenOptions::listening(listen);
    options.peer_users = users;
    Node::new(na::open("na+sm://", &options).expect("open"))
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can become another user");
    }
    root
}

/// The child's part, as the other user: `<users> <parent's uri>`.
fn play(role: &[String]) -> ! {
    // SAFETY: changes this process only.
    assert_eq!(unsafe { libc::setresuid(OTHER, OTHER, OTHER) }, 0);
    let mut options = OpenOptions::listening(true);
    if role[0] == "root" {
        options.peer_users = PeerUsers::And(vec![0]);
    }
    let mut node = Node::new(na::open("na+sm://", &options).expect("open"));
    let parent = node.endpoint.lookup(&role[1]).expect("the parent's address");
    let memory = registered(&node, 3 << 20, Access::ReadWrite);
    assert!(memory.write_at(12_345, b"of another user"));
    let sent = node.send(&parent, 1, &node.endpoint.mem_to_bytes(&memory));
    if let na::Completion::Send { result: Err(error), .. } = node.finish(sent) {
        say(&error.to_string());
        sleep_for_ever();
    }
    let done = node.recv();
    let answer = node.recv_expected(&parent, 2);
    node.until("an answer", |node| node.is_done(answer) || node.is_done(done));
    match node.finish(answer) {
        na::Completion::Recv { result: Ok(_), .. } => say("answered"),
        na::Completion::Recv { result: Err(error), .. } => say(&error.to_string()),
        other => panic!("{other:?}"),
    }
    node.until("the end, which does not come", |node| node.is_done(done));
    sleep_for_ever()
}

#[test]
fn users_that_are_let_in_exchange_messages_and_bulk_data() {
    if let Some(role) = role() {
        play(&role);
    }
    if !is_root() {
        return;
    }
    for users in [PeerUsers::And(vec![OTHER]), PeerUsers::All] {
        let mut node = open(users, true);
        let uri = node.endpoint.self_addr().uri().to_owned();
        assert!(uri.starts_with("na+sm://0@"), "{uri}");
        let own = node.endpoint.lookup(&uri).expect("look up");
        assert_eq!(own, node.endpoint.self_addr());
        let test = test_path!("users_that_are_let_in_exchange_messages_and_bulk_data");
        let child = ChildNode::start(test, &format!("root {uri}"));
        let asked = node.recv();
        let (arrival, described) = node.received(asked);
        let from = arrival.from.uri().to_owned();
        assert!(from.starts_with(&format!("na+sm://{OTHER}@")), "{from}");
        assert_eq!(node.endpoint.lookup(&from).expect("look up"), arrival.from);
        let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
        let memory = registered(&node, 3 << 20, Access::ReadWrite);
        let op = node.op();
        node.endpoint.get(op, &arrival.from, whole(&memory, &remote)).expect("get");
        assert!(matches!(node.finish(op), na::Completion::Transfer { result: Ok(()), .. }));
        let mut bytes = [0; 15];
        assert!(memory.read_at(12_345, &mut bytes));
        assert_eq!(&bytes, b"of another user");
        let (op, buf) = (node.op(), node.endpoint.alloc_msg());
        let path = node.endpoint.bulk_path();
        assert!(path.contains("but for 1 of 1 peers"), "root may, and does not: {path}");
        node.endpoint.send_expected(op, &arrival.from, na::Tag(2), buf).expect("answer");
        node.until("the child", |_| child.try_line().is_some_and(|line| line == "answered"));
    }
}

/// The kernel bounds what descriptors a user has on their way, and a hello has two.
#[test]
fn who_may_send_no_descriptors_waits_until_he_may() {
    if let Some(role) = role() {
        dial_with_too_many_descriptors(&role[0]);
    }
    if !is_root() {
        return;
    }
    let mut node = open(PeerUsers::All, true);
    let uri = node.endpoint.self_addr().uri().to_owned();
    let child =
        ChildNode::start(test_path!("who_may_send_no_descriptors_waits_until_he_may"), &uri);
    let asked = node.recv();
    let (_, bytes) = node.received(asked);
    assert_eq!(bytes, b"here");
    node.until("the child", |_| child.try_line().is_some_and(|line| line == "waited"));
}

fn dial_with_too_many_descriptors(uri: &str) -> ! {
    const HELD: usize = 250;
    // A user of its own, for others of this one may have descriptors on their way too.
    // SAFETY: changes this process only.
    assert_eq!(unsafe { libc::setresuid(OTHER - 1, OTHER - 1, OTHER - 1) }, 0);
    let mut node = open(PeerUsers::And(vec![0]), false);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let ours = std::os::fd::OwnedFd::from(ours);
    for _ in 0..HELD {
        support::send_packet(&ours, b"x", &[std::os::fd::AsFd::as_fd(&ours)]);
    }
    let limit = rustix::process::Resource::Nofile;
    let mut limits = rustix::process::getrlimit(limit);
    limits.current = Some(HELD as u64 - 50);
    rustix::process::setrlimit(limit, limits).expect("a lower limit");
    let parent = node.endpoint.lookup(uri).expect("the parent's address");
    let sent = node.send(&parent, 1, b"here");
    (0..10_000).for_each(|_| node.poll());
    assert!(!node.is_done(sent), "it could not be sent");
    drop((ours, theirs));
    let ended = node.finish(sent);
    assert!(matches!(ended, na::Completion::Send { result: Ok(()), .. }), "{ended:?}");
    say("waited");
    sleep_for_ever()
}

#[test]
fn users_that_are_not_let_in_are_told() {
    if let Some(role) = role() {
        play(&role);
    }
    if !is_root() {
        return;
    }
    let test = test_path!("users_that_are_not_let_in_are_told");
    for (ours, theirs, told) in [
        (PeerUsers::Own, "root", "does not talk with processes of this user"),
        (PeerUsers::And(vec![1, 2]), "root", "does not talk with processes of this user"),
        (PeerUsers::All, "own", "peer_users do not include 0"),
    ] {
        let mut node = open(ours, true);
        let uri = node.endpoint.self_addr().uri().replace("//0@", "//").replace("//", "//0@");
        let child = ChildNode::start(test, &format!("{theirs} {uri}"));
        let mut line = None;
        node.until("the child", |_| {
            line = child.try_line();
            line.is_some()
        });
        let line = line.expect("just seen");
        assert!(line.contains(told), "{line}");
        node.still_serves();
    }
}

#[test]
fn a_name_of_another_user_must_be_his() {
    let mut node = open(PeerUsers::All, true);
    let error = na::open(&format!("na+sm://{OTHER}@mine"), &OpenOptions::listening(true));
    assert!(matches!(error, Err(Error::BadUri { .. })) || !is_root(), "{error:?}");
    // Somebody took a socket name that says that it is of another user.
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let name = format!("margo-sm/{OTHER}/taken-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a socket name");
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    rustix::net::bind(&socket, &address).expect("bind");
    rustix::net::listen(&socket, 1).expect("listen");
    let uri = format!("na+sm://{OTHER}@taken-{}", std::process::id());
    let taken = node.endpoint.lookup(&uri).expect("look up");
    let sent = node.send(&taken, 1, b"a secret");
    let error = node.error(sent);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("listens there"), "{error}");
}
