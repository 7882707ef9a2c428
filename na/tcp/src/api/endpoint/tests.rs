//! Unit tests of the endpoint and its poller.

use super::*;

fn open(listen: bool) -> TcpEndpoint {
    let uri = Uri::parse("na+tcp://127.0.0.1:0").unwrap();
    TcpEndpoint::open(&uri, &OpenOptions::listening(listen)).unwrap()
}

#[test]
fn mail_that_comes_while_a_sleep_is_prepared_ends_it() {
    let endpoint = open(true);
    let mut poller = endpoint.poller.lock();
    assert!(endpoint.core.mail.prepare_sleep());
    assert!(poller.is_idle(&endpoint.core));
    // Its event is taken by the last look at the events, so nothing would end the sleep.
    endpoint.core.mail.notify();
    assert!(!poller.is_idle(&endpoint.core));
    assert!(!poller.prepare_wait(&endpoint.core), "the mail is still there");
}

#[test]
fn nobody_sleeps_on_memory_that_is_to_be_given_back() {
    let endpoint = open(true);
    let memory = Memory::from_vec(vec![0; 8]);
    let memory = endpoint.register(memory, Access::ReadOnly).unwrap();
    endpoint.poller.lock().memories.push(memory);
    assert!(!endpoint.prepare_wait());
    assert_eq!(endpoint.core.regions.len(), 1);
    endpoint.poll(1, &mut drop).unwrap();
    assert_eq!(endpoint.core.regions.len(), 0, "given back");
    assert!(endpoint.prepare_wait());
}

#[test]
fn a_receive_that_goes_back_while_it_is_canceled_is_canceled() {
    let endpoint = open(true);
    // When the matcher was asked, a message was arriving in it that has ended early since.
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).unwrap();
    endpoint.with_poller(|poller| poller.cancel(&endpoint.core, OpId(1)));
    let mut canceled = 0;
    let mut sink = |completion: Completion| match completion {
        Completion::Recv { op: OpId(1), result: Err(Error::Canceled), .. } => canceled += 1,
        other => panic!("{other:?}"),
    };
    endpoint.poll(64, &mut sink).unwrap();
    assert_eq!(canceled, 1);
}

#[test]
fn a_cancel_locks_no_peer_that_has_nothing_to_cancel() {
    const PEERS: u64 = 5;
    let origin = open(true);
    let targets: Vec<_> = (0..PEERS).map(|_| open(true)).collect();
    let mut peers = Vec::new();
    for (op, target) in (0..).zip(&targets) {
        let to = origin.lookup(target.self_addr().uri()).unwrap();
        origin.send_unexpected(OpId(op), &to, Tag(1), origin.alloc_msg()).unwrap();
        peers.push(to);
    }
    let mut sent = 0;
    while sent < PEERS as usize {
        sent += origin.poll(64, &mut drop).unwrap();
        targets.iter().for_each(|target| assert!(target.poll(64, &mut drop).is_ok()));
    }
    // The last one is asked for what it does not give before it polls.
    let memory = targets[0].register(Memory::from_vec(vec![0; 8]), Access::ReadOnly).unwrap();
    let own = origin.register(Memory::from_vec(vec![0; 8]), Access::WriteOnly).unwrap();
    let remote = targets[0].mem_to_bytes(&memory);
    let remote = origin.mem_from_bytes(&remote).unwrap();
    let transfer = Transfer { local: own, local_offset: 0, remote, remote_offset: 0, len: 8 };
    let asked = peers.pop().unwrap();
    origin.get(OpId(100), &asked, transfer).unwrap();
    let locks = |addr: &Addr| {
        let peer = addr.state::<Arc<Peer>>().unwrap();
        peer.locks.load(Ordering::Relaxed)
    };
    let before: Vec<_> = peers.iter().map(locks).collect();
    let of_asked = locks(&asked);
    origin.cancel(OpId(100));
    assert_eq!(peers.iter().map(locks).collect::<Vec<_>>(), before);
    assert_eq!(locks(&asked), of_asked + 1, "it is found");
    let mut canceled = 0;
    origin.poll(64, &mut |_| canceled += 1).unwrap();
    assert_eq!(canceled, 1);
    // What was never begun is nobody's.
    let before: Vec<_> = peers.iter().map(locks).collect();
    origin.cancel(OpId(101));
    assert_eq!(peers.iter().map(locks).collect::<Vec<_>>(), before);
}

