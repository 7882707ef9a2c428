//! An sm endpoint whose process lacks something that a connection needs: descriptors, addresses, or
//! permission to map more. The peer is honest then, and is not to be blamed.

use std::os::fd::{AsFd, OwnedFd};

use na::{Access, AllocOptions, Error, Memory, OpenOptions, Transfer};

use crate::common::sm::{
    self as support, ChildNode, Hostile, Node, connected, dial, greet, hello, listening, memfd,
    recv_packet, role, say, send_packet, sleep_for_ever,
};
use crate::common::test_path;

const LANE_SUPPLY: u8 = 16;

/// Says that `len` bytes of memory are block `id`; it may be read.
fn announcement(id: u64, len: u64) -> Vec<u8> {
    [u64::from(b'B'), id, 4096, len].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The next slot of the lane in block `id`.
fn lane_record(id: u64) -> Vec<u8> {
    [1, 0, id, 100, 0].iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
}

/// The connection of `hostile`, which announced a block `id` that is not mapped, works, and ends
/// with `told` only when the block cannot be done without.
#[track_caller]
fn expect_lack(node: &mut Node, mut hostile: Hostile, from: &na::Addr, id: u64, told: &str) {
    let (asked, waiting) = (node.recv(), node.recv_expected(from, 9));
    hostile.write(1, 7, b"a message");
    assert_eq!(node.received(asked).1, b"a message");
    hostile.write(LANE_SUPPLY, 0, &lane_record(id));
    let error = node.error(waiting);
    assert!(matches!(error, Error::PeerGone { .. }), "{error}");
    assert!(error.to_string().contains(told), "{error}");
    node.still_serves();
}

#[test]
fn memory_that_cannot_be_mapped_is_no_breach() {
    // More than there are addresses.
    const LEN: usize = 1 << 50;
    for (limit, told) in
        [(u64::MAX, "cannot map"), (1 << 40, "raise `sm.mapped_bytes_per_peer_max`")]
    {
        let mut options = OpenOptions::listening(true);
        options.sm.mapped_bytes_per_peer_max = limit;
        let mut node = Node::new(na::open("na+sm://", &options).expect("open"));
        let (hostile, addr) = Hostile::attach(&mut node);
        let memory = memfd(LEN, true);
        send_packet(&hostile.socket, &announcement(1, LEN as u64), &[memory.as_fd()]);
        expect_lack(&mut node, hostile, &addr, 1, told);
    }
}

/// Memory that may not be mapped is copied in other ways, in whichever process it lies.
#[test]
fn transfers_beyond_the_limit_take_other_ways() {
    const LEN: usize = 5 << 20;
    let open = |limited: bool, listen: bool| {
        let mut options = OpenOptions::listening(listen);
        if limited {
            options.sm.mapped_bytes_per_peer_max = 4 << 20;
        }
        Node::new(na::open("na+sm://", &options).expect("open"))
    };
    for (limited_owner, limited_requester) in [(true, false), (false, true), (true, true)] {
        let (mut owner, mut requester) =
            (open(limited_owner, true), open(limited_requester, false));
        let to_owner = connected(&mut requester, &mut owner);
        let memory = || Memory::alloc(LEN, &AllocOptions::default()).expect("allocate");
        let theirs = owner.endpoint.register(memory(), Access::ReadWrite).expect("register");
        let described = owner.endpoint.mem_to_bytes(&theirs);
        let remote = requester.endpoint.mem_from_bytes(&described).expect("a description");
        let sent: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        // Several times: an offer may have come in between.
        for round in 0..3 {
            let local = requester.endpoint.register(memory(), Access::ReadWrite).expect("register");
            for (put, source, sink) in [(true, &local, &theirs), (false, &theirs, &local)] {
                assert!(source.write_at(0, &sent) && sink.write_at(0, &vec![0; LEN]));
                let transfer = Transfer {
                    local: local.clone(),
                    local_offset: 0,
                    remote: remote.clone(),
                    remote_offset: 0,
                    len: LEN as u64,
                };
                let op = requester.start(put, &to_owner, transfer);
                requester.transferred(op, &mut owner).expect("a transfer");
                let mut got = vec![0; LEN];
                assert!(sink.read_at(0, &mut got));
                assert!(got == sent, "round {round}, put {put}");
            }
        }
    }
}

/// Takes all descriptors but `left`.
fn run_out_of_descriptors(left: usize) -> Vec<std::fs::File> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    let mut fillers = Vec::new();
    while let Ok(filler) = std::fs::File::open("/dev/null") {
        fillers.push(filler);
    }
    fillers.truncate(fillers.len() - left);
    fillers
}

