//! Windows and joins.

use std::collections::BTreeMap;

use margo_stream::graph::{Graph, Pane, ReplicaAt, Window};
use proptest::prelude::*;

type Panes = Vec<(u32, Pane<Vec<u64>>)>;

fn sorted(mut panes: Panes) -> Panes {
    panes.iter_mut().for_each(|(_, pane)| pane.value.sort_unstable());
    panes.sort_by_key(|(key, pane)| (*key, pane.from, pane.to));
    panes
}

/// Cuts the events into windows, by two sources and two replicas with windows.
fn cut(events: &[(u32, u64)], window: Window, lateness: u64) -> Panes {
    let graph = Graph::new();
    let events = events.to_vec();
    let panes = graph
        .sources("events", 2, move |at: ReplicaAt| {
            events.into_iter().skip(at.index).step_by(at.count)
        })
        .watermarks(|event| event.1, lateness)
        .bundle(3)
        .stage("between")
        .bundle(2)
        .keyed()
        .farm("windows", 2)
        .window(window, |time| *time)
        .fold(Vec::new(), |all, time| all.push(time))
        .collect();
    graph.run_on(2).unwrap();
    sorted(panes.take())
}

/// The windows of a list, by definition.
fn spans(events: &[(u32, u64)], len: u64, step: u64) -> Panes {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for (key, time) in events {
        let begins = (0..=*time).filter(|from| from % step == 0 && time - from < len);
        begins.for_each(|from| all.entry((*key, from)).or_default().push(*time));
    }
    let pane = |((key, from), value)| (key, Pane { from, to: from + len, value });
    sorted(all.into_iter().map(pane).collect())
}

fn sessions(events: &[(u32, u64)], gap: u64) -> Panes {
    let mut events = events.to_vec();
    events.sort_unstable();
    let mut all = Panes::new();
    for (key, time) in events {
        match all.last_mut() {
            Some((last, pane)) if *last == key && time < pane.to => {
                pane.to = time + gap;
                pane.value.push(time);
            }
            _ => all.push((key, Pane { from: time, to: time + gap, value: vec![time] })),
        }
    }
    sorted(all)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn windows_are_what_their_definition_says(
        events in proptest::collection::vec((0..4u32, 0..60u64), 0..80),
        len in 1..20u64,
        step in 1..20u64,
    ) {
        // Nothing is later than that.
        prop_assert_eq!(cut(&events, Window::sliding(len, step), 60), spans(&events, len, step));
        prop_assert_eq!(cut(&events, Window::session(len), 60), sessions(&events, len));
        // Nothing is late at all, and windows end while others come.
        let mut events = events;
        events.sort_by_key(|(_, time)| *time);
        prop_assert_eq!(cut(&events, Window::sliding(len, step), 0), spans(&events, len, step));
        prop_assert_eq!(cut(&events, Window::session(len), 0), sessions(&events, len));
    }
}

#[test]
fn a_window_comes_when_a_watermark_has_passed_its_end() {
    let graph = Graph::new();
    let (tell, told) = margo::ult::channel::unbounded();
    let (go, may_go) = margo::ult::channel::unbounded();
    graph
        .generate("events", move |emit| {
            for time in [1u64, 5, 12] {
                emit.emit(time)?;
            }
            emit.watermark(11)?;
            emit.flush()?;
            // The source has not ended yet.
            may_go.recv()?;
            emit.emit(13)?;
            Ok(())
        })
        .watermarks(|time| *time, 100)
        .key_by(|_| 0u8)
        .stage("windows")
        .window(Window::tumbling(10), |time| *time)
        .fold(0, |sum, time| *sum += time)
        .pairs()
        .for_each(move |(_, pane)| tell.send(pane).unwrap());
    let run = std::thread::spawn(|| graph.run_on(1));
    assert_eq!(told.recv(), Ok(Pane { from: 0, to: 10, value: 6 }));
    assert!(told.is_empty());
    go.send(()).unwrap();
    run.join().unwrap().unwrap();
    assert_eq!(told.recv(), Ok(Pane { from: 10, to: 20, value: 25 }));
}

#[test]
fn what_is_too_late_is_left_out() {
    let graph = Graph::new();
    let panes = graph
        .source("events", [3u64, 15, 4, 30])
        .watermarks(|time| *time, 2)
        .key_by(|_| ())
        .window(Window::tumbling(10), |time| *time)
        .fold(0, |count, _| *count += 1)
        .map_values(|pane| (pane.from, pane.value))
        .collect();
    graph.run_on(1).unwrap();
    assert_eq!(panes.take(), [((), (0, 1)), ((), (10, 1)), ((), (30, 1))]);
}

#[test]
fn items_of_several_replicas_are_put_in_the_order_of_their_times() {
    let graph = Graph::new();
    let seen = graph
        .sources("events", 3, |at: ReplicaAt| (0..20_000u64).skip(at.index).step_by(at.count))
        .map(|n| (n / 10, n))
        .watermarks(|(time, _)| *time, 0)
        .bundle(7)
        .farm("order", 2)
        .in_order(|(time, n)| (*time, *n))
        .sink(Vec::new(), |seen, (_, n)| seen.push(n));
    graph.run_on(2).unwrap();
    let seen = seen.take();
    assert_eq!(seen.iter().map(Vec::len).sum::<usize>(), 20_000);
    seen.iter().for_each(|seen| assert!(seen.is_sorted_by(|one, next| one < next)));
}

