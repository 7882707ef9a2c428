//! Whole runs of simulated networks: the same seed is the same run, and random programs keep the
//! contract whatever happens to them.
//!
//! `NA_SIM_SEEDS=n` runs n random programs instead of the usual number; `NA_SIM_SEED=s` runs the
//! one of that seed, which a failure prints.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use na::sim::{Drive, Latency, LinkOptions, Network};
use na::{Error, OpId, OpenOptions, Tag};

use super::support::{Node, builder, exhaust, finish, network};
use super::{program, support};

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let first = program::run(seed);
        let again = program::run(seed);
        assert!(first.count() > 20, "{} entries", first.count());
        let differs = first.entries().zip(again.entries()).find(|(first, again)| first != again);
        assert_eq!(differs, None, "seed {seed}");
        assert!(first == again, "seed {seed}: {} and {} entries", first.count(), again.count());
        assert_ne!(first.fingerprint(), program::run(seed + 1000).fingerprint());
    }
}

#[test]
fn the_seed_decides_and_not_only_the_program() {
    let run = |seed| {
        let network = network(seed, LinkOptions::unreliable(0.2));
        let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
        let to_b = a.to("b");
        let receives: Vec<_> = (0..50).map(|_| b.recv()).collect();
        for tag in 0..50 {
            a.send(&to_b, tag, b"x");
        }
        finish(&[&b, &a], "the messages", &receives);
        network.trace()
    };
    assert!(run(1) == run(1));
    assert!(run(1).to_string() != run(2).to_string());
}

#[test]
fn random_programs_keep_the_contract() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("NA_SIM_SEED") {
        print!("{}", program::run(seed));
        return;
    }
    for seed in 0..number("NA_SIM_SEEDS").unwrap_or(300) {
        program::run(seed);
    }
}

#[test]
fn timers_fire_at_their_time_and_can_be_taken_back() {
    let network = network(1, LinkOptions::default());
    let fired = Arc::new(Mutex::new(Vec::new()));
    let at = |millis: u64| {
        let fired = fired.clone();
        network.schedule(Duration::from_millis(millis), move |network| {
            fired.lock().unwrap().push(network.now().as_millis());
        })
    };
    let (_late, never, _early) = (at(30), at(20), at(10));
    assert_eq!(network.next_event_at(), Some(Duration::from_millis(10)));
    assert!(network.unschedule(never));
    network.run_for(Duration::from_millis(15));
    assert_eq!(*fired.lock().unwrap(), [10]);
    assert_eq!(network.now(), Duration::from_millis(15));
    // A timer may set another; one of the past fires now.
    network.schedule(Duration::ZERO, |network| {
        network.schedule(network.now(), |network| network.partition("a", "b"));
    });
    assert_eq!(network.run_until_idle(100), 3);
    assert_eq!(*fired.lock().unwrap(), [10, 30]);
    assert!(!network.unschedule(never) && !network.step());
    assert!(network.trace().to_string().contains("a: cannot reach b"));
}

#[test]
fn simultaneous_events_are_ordered_by_the_seed() {
    let order = |seed| {
        let network = network(seed, LinkOptions::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..10 {
            let order = order.clone();
            let call = move |_: &Network| order.lock().unwrap().push(number);
            network.schedule(Duration::from_millis(1), call);
        }
        network.run_until_idle(10);
        let order = order.lock().unwrap();
        order.clone()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn by_hand_a_poll_does_not_move_the_clock_and_a_completion_wakes() {
    let network = network(1, LinkOptions::default());
    let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
    let readable = || {
        let fd = b.endpoint.wait_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&at_once)) == Ok(1)
    };
    let received = b.recv();
    a.send(&a.to("b"), 1, b"x");
    assert_eq!((a.poll(), b.poll()), (0, 0));
    assert_eq!(network.now(), Duration::ZERO);
    assert!(b.endpoint.prepare_wait() && !readable());
    network.run_until_idle(1000);
    assert!(readable() && !b.endpoint.prepare_wait());
    assert_eq!(b.poll(), 1);
    assert!(!readable() && b.is_done(received));
}

/// A thread that sleeps is woken by what another thread starts, and by time that passes.
#[test]
fn timers_fire_though_everybody_sleeps() {
    let network = Network::builder("sleepers").build().unwrap();
    let endpoint = network.open("a", &OpenOptions::listening(true)).unwrap();
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).unwrap();
    assert!(endpoint.prepare_wait());
    let other = endpoint.clone();
    network.schedule(Duration::from_secs(3600), move |_| other.cancel(OpId(1)));
    let fd = endpoint.wait_fd().unwrap();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
    let mut canceled = 0;
    while canceled == 0 {
        canceled += endpoint.poll(1, &mut |_| ()).unwrap();
    }
    assert!(network.now() >= Duration::from_secs(3600));
}