/// Whatever a crowd sends before anybody receives it, no more is held than may, and nothing is
/// lost.
#[test]
fn what_a_crowd_sends_early_is_bounded_and_arrives() {
    const PEERS: u64 = 4;
    const EACH: u32 = 100;
    let uri = Uri::parse("na+tcp://127.0.0.1:0").unwrap();
    let mut options = OpenOptions::listening(true);
    options.early_bytes_max = 256 << 10;
    let target = TcpEndpoint::open(&uri, &options).unwrap();
    let origins: Vec<_> = (0..PEERS).map(|_| open(false)).collect();
    for origin in &origins {
        let to = origin.lookup(target.self_addr().uri()).unwrap();
        for tag in 0..EACH {
            let mut buf = origin.alloc_msg();
            buf.set_len(buf.capacity());
            origin.send_unexpected(OpId(tag.into()), &to, Tag(tag), buf).unwrap();
        }
    }
    let began = std::time::Instant::now();
    let (mut rounds, mut most) = (0, 0);
    while rounds < 1000 {
        assert!(began.elapsed() < na_core::conformance::PATIENCE, "{most} bytes");
        let mut polls = origins.iter().chain([&target]);
        polls.try_for_each(|end| end.poll(64, &mut drop).map(drop)).unwrap();
        let early = target.core.matcher.lock().early_bytes();
        rounds = if early > most { 0 } else { rounds + u32::from(most > 100 << 10) };
        most = most.max(early);
    }
    // All are on one host, which may have half of it, and goes beyond by no more than a message.
    assert!(most <= (128 << 10) + 5000, "{most} bytes");
    let (mut next, mut came) = (std::collections::HashMap::new(), 0);
    for op in 0..32 {
        target.recv_unexpected(OpId(op), target.alloc_msg()).unwrap();
    }
    while came < PEERS * u64::from(EACH) {
        assert!(began.elapsed() < na_core::conformance::PATIENCE, "{came} have come");
        let mut done = Vec::new();
        target.poll(64, &mut |completion| done.push(completion)).unwrap();
        for completion in done {
            let Completion::Recv { op, result: Ok(arrival), .. } = completion else { panic!() };
            let next = next.entry(arrival.from.uri().to_owned()).or_insert(0);
            assert_eq!(arrival.tag, Tag(*next), "in order");
            (*next, came) = (*next + 1, came + 1);
            target.recv_unexpected(op, target.alloc_msg()).unwrap();
        }
        origins.iter().try_for_each(|end| end.poll(64, &mut drop).map(drop)).unwrap();
    }
    assert_eq!(target.core.matcher.lock().early_bytes(), 0);
    assert!(matches!(target.principal(&target.self_addr), Principal::Unknown));
}

/// Connections that always have something are read as often as each other, though only few of them
/// are read without an event.
#[test]
fn busy_connections_get_equal_shares_of_the_polls() {
    const PEERS: usize = 15;
    const WINDOW: u64 = 32;
    const BUDGET: usize = 64;
    let target = open(true);
    for op in 0..PEERS as u64 * WINDOW {
        target.recv_unexpected(OpId(op), target.alloc_msg()).unwrap();
    }
    let origins: Vec<_> = (0..PEERS).map(|_| open(false)).collect();
    let uri = target.self_addr();
    let peers = origins.iter().map(|origin| origin.lookup(uri.uri()).unwrap());
    let peers: Vec<_> = peers.collect();
    let send = |at: usize| {
        let mut buf = origins[at].alloc_msg();
        buf.set_len(64);
        origins[at].send_unexpected(OpId(0), &peers[at], Tag(at as u32), buf).unwrap();
    };
    (0..WINDOW).for_each(|_| (0..PEERS).for_each(send));
    let mut served = [0_u64; PEERS];
    // Everybody has the whole window under way before each poll.
    let mut poll = || {
        origins.iter().for_each(|origin| assert!(origin.poll(1000, &mut drop).is_ok()));
        let mut done = Vec::new();
        target.poll(BUDGET, &mut |completion| done.push(completion)).unwrap();
        for completion in done {
            let Completion::Recv { op, buf, result: Ok(arrival) } = completion else { panic!() };
            target.recv_unexpected(op, buf).unwrap();
            served[arrival.tag.0 as usize] += 1;
            send(arrival.tag.0 as usize);
        }
        served
    };
    let begin = std::time::Instant::now();
    while poll().contains(&0) {
        assert!(begin.elapsed() < na_core::conformance::PATIENCE, "somebody is never served");
    }
    let before = poll();
    (0..1000).for_each(|_| assert!(!poll().contains(&0)));
    let shares: Vec<u64> =
        poll().iter().zip(before).map(|(after, before)| after - before).collect();
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(10 * least >= 8 * most, "{shares:?}");
}

