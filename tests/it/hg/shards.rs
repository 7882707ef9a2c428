//! Mercury's cases about contexts, as shards: each thread drives one of its own, and sleeps until
//! something happens there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use margo::hg::{Core, ForwardOptions, HgOptions};
use na::OpenOptions;

use super::support::{Node, Service, Token, WHERE, Wait, drain, register, step, uri};

/// Transports that have groups of endpoints.
const GROUPS: [&str; 3] = ["sm", "tcp", "sim"];

fn group(transport: &str, listen: bool, shards: usize) -> Vec<Node> {
    let uri = uri(transport, listen);
    let endpoints = na::open_group(&uri, &OpenOptions::listening(listen), shards).unwrap();
    let mut options = HgOptions::default();
    options.listen = listen;
    let cores = Core::group(endpoints, options).unwrap().into_iter();
    let cores: Vec<_> = cores.map(|core| Node::from(vec![core])).collect();
    register(&cores[0], listen);
    cores
}

/// A group that was one core, to which the others were added.
fn grown(transport: &str, listen: bool, shards: usize) -> Vec<Node> {
    let mut cores = group(transport, listen, 1);
    while cores.len() < shards {
        let another = cores[0].endpoint().open_another().unwrap();
        let added = cores[0].add_shard(another).unwrap();
        cores.push(Node::from(vec![added]));
        assert_eq!(usize::from(cores[cores.len() - 1].shard()), cores.len() - 1);
    }
    cores
}

/// A thread that drives a shard until `done`.
fn serve(shard: &Node, service: &Arc<Service>, done: &Arc<AtomicBool>) -> impl FnOnce() + use<> {
    let (shard, service, done) = (shard.clone(), service.clone(), done.clone());
    move || {
        while !done.load(Ordering::Relaxed) || shard.in_flight() > 0 {
            step(&shard, Wait::Sleep, &service);
        }
    }
}

fn ask(shard: &Node, to: &na::Addr, wanted: u8, service: &Service, wait: Wait) -> Vec<u8> {
    let (token, options) = (Token::default(), ForwardOptions::to_context(wanted));
    shard.forward(to, WHERE, options, |_| Ok(()), token.clone()).unwrap();
    while !token.is_over() {
        step(shard, wait, service);
    }
    token.take().unwrap()
}

#[test]
fn case_13_15_shards_of_the_target() {
    const SHARDS: u8 = 3;
    let made = GROUPS.into_iter().flat_map(|transport| [(transport, false), (transport, true)]);
    for (transport, is_grown) in made {
        let make = if is_grown { grown } else { group };
        let (target, origin) = (make(transport, true, SHARDS.into()), make(transport, false, 2));
        let (service, done): (Arc<Service>, Arc<AtomicBool>) = Default::default();
        let threads: Vec<_> =
            target.iter().map(|shard| std::thread::spawn(serve(shard, &service, &done))).collect();
        let address = target[0].self_addr();
        std::thread::scope(|scope| {
            for shard in &origin {
                let (address, service) = (&address, &service);
                scope.spawn(move || {
                    let endpoint = shard.endpoint();
                    for wanted in (0..SHARDS).cycle().take(60) {
                        let to = endpoint.lookup_shard(address.uri(), wanted.into()).unwrap();
                        assert_eq!(ask(shard, &to, wanted, service, Wait::Sleep), [wanted]);
                    }
                });
            }
        });
        done.store(true, Ordering::Relaxed);
        target[1].close();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        origin[0].close();
        drain(&target[0], &service);
        drain(&origin[0], &service);
    }
}

/// Shards of one group call each other by name; the one that is called may sleep.
#[test]
fn case_14_shards_that_call_each_other() {
    const SHARDS: u8 = 4;
    for transport in GROUPS {
        let shards = grown(transport, true, SHARDS.into());
        let service = Service::default();
        let (threads, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let parked: Vec<_> = (0..SHARDS).map(|_| Arc::new(std::sync::OnceLock::new())).collect();
        for (shard, parked) in shards.iter().zip(&parked) {
            let parked: Arc<std::sync::OnceLock<std::thread::Thread>> = parked.clone();
            shard.set_waker(move || parked.get().into_iter().for_each(std::thread::Thread::unpark));
        }
        let to = shards[0].self_addr();
        std::thread::scope(|scope| {
            for (shard, parked) in shards.iter().zip(&parked) {
                let (service, to, threads, finished) = (&service, &to, &threads, &finished);
                scope.spawn(move || {
                    parked.set(std::thread::current()).unwrap();
                    threads.fetch_add(1, Ordering::Relaxed);
                    while threads.load(Ordering::Relaxed) < SHARDS.into() {
                        std::thread::yield_now();
                    }
                    for wanted in (0..SHARDS).cycle().take(100) {
                        let (token, options) =
                            (Token::default(), ForwardOptions::to_context(wanted));
                        shard.forward(to, WHERE, options, |_| Ok(()), token.clone()).unwrap();
                        while !token.is_over() {
                            step(shard, Wait::Poll, service);
                            if !shard.has_queued() && !token.is_over() {
                                std::thread::park();
                            }
                        }
                        assert_eq!(token.take().unwrap(), [wanted]);
                    }
                    finished.fetch_add(1, Ordering::Relaxed);
                    // Serves the others.
                    while finished.load(Ordering::Relaxed) < SHARDS.into() {
                        step(shard, Wait::Poll, service);
                    }
                });
            }
        });
        shards[0].close();
        drain(&shards[0], &service);
    }
}
