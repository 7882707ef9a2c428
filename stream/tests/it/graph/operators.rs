//! Operators and edges.

use std::collections::{BTreeMap, BTreeSet};

use margo_stream::graph::{Graph, ReplicaAt, Side, Spread};

#[test]
fn items_keep_their_order_through_stages_of_one_replica() {
    let graph = Graph::new();
    let numbers = graph
        .source("numbers", 0..100_000u32)
        .filter(|n| n % 3 == 0)
        .stage("twice")
        .flat_map(|n| [n, n + 1])
        .stage("text")
        .map(|n| n.to_string())
        .stage("parse")
        .try_map(|text| text.parse::<u32>())
        .collect();
    let report = graph.run_on(2).unwrap();
    let expected: Vec<_> = (0..100_000).filter(|n| n % 3 == 0).flat_map(|n| [n, n + 1]).collect();
    assert_eq!(report.edges[1].items, expected.len() as u64);
    assert_eq!(numbers.take(), expected);
}

#[test]
fn a_farm_loses_and_doubles_nothing() {
    for spread in [Spread::OnDemand, Spread::RoundRobin] {
        let graph = Graph::new();
        let numbers = graph
            .sources("numbers", 3, |at: ReplicaAt| (0..30_000u64).skip(at.index).step_by(at.count));
        let numbers = if spread == Spread::RoundRobin { numbers.round_robin() } else { numbers };
        let seen = numbers.farm("square", 4).map(|n| n * n).stage("all").collect();
        assert_eq!(graph.plan().edges[0].spread, spread);
        graph.run_on(2).unwrap();
        let mut seen = seen.take();
        seen.sort_unstable();
        assert_eq!(seen, (0..30_000).map(|n| n * n).collect::<Vec<_>>());
    }
}

#[test]
fn all_of_a_key_come_to_one_replica_in_the_order_of_each_producer() {
    let graph = Graph::new();
    let seen = graph
        .sources("numbers", 3, |at: ReplicaAt| (0..20_000u64).map(move |n| (n % 97, (at.index, n))))
        .bundle(10)
        .keyed()
        .farm("keys", 4)
        .pairs()
        .sink(Vec::new(), |seen, item| seen.push(item));
    graph.run_on(2).unwrap();
    let mut owners = BTreeMap::new();
    let mut total = 0;
    for (replica, seen) in seen.take().into_iter().enumerate() {
        let mut last = BTreeMap::new();
        assert!(!seen.is_empty());
        total += seen.len();
        for (key, (producer, n)) in seen {
            assert_eq!(*owners.entry(key).or_insert(replica), replica, "of key {key}");
            let before = last.insert((key, producer), n);
            assert!(before < Some(n), "{before:?} before {n}");
        }
    }
    assert_eq!((total, owners.len()), (60_000, 97));
}

#[test]
fn each_replica_gets_what_is_broadcast() {
    let graph = Graph::new();
    let seen = graph
        .source("numbers", 0..5_000u32)
        .broadcast("all", 3)
        .sink(Vec::new(), |seen, n| seen.push(n));
    graph.run_on(2).unwrap();
    let seen = seen.take();
    assert_eq!(seen.len(), 3);
    seen.iter().for_each(|seen| assert_eq!(*seen, (0..5_000).collect::<Vec<_>>()));
}

#[test]
fn words_are_counted_with_and_without_aggregation_before_the_edge() {
    let words: Vec<String> = (0..50_000u32).map(|n| format!("w{}", n * n % 1009)).collect();
    let mut expected = BTreeMap::new();
    words.iter().for_each(|word| *expected.entry(word.clone()).or_insert(0u64) += 1);
    for is_aggregated in [false, true] {
        let graph = Graph::new();
        let ones = graph.source("words", words.clone()).map(|word| (word, 1u64)).keyed();
        let add = |count: &mut u64, more| *count += more;
        let counts = if is_aggregated {
            ones.fold(0, add).farm("count", 3).fold(0, add).collect()
        } else {
            ones.farm("count", 3).fold(0, add).collect()
        };
        let report = graph.run_on(2).unwrap();
        let sent = if is_aggregated { expected.len() } else { words.len() };
        assert_eq!(report.edges[0].items, sent as u64);
        assert_eq!(counts.take().into_iter().collect::<BTreeMap<_, _>>(), expected);
    }
}