#[test]
fn an_item_that_is_too_late_for_its_place_goes_on_with_the_next_watermark() {
    let graph = Graph::new();
    let times = graph
        .source("events", [3u64, 15, 20, 4, 30])
        .watermarks(|time| *time, 2)
        .in_order(|time| (*time, ()))
        .collect();
    graph.run_on(1).unwrap();
    assert_eq!(times.take(), [3, 15, 4, 20, 30]);
}

#[test]
fn windows_of_panes_have_all_that_end_together() {
    let graph = Graph::new();
    let counts = graph
        .sources("events", 2, |at: ReplicaAt| (0..1000u64).skip(at.index).step_by(at.count))
        .watermarks(|time| *time, 0)
        .key_by(|time| time * time % 7)
        .farm("count", 2)
        .window(Window::sliding(100, 20), |time| *time)
        .fold(0, |count, _| *count += 1)
        .pairs()
        .map(|(_, pane)| ((), pane.map(|count: u64| [count])))
        .keyed()
        .stage("sum")
        .window(Window::tumbling(20), Pane::time)
        .fold(0, |sum, pane| *sum += pane.value[0])
        .map_values(|pane| (pane.to, pane.value))
        .collect();
    graph.run_on(2).unwrap();
    let mut expected = Vec::new();
    for from in (0..1000).step_by(20) {
        expected.push(((), (from + 100, 100.min(1000 - from))));
    }
    assert_eq!(counts.take(), expected);
}

#[test]
fn a_window_by_arrival_comes_without_another_item() {
    let graph = Graph::new();
    let (tell, told) = margo::ult::channel::unbounded();
    let (go, may_go) = margo::ult::channel::unbounded::<()>();
    graph
        .generate("events", move |emit| {
            emit.emit(1u32)?;
            emit.emit(2)?;
            emit.flush()?;
            let _ = may_go.recv();
            Ok(())
        })
        .key_by(|_| 0u8)
        .stage("windows")
        .arrival_window(Window::session(5))
        .fold(0, |sum, n| *sum += n)
        .pairs()
        .for_each(move |(_, pane)| tell.send(pane.value).unwrap());
    let run = std::thread::spawn(|| graph.run_on(1));
    // One session, or two if the thread was held up between the items.
    let mut sum = 0;
    while sum < 3 {
        sum += told.recv().unwrap();
    }
    drop(go);
    run.join().unwrap().unwrap();
    assert!(told.recv().is_err());
}

#[test]
fn windows_by_count_are_full_or_the_last() {
    let graph = Graph::new();
    let panes = graph
        .source("numbers", 0..7u32)
        .key_by(|_| ())
        .count_window(3, 2)
        .fold(Vec::new(), |all, n| all.push(n))
        .map_values(|pane| (pane.from, pane.to, pane.value))
        .collect();
    graph.run_on(1).unwrap();
    let panes: Vec<_> = panes.take().into_iter().map(|(_, pane)| pane).collect();
    let full = [(0, 3, vec![0, 1, 2]), (2, 5, vec![2, 3, 4]), (4, 7, vec![4, 5, 6])];
    assert_eq!(panes[..3], full);
    assert_eq!(panes[3..], [(6, 7, vec![6])]);
}

#[test]
fn a_join_has_each_pair_of_a_key() {
    let graph = Graph::new();
    let left = graph.source("left", (0..300u32).map(|n| (n % 10, n))).keyed();
    let right = graph.source("right", (0..200u32).map(|n| (n % 7, n.to_string()))).keyed();
    let pairs = left.join("join", right).replicas(3).collect();
    graph.run_on(2).unwrap();
    let mut pairs = pairs.take();
    pairs.sort();
    let mut expected = Vec::new();
    for left in 0..300u32 {
        let rights = (0..200u32).filter(|right| left % 10 == right % 7);
        expected.extend(rights.map(|right| (left % 10, (left, right.to_string()))));
    }
    expected.sort();
    assert_eq!(pairs, expected);
}

#[test]
fn a_join_of_windows_has_the_pairs_of_each_window() {
    let graph = Graph::new();
    let left = graph.source("left", 0..100u64).watermarks(|time| *time, 0).key_by(|n| n % 2);
    let right = graph.source("right", 0..100u64).watermarks(|time| *time, 0).key_by(|n| n % 2);
    let pairs = left
        .join_windows("join", right, Window::tumbling(10), |time| *time, |time| *time)
        .replicas(2)
        .map_values(|pane| (pane.from, pane.value))
        .collect();
    graph.run_on(2).unwrap();
    let pairs = pairs.take();
    assert_eq!(pairs.len(), 10 * 2 * 5 * 5);
    for (key, (from, (left, right))) in pairs {
        assert!([left, right].iter().all(|n| n % 2 == key && n / 10 == from / 10));
    }
}