/// Limits the sizes of files, for good: this is a child.
fn limit_files(bytes: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(bytes), ..getrlimit(Resource::Fsize) };
    setrlimit(Resource::Fsize, limit).expect("a lower limit");
}

/// Where shared memory counts as a file, the kernel would end the process.
#[test]
fn a_limit_on_file_sizes_is_an_error_that_names_it() {
    if role().is_none() {
        let child = ChildNode::start(
            test_path!("a_limit_on_file_sizes_is_an_error_that_names_it"),
            "limited",
        );
        assert_eq!(child.line(), "done");
        return;
    }
    let expect = |error: Error, parts: [&str; 2]| {
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        for part in [parts[0], parts[1], "`ulimit -f`", "RLIMIT_FSIZE"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    };
    let open = || na::open("na+sm://", &OpenOptions::default());
    let alloc = |bytes| Memory::alloc(bytes, &AllocOptions::default());
    let (mut node, mut first) = (listening(), Node::new(open().expect("open")));
    let to = node.endpoint.self_addr().uri().to_owned();
    let lookup = |from: &Node| from.endpoint.lookup(&to).expect("lookup");

    // What fits works, and what does not says so.
    limit_files(1 << 20);
    drop(alloc(1 << 20).expect("as much as a file may have"));
    expect(alloc((1 << 20) + 1).unwrap_err(), ["1048577 bytes", "1048576 bytes"]);
    connected(&mut first, &mut node);

    // An endpoint that has no room for a connection.
    limit_files(64 << 10);
    let mut late = Node::new(open().expect("open"));
    for _ in 0..2 {
        let to = lookup(&late);
        let sent = late.send(&to, 1, b"hello");
        expect(late.error(sent), ["shared memory for a connection", "65536 bytes"]);
    }
    // Those that there are go on.
    connected(&mut first, &mut node);

    limit_files(1024);
    expect(open().expect_err("no room for an endpoint"), ["4096 bytes", "1024 bytes"]);
    connected(&mut first, &mut node);
    say("done");
    sleep_for_ever()
}

/// Polls until the kernel has been asked at least once: every 1024th time.
fn look(node: &mut Node) {
    (0..2048).for_each(|_| node.poll());
}

#[test]
fn a_lack_of_descriptors_is_no_breach() {
    if role().is_none() {
        let child = ChildNode::start(test_path!("a_lack_of_descriptors_is_no_breach"), "lacking");
        assert_eq!(child.line(), "done");
        return;
    }
    let told = "no free descriptor";
    let mut node = listening();
    let (hostile, addr) = Hostile::attach(&mut node);
    let memory = memfd(4096, true);
    let fillers = run_out_of_descriptors(0);
    send_packet(&hostile.socket, &announcement(1, 4096), &[memory.as_fd()]);
    let heard = node.recv_expected(&addr, 8);
    look(&mut node);
    drop(fillers);
    assert!(!node.is_done(heard), "the connection goes on");
    expect_lack(&mut node, hostile, &addr, 1, told);
    // What has ended gives its descriptors back before.
    look(&mut node);
    // A connection that would take the last descriptor.
    let uri = node.endpoint.self_addr().uri().to_owned();
    let socket = dial(&uri);
    let fillers = run_out_of_descriptors(1);
    let mut answer = None;
    node.until("an answer", |_| {
        answer = recv_packet(&socket);
        answer.is_some()
    });
    drop(fillers);
    let answer = String::from_utf8_lossy(&answer.unwrap_or_default()).into_owned();
    assert!(answer.contains(told) && answer.contains("ulimit -n"), "{answer}");
    node.still_serves();
    say("done");
    sleep_for_ever()
}

/// Whatever cannot be had is named, with the system's reason and what to do.
#[test]
fn an_endpoint_that_finds_no_descriptor_says_for_what() {
    if role().is_none() {
        let child = ChildNode::start(
            test_path!("an_endpoint_that_finds_no_descriptor_says_for_what"),
            "opens",
        );
        assert_eq!(child.line(), "done");
        return;
    }
    let mut refusals = Vec::new();
    for left in 0.. {
        let fillers = run_out_of_descriptors(left);
        let opened = na::open("na+sm://", &OpenOptions::listening(true));
        drop(fillers);
        match opened {
            Ok(_) => break,
            Err(error) => refusals.push(error.to_string()),
        }
    }
    for what in ["the endpoint's epoll set", "the endpoint's timerfd"] {
        let told: Vec<_> = refusals.iter().filter(|text| text.contains(what)).collect();
        let [text] = told[..] else { panic!("{what}: {refusals:#?}") };
        assert!(text.contains("os error 24") && text.contains("ulimit -n"), "{text}");
    }
    say("done");
    sleep_for_ever()
}

/// Returns the node's first answer to the peer that dialed as `socket`: nothing if a hello may be
/// sent and the kernel does not make it necessary to say so.
fn answer(node: &mut Node, socket: &OwnedFd) -> String {
    look(node);
    let answer = support::recv_any(socket).unwrap_or_default();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn some_descriptors_are_not_for_connections() {
    if role().is_none() {
        let child =
            ChildNode::start(test_path!("some_descriptors_are_not_for_connections"), "lacking");
        assert_eq!(child.line(), "done");
        return;
    }
    let told = "no free descriptor";
    let mut node = listening();
    let uri = node.endpoint.self_addr().uri().to_owned();
    // Sets the limit. The process itself dials, so there are fewer than half as many connections.
    drop(run_out_of_descriptors(0));
    let is_let_in = |node: &mut Node, (socket, memory): &(OwnedFd, OwnedFd)| {
        greet(node, socket, &hello("na+sm://client", false), &[memory.as_fd()]);
        let mut said = None;
        node.until("an answer", |_| {
            said = recv_packet(socket);
            said.is_some()
        });
        said.is_some_and(|said| said.get(6) == Some(&2))
    };
    let mut connections = Vec::new();
    let said = loop {
        assert!(connections.len() < 128, "connections take all descriptors");
        let client = (dial(&uri), memfd(support::SEGMENT, true));
        let said = answer(&mut node, &client.0);
        if said.contains(told) {
            break said;
        }
        assert!(is_let_in(&mut node, &client));
        connections.push(client);
    };
    assert!(said.contains("ulimit -n"), "{said}");
    assert!(connections.len() > 16, "{} connections", connections.len());
    let left: Vec<_> = (0..16).map(|_| std::fs::File::open("/dev/null")).collect();
    assert!(left.iter().all(Result::is_ok), "some descriptors are left for the process");
    drop(left);
    // At the very last one, dialers are told all the same.
    drop(connections);
    look(&mut node);
    let socket = dial(&uri);
    let fillers = run_out_of_descriptors(0);
    let said = answer(&mut node, &socket);
    assert!(said.contains(told) && said.contains("ulimit -n"), "{said}");
    drop(fillers);
    node.still_serves();
    say("done");
    sleep_for_ever()
}

/// Closes all descriptors of this process that are `what`.
fn close_all(what: &str) {
    let all = std::fs::read_dir("/proc/self/fd").expect("own descriptors");
    let found = all.filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_it = std::fs::read_link(&path).ok()?.to_str()?.starts_with(what);
        path.file_name()?.to_str()?.parse().ok().filter(|_| is_it)
    });
    let found: Vec<i32> = found.collect();
    assert!(!found.is_empty(), "no {what}");
    for fd in found {
        // SAFETY: not sound, which is the point: what becomes of a process whose program does that.
        unsafe { libc::close(fd) };
    }
}

