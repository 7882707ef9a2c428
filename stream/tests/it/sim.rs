//! Streams over a simulated network that loses, repeats and reorders packets, is cut, and whose
//! nodes die: each item comes exactly once, in the order of its sender.
//!
//! `MARGO_SIM_SEEDS=n` runs n seeds instead of the usual number; `MARGO_SIM_SEED=s` runs the one,
//! which a failure prints. What the network does follows from the seed; the order in which the
//! threads of the test come to it does not.

use std::collections::BTreeMap;
use std::time::Duration;

use margo::Instance;
use margo::na::sim::{LinkOptions, Network};
use margo_stream::{
    Acknowledge, Delivery, OnLoss, Positions, ReceiveSpec, Receiver, Route, SendSpec, Sender,
    StreamError,
};

use crate::common::{NUMBERS, SOON};

const SEEDS: u64 = 4;
const SENDERS: u64 = 2;
const ITEMS: u64 = 3_000;

fn seeds() -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match (variable("MARGO_SIM_SEED"), variable("MARGO_SIM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(SEEDS),
    }
}

/// A number below `max` that follows from the seed and a place.
fn drawn(seed: u64, place: u64, max: u64) -> u64 {
    // SplitMix64.
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(place << 32 | 1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % max
}

fn network(name: &str, seed: u64) -> Network {
    let network = Network::builder(name)
        .seed(seed)
        .link(LinkOptions::unreliable(0.1))
        .peer_limit(Duration::from_millis(200))
        .build()
        .unwrap();
    // Some cuts are shorter than connections live, and some are longer.
    for cut in 0..6 {
        let begin = Duration::from_micros(drawn(seed, cut, 400_000));
        let end = begin + Duration::from_micros(drawn(seed, 100 + cut, 500_000));
        let sender = format!("sender-{}", drawn(seed, 200 + cut, SENDERS));
        let again = sender.clone();
        network.schedule(begin, move |network| network.partition(&sender, "receiver"));
        network.schedule(end, move |network| network.heal_between(&again, "receiver"));
    }
    network
}

fn send(net: &str, sender: u64) -> std::thread::JoinHandle<()> {
    let net = net.to_owned();
    std::thread::spawn(move || {
        let client = Instance::builder(format!("na+sim://{net}/sender-{sender}")).start().unwrap();
        let spec = SendSpec::new()
            .name(format!("{sender}"))
            .batch_bytes(400)
            .connect_within(SOON)
            .delivery(Delivery::Replay { patience: SOON });
        let to = [format!("na+sim://{net}/receiver")];
        let mut sender_end =
            Sender::connect(&[&client], NUMBERS, &to, &spec, Route::RoundRobin).unwrap();
        sender_end.send_all((0..ITEMS).map(|item| item * SENDERS + sender)).unwrap();
        sender_end.finish().unwrap();
        let _ = client.finalize_and_wait();
    })
}

/// The number is the next one of its sender.
fn check(next: &mut BTreeMap<u64, u64>, number: u64, seed: u64) {
    let (sender, item) = (number % SENDERS, number / SENDERS);
    let next = next.entry(sender).or_default();
    assert_eq!(item, *next, "seed {seed}: sender {sender}");
    *next += 1;
}

#[test]
fn over_a_bad_network_each_item_comes_once_and_in_order() {
    for seed in seeds() {
        let net = format!("stream-{seed}");
        let network = network(&net, seed);
        let _trace = network.trace_on_panic(50);
        let service = Instance::builder(format!("na+sim://{net}/receiver")).start().unwrap();
        let spec = ReceiveSpec::new()
            .senders(SENDERS as usize)
            .credit_bytes(4_000)
            .on_loss(OnLoss::Wait(SOON));
        let mut receiver = Receiver::serve(&[&service], NUMBERS, &spec).unwrap();
        let senders: Vec<_> = (0..SENDERS).map(|sender| send(&net, sender)).collect();
        let mut next = BTreeMap::new();
        while let Some(number) = receiver.recv().unwrap_or_else(|error| panic!("{seed}: {error}")) {
            check(&mut next, number, seed);
        }
        assert!(next.values().all(|next| *next == ITEMS), "seed {seed}: {next:?}");
        // Until then it answers those that come back because an answer was lost.
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        drop(receiver);
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_receiver_that_dies_goes_on_at_its_checkpoint() {
    for seed in seeds() {
        let net = format!("stream-crash-{seed}");
        let network = network(&net, seed);
        let _trace = network.trace_on_panic(50);
        let senders: Vec<_> = (0..SENDERS).map(|sender| send(&net, sender)).collect();
        // What is on the disk: the positions, and what was made of the items until there.
        let (mut positions, mut saved) = (Positions::new(), BTreeMap::new());
        let mut life = 0;
        loop {
            // After a crash nobody is answered any more: the end need not wait for that.
            let service = Instance::builder(format!("na+sim://{net}/receiver"))
                .grace(Duration::from_millis(50))
                .start()
                .unwrap();
            let mut spec = ReceiveSpec::new()
                .senders(SENDERS as usize)
                .credit_bytes(8_000)
                .acknowledge(Acknowledge::OnCommit)
                .on_loss(OnLoss::Wait(SOON));
            for (sender, position) in &positions {
                spec = spec.resume_at(sender, *position);
            }
            let mut receiver = Receiver::serve(&[&service], NUMBERS, &spec).unwrap();
            let dies_after = 400 + drawn(seed, 300 + life, 2_000);
            let mut next = saved.clone();
            let mut taken = 0;
            let is_over = loop {
                match receiver.recv() {
                    Ok(Some(number)) => check(&mut next, number, seed),
                    Ok(None) => break true,
                    Err(StreamError::Closed { .. }) => break false,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                taken += 1;
                if taken % 200 == 0 {
                    (positions, saved) = (receiver.positions(), next.clone());
                    receiver.commit(&positions);
                }
                if taken == dies_after {
                    break false;
                }
            };
            if is_over {
                assert!(next.values().all(|next| *next == ITEMS), "seed {seed}: {next:?}");
                receiver.commit(&receiver.positions());
                network.heal();
                senders.into_iter().for_each(|sender| sender.join().unwrap());
                drop(receiver);
                let _ = service.finalize_and_wait();
                break;
            }
            network.crash("receiver");
            drop(receiver);
            let _ = service.finalize_and_wait();
            life += 1;
        }
    }
}