/// A sender, and a target that takes what comes.
struct Flow {
    origin: TcpEndpoint,
    target: TcpEndpoint,
    to: Addr,
    /// The origin, as the target calls it.
    from: std::cell::RefCell<Option<Addr>>,
    began: std::time::Instant,
}

impl Flow {
    /// One whose connection is made.
    fn open() -> Self {
        let (origin, target) = (open(false), open(true));
        let to = origin.lookup(target.self_addr().uri()).unwrap();
        (0..64).for_each(|op| target.recv_unexpected(OpId(op), target.alloc_msg()).unwrap());
        let began = std::time::Instant::now();
        let flow = Self { origin, target, to, from: None.into(), began };
        flow.send();
        while flow.from.borrow().is_none() {
            flow.poll();
        }
        flow
    }

    fn send(&self) {
        let buf = self.origin.alloc_msg();
        self.origin.send_unexpected(OpId(0), &self.to, Tag(1), buf).unwrap();
    }

    fn send_now(&self) -> bool {
        self.origin.send_unexpected_now(&self.to, Tag(1), b"now")
    }

    /// Polls both once; how much the origin was told.
    fn poll(&self) -> usize {
        assert!(self.began.elapsed() < na_core::conformance::PATIENCE);
        let mut done = Vec::new();
        self.target.poll(64, &mut |completion| done.push(completion)).unwrap();
        for completion in done {
            let Completion::Recv { op, buf, result: Ok(arrival) } = completion else { continue };
            *self.from.borrow_mut() = Some(arrival.from);
            self.target.recv_unexpected(op, buf).unwrap();
        }
        self.origin.poll(64, &mut drop).unwrap()
    }

    /// Sends until a message would wait, and polls after each `per` of them; how many did not.
    fn until_one_waits(&self, per: u64) -> u64 {
        let mut sent = 0;
        while self.send_now() {
            sent += 1;
            if sent % per == 0 {
                self.poll();
            }
        }
        sent
    }
}

/// A sender whose messages end at once reports nothing to itself; yet they go together again some
/// time after one of them has waited for long.
#[test]
fn one_late_poll_does_not_make_all_later_messages_go_alone() {
    let flow = Flow::open();
    flow.until_one_waits(8);
    flow.send();
    let sent = std::time::Instant::now();
    while sent.elapsed().as_millis() < 2 {
        std::hint::spin_loop();
    }
    while flow.poll() == 0 {}
    assert!(flow.until_one_waits(8) >= 256, "the next ones do not wait");
}

/// Another core may poll without end: that is no reason to send messages one by one.
#[test]
fn messages_go_together_until_the_peer_sends_something() {
    let flow = Flow::open();
    flow.until_one_waits(1);
    let received = || flow.to.state::<Arc<Peer>>().unwrap().received();
    let before = received();
    let from = flow.from.borrow().clone().unwrap();
    flow.target.send_expected(OpId(0), &from, Tag(2), flow.target.alloc_msg()).unwrap();
    while received() == before {
        flow.poll();
    }
    assert!(flow.send_now(), "it may be the next call");
}