/// A process of which `what` is closed, and which then sleeps, wakes and is woken.
fn lose(what: &str) -> ! {
    // SAFETY: changes this process only: it is not to wait for ever.
    unsafe { libc::alarm(60) };
    let (mut node, mut peer) = (listening(), listening());
    let to_node = connected(&mut peer, &mut node);
    let to_peer = node.endpoint.lookup(peer.endpoint.self_addr().uri()).expect("look up");
    peer.send(&to_node, 1, b"there");
    close_all(what);
    for _ in 0..100 {
        for _ in 0..2048 {
            if node.endpoint.prepare_wait() {
                break;
            }
            node.poll();
        }
        // One wakes it itself, the other its peer.
        node.send(&to_peer, 2, b"to a peer");
        peer.send(&to_node, 2, b"from a peer");
    }
    std::process::exit(3)
}

/// An error would reach no caller that sleeps.
#[test]
fn a_descriptor_that_other_code_closed_ends_the_process_with_a_message() {
    use std::os::unix::process::ExitStatusExt;
    if let Some(role) = role() {
        lose(&role.join(" "));
    }
    for (what, told) in [
        ("anon_inode:[eventfd]", "the eventfd that wakes the progress of an sm endpoint"),
        ("anon_inode:[timerfd]", "the timer of an sm endpoint"),
        ("socket:", "the socket of a connection over sm"),
    ] {
        let test =
            test_path!("a_descriptor_that_other_code_closed_ends_the_process_with_a_message");
        let ended = support::output_of(test, what);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{what}: {said}");
        let told = format!("{told} was closed by other code of this process");
        assert!(said.contains(&told), "{what}: {said}");
    }
}