#[test]
fn names_settings_and_addresses_are_checked() {
    let network = builder(1).build().unwrap();
    let listening = OpenOptions::listening(true);
    let name = network.name().to_owned();
    let a = network.open("a", &listening).unwrap();
    assert_eq!(a.self_addr().uri(), format!("na+sim://{name}/a"));
    let taken = na::open(a.self_addr().uri(), &listening).unwrap_err();
    assert!(matches!(taken, Error::Io { .. }) && taken.to_string().contains("/a"), "{taken}");
    let taken = Network::builder(&name).build().unwrap_err();
    assert!(matches!(taken, Error::Io { .. }), "{taken}");
    let own_name = na::open(&format!("na+sim://{name}"), &listening).unwrap();
    assert_eq!(own_name.self_addr().uri(), format!("na+sim://{name}/node-1"));
    for uri in ["na+sim://elsewhere/a", &format!("na+sim://{name}"), "na+sm://a"] {
        let error = a.lookup(uri).unwrap_err();
        assert!(matches!(error, Error::BadUri { .. }), "{error}");
    }
    a.close();
    assert_eq!(network.open("a", &listening).unwrap().self_addr().uri(), a.self_addr().uri());

    let bad = |link: LinkOptions| {
        let error = Network::builder("bad").link(link).build().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    };
    bad(LinkOptions { loss: 1.1, ..LinkOptions::default() });
    bad(LinkOptions { reorder: f64::NAN, ..LinkOptions::default() });
    let median = Duration::from_micros(5);
    bad(LinkOptions::with_latency(Latency::LogNormal { median, sigma: -1.0 }));
    assert!(Network::builder("").build().is_err() && Network::builder("a/b").build().is_err());
    let mut huge = OpenOptions::default();
    huge.message_bytes_max = 1 << 30;
    assert!(matches!(network.open("huge", &huge), Err(Error::BadOption { .. })));
}

#[test]
fn a_network_ends_with_its_last_handle() {
    let network = Network::builder("short-lived").seed(5).build().unwrap();
    let endpoint = network.open("a", &OpenOptions::default()).unwrap();
    drop(network);
    assert_eq!(Network::named("short-lived").unwrap().seed(), 5, "its endpoint keeps it");
    drop(endpoint);
    assert_eq!(Network::named("short-lived").unwrap().seed(), 0, "a new one");
}

#[test]
fn a_longer_message_than_the_peer_takes_is_refused() {
    let network = network(1, LinkOptions::default());
    let b = Node::open_with(&network, "b", &support::options(|o| o.message_bytes_max = 100));
    let a = Node::open(&network, "a");
    let to_b = a.to("b");
    // Before the peer's limit is known, it is found out on the way.
    let (long, short) = (a.send(&to_b, 1, &[1; 101]), a.send(&to_b, 2, &[2; 100]));
    let received = b.recv();
    finish(&[&b, &a], "the short message", &[received]);
    exhaust(&[&a, &b]);
    assert!(matches!(a.outcome(long), Err(Error::TooLong { len: 101, max: 100 })));
    a.succeeded(short);
    assert_eq!(b.received(received).1, 2);
    let refused = a.endpoint.send_unexpected(OpId(77), &to_b, Tag(1), a.message(&[1; 101]));
    assert!(matches!(refused.unwrap_err().error, Error::TooLong { .. }));
}

#[test]
fn every_latency_has_its_shape() {
    let (min, max) = (Duration::from_micros(20), Duration::from_micros(60));
    for (latency, low, high) in [
        (Latency::Constant(min), 20, 20),
        (Latency::Uniform { min, max }, 20, 60),
        (Latency::Exponential { min, mean: max }, 20, 2_000),
        (Latency::LogNormal { median: max, sigma: 0.5 }, 3, 1_000),
    ] {
        let link = LinkOptions { bandwidth: 0, ..LinkOptions::with_latency(latency) };
        let network = builder(3).link(link).drive(Drive::Manual).build().unwrap();
        let (a, b) = (Node::open(&network, "a"), Node::open(&network, "b"));
        let (to_b, _) = support::greet(&a, &b, "b");
        let mut times = Vec::new();
        for tag in 0..200 {
            exhaust(&[&a, &b]);
            let (start, received) = (network.now(), b.recv());
            a.send(&to_b, tag, b"x");
            finish(&[&b, &a], "a message", &[received]);
            times.push((network.now() - start).as_micros());
        }
        assert!(times.iter().all(|t| (low..=high).contains(t)), "{latency:?}: {times:?}");
        let varies = times.iter().any(|time| *time != times[0]);
        assert_eq!(varies, low != high, "{latency:?}");
    }
}
