//! Groups of simulated endpoints: the conformance suite, and that everything follows from the seed.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use na::sim::{Drive, LinkOptions, Network};
use na::{Endpoint, OpId, OpenOptions, Tag};

/// A group in the network of the test, see `conformance.rs`.
fn open_in(link: LinkOptions, options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NETWORK: OnceCell<Network> = const { OnceCell::new() };
    }
    NETWORK.with(|network| {
        let network = network.get_or_init(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("groups-{number}");
            Network::builder(name).seed(number).link(link).build().expect("new")
        });
        let uri = format!("na+sim://{}/", network.name());
        na::open_group(&uri, options, shards).expect("open")
    })
}

mod good {
    use super::*;

    fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
        open_in(LinkOptions::default(), options, shards)
    }

    na::group_conformance! { open_group; grows }

    /// The last endpoint of a group of four, of which the others are closed.
    mod left_alone {
        use super::*;

        fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
            let mut group = open_group(options, 4);
            let last = group.pop().expect("a shard");
            group.iter().for_each(|shard| shard.close());
            last
        }

        na::conformance! { open; between_endpoints }
    }
}

mod unreliable {
    use super::*;

    fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
        open_in(LinkOptions::unreliable(0.1), options, shards)
    }

    na::group_conformance! { open_group; grows }

    /// An endpoint to which others hand each of its connections over.
    mod handed_over {
        use super::*;

        fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
            na::conformance::last_of_group(open_group(options, 4))
        }

        na::conformance! { open; between_endpoints }
    }
}

#[test]
fn a_group_has_bounds() {
    let open =
        |shards| na::open_group("na+sim://group-bounds/", &OpenOptions::listening(true), shards);
    na::conformance::a_group_has_bounds(open);
    na::conformance::growth_has_a_bound(open);
}

/// Callers of a group under a bad network, with a node that crashes: the trace of it all.
fn run(seed: u64) -> String {
    let network = Network::builder(format!("group-run-{seed}"))
        .seed(seed)
        .link(LinkOptions::unreliable(0.2))
        .drive(Drive::Manual)
        .build()
        .unwrap();
    let group = network.open_group("group", &OpenOptions::listening(true), 3).unwrap();
    let open = |at: usize| network.open(&format!("c{at}"), &OpenOptions::listening(at > 2));
    let callers: Vec<_> = (0..6).map(|at| open(at).unwrap()).collect();
    for shard in &group {
        (0..6).for_each(|op| shard.recv_unexpected(OpId(op), shard.alloc_msg()).unwrap());
    }
    let uri = group[0].self_addr().uri().to_owned();
    for caller in &callers {
        let to = caller.lookup(&uri).unwrap();
        caller.send_unexpected(OpId(1), &to, Tag(1), caller.alloc_msg()).unwrap();
    }
    let mut came = Vec::new();
    let mut rounds = 0;
    while network.step() && rounds < 3000 {
        rounds += 1;
        for (at, shard) in group.iter().enumerate() {
            shard.poll(16, &mut |completion| came.push(format!("{at}: {completion:?}"))).unwrap();
        }
        callers.iter().for_each(|caller| drop(caller.poll(16, &mut |_| ())));
        if rounds == 40 {
            network.crash("c0");
        }
    }
    format!("{}\n{}", came.len(), network.trace().tail(2000))
}

#[test]
fn a_run_follows_from_its_seed() {
    for seed in 1..6 {
        let (first, again) = (run(seed), run(seed));
        assert_eq!(first, again, "seed {seed}");
        assert!(first.lines().next().unwrap().parse::<usize>().unwrap() >= 5, "{first}");
    }
    assert_ne!(run(1), run(2));
}

#[test]
fn a_crash_ends_all_shards_and_frees_the_name() {
    let network = Network::builder("group-crash").drive(Drive::Manual).build().unwrap();
    let group = network.open_group("group", &OpenOptions::listening(true), 3).unwrap();
    assert!(network.open("group", &OpenOptions::listening(true)).is_err(), "it runs");
    network.crash("group");
    for shard in &group {
        assert!(shard.poll(1, &mut |_| ()).is_err(), "it is told once");
    }
    let again = network.open_group("group", &OpenOptions::listening(true), 2).unwrap();
    again[0].close();
    assert!(network.open("group", &OpenOptions::listening(true)).is_err(), "one runs");
    again[1].close();
    network.open("group", &OpenOptions::listening(true)).unwrap();
}