#[test]
fn a_merge_has_the_items_of_both() {
    let graph = Graph::new();
    let one = graph.sources("one", 2, |at: ReplicaAt| [at.index]);
    let other = graph.source("other", 2..1000).stage("more").map(|n| n);
    let all = one.merge("all", other).replicas(2).collect();
    graph.run_on(2).unwrap();
    assert_eq!(all.take().into_iter().collect::<BTreeSet<_>>(), (0..1000).collect());
}

#[test]
fn local_stages_take_what_cannot_be_encoded() {
    struct Opaque(Box<dyn Fn(u32) -> u32 + Send>);
    let graph = Graph::new();
    let results = graph
        .source("make", (0..100u32).map(|n| Opaque(Box::new(move |m| n + m))))
        .local_stage("call")
        .map(|Opaque(f)| f(1))
        .map(|n| (n % 2, Opaque(Box::new(move |m| n * m))))
        .keyed()
        .local_stage("keyed")
        .replicas(2)
        .pairs()
        .map(|(_, Opaque(f))| f(10))
        .collect();
    assert!(graph.plan().edges.iter().all(|edge| edge.schema.is_none()));
    graph.run_on(2).unwrap();
    let mut results = results.take();
    results.sort_unstable();
    assert_eq!(results, (1..=100).map(|n| n * 10).collect::<Vec<_>>());
}

#[test]
fn a_slow_source_does_not_keep_its_items() {
    let (sender, receiver) = margo::ult::channel::unbounded();
    let (seen, see) = margo::ult::channel::unbounded();
    let graph = Graph::new();
    graph
        .generate("asked", move |emit| {
            for n in receiver {
                emit.emit(n)?;
                emit.flush()?;
            }
            Ok(())
        })
        .stage("hand on")
        .map(|n: u32| n + 1)
        .farm("tell", 2)
        .for_each(move |n| seen.send(n).unwrap());
    let run = std::thread::spawn(|| graph.run_on(2));
    for n in 0..100 {
        sender.send(n).unwrap();
        // Only then is the next one sent.
        assert_eq!(see.recv(), Ok(n + 1));
    }
    drop(sender);
    run.join().unwrap().unwrap();
}

/// Numbers, the even ones left.
fn sides(n: u64) -> Side<u64, (u64, u64)> {
    if n.is_multiple_of(2) { Side::Left(n) } else { Side::Right((n, n)) }
}

#[test]
fn what_is_split_can_be_merged_again() {
    let graph = Graph::new();
    let (even, odd) = graph
        .sources("numbers", 2, |at: ReplicaAt| (0..30_000u64).skip(at.index).step_by(at.count))
        .map(sides)
        .split("even", "odd");
    let all = even.replicas(2).merge("all", odd.map(|(n, _)| n)).collect();
    let report = graph.run_on(2).unwrap();
    assert_eq!([report.edges[0].items, report.edges[1].items], [15_000; 2]);
    let mut all = all.take();
    all.sort_unstable();
    assert_eq!(all, (0..30_000).collect::<Vec<_>>());
}

#[test]
fn one_side_of_a_split_may_end_before_the_other() {
    let graph = Graph::new();
    let (even, odd) = graph.source("numbers", 0..30_000u64).map(sides).split("even", "odd");
    // The others wait until the first stage takes no more.
    let (gone, is_gone) = margo::ult::channel::unbounded();
    even.own("first", move |io| {
        let first = io.recv()?;
        gone.send(()).unwrap();
        first.map_or(Ok(()), |first| Ok(io.emit(first)?))
    })
    .for_each(|n| assert_eq!(n, 0));
    let odd = odd.map(move |(n, _)| {
        if n == 1 {
            is_gone.recv().unwrap();
        }
        n
    });
    let odd = odd.sink(0, |count, _| *count += 1);
    graph.run_on(2).unwrap();
    assert_eq!(odd.take(), [15_000]);
}

#[test]
fn a_source_ends_when_neither_side_of_its_split_takes_more() {
    let graph = Graph::new();
    let (even, odd) = graph.source("numbers", 0u64..).map(sides).split("even", "odd");
    even.own("one", |io| io.recv()?.map_or(Ok(()), |n| Ok(io.emit(n)?))).for_each(drop);
    odd.own("other", |io| io.recv()?.map_or(Ok(()), |n| Ok(io.emit(n)?))).for_each(drop);
    graph.run_on(2).unwrap();
}
