use proptest::prelude::*;

use super::*;

type Sessions = Order<u32, Vec<u64>>;

/// A batch of items that are their own numbers; its answer is a number too.
fn batch(first: u64, count: u64, answer: u32) -> Arrived<u32, Vec<u64>> {
    let (end, bytes) = (first + count, count * 8);
    Arrived { first, skip: 0, end, bytes, connection: 0, answer, payload: (first..end).collect() }
}

/// Has it arrive; returns the items that are handed out, the answers that are due, and the batches
/// of which the items are.
fn arrive(order: &mut Sessions, it: Arrived<u32, Vec<u64>>) -> (Vec<u64>, Vec<u32>, Vec<BatchRef>) {
    order.reserve(it.bytes, (it.end - it.first) as u32).unwrap();
    let (mut items, mut answers, mut handed) = (Vec::new(), Vec::new(), Vec::new());
    let hand_out = |it: Arrived<u32, Vec<u64>>| {
        items.extend(&it.payload[it.skip as usize..]);
        handed.push(it.batch());
    };
    order.arrive(it, hand_out, |answer| answers.push(answer)).unwrap();
    (items, answers, handed)
}

#[test]
fn items_come_in_order_and_once() {
    let mut order = Sessions::new(1000, 0);
    let (items, ..) = arrive(&mut order, batch(3, 2, 1));
    assert!(items.is_empty());
    let (items, ..) = arrive(&mut order, batch(0, 3, 2));
    assert_eq!(items, [0, 1, 2, 3, 4]);
    // Cut otherwise, by a sender that came again.
    let (items, answers, _) = arrive(&mut order, batch(4, 3, 3));
    assert_eq!((items, answers), (vec![5, 6], vec![]));
    let (items, answers, _) = arrive(&mut order, batch(0, 2, 4));
    assert_eq!((items, answers), (vec![], vec![]), "it is not acknowledged yet");
    let mut due = Vec::new();
    order.acknowledge(BatchRef { first: 0, end: 3, bytes: 24, connection: 0 }, |answer| {
        due.push(answer)
    });
    assert_eq!(due, [4]);
    assert_eq!(order.acknowledged(), 3);
}

#[test]
fn nobody_gets_beyond_its_credit() {
    let mut order = Sessions::new(80, 0);
    let (.., handed) = arrive(&mut order, batch(0, 10, 1));
    assert!(order.reserve(1, 1).unwrap_err().contains("the credit is 80"));
    order.acknowledge(handed[0], |_| ());
    order.reserve(80, 1).unwrap();
    order.refuse(0, 80);
    for _ in 0..BATCHES_MAX {
        order.reserve(0, 1).unwrap();
    }
    assert!(order.reserve(0, 1).unwrap_err().contains("without an answer"));
}

#[test]
fn nobody_gets_items_for_nothing() {
    let mut order = Sessions::new(1 << 20, 0);
    order.reserve(0, EMPTY_ITEMS_MAX).unwrap();
    assert!(order.reserve(0, EMPTY_ITEMS_MAX + 1).unwrap_err().contains("items were said"));
    order.reserve(100_000, 100_000).unwrap();
    assert!(order.reserve(100_000, u32::MAX).is_err());
}

#[test]
fn the_end_is_an_end() {
    let mut order = Sessions::new(1000, 0);
    order.end_at(3).unwrap();
    assert!(!order.has_ended());
    let late = batch(2, 2, 1);
    order.reserve(late.bytes, 2).unwrap();
    let refused = order.arrive(late, |_| panic!("not handed out"), |_| ()).unwrap_err();
    assert_eq!(refused.0, 1);
    arrive(&mut order, batch(0, 3, 2));
    assert!(order.has_ended());
    assert!(order.end_at(2).is_err());
    assert!(order.end_at(4).is_err());
}

#[test]
fn a_new_connection_brings_again_what_waited_for_a_gap() {
    let mut order = Sessions::new(80, 0);
    arrive(&mut order, batch(0, 2, 1));
    arrive(&mut order, batch(3, 2, 2));
    arrive(&mut order, batch(0, 1, 3));
    let mut old = order.reconnect();
    old.sort_unstable();
    assert_eq!(old, [2, 3]);
    let again = Arrived { connection: order.connection(), ..batch(2, 5, 4) };
    let (items, _, handed) = arrive(&mut order, again);
    assert_eq!(items, [2, 3, 4, 5, 6]);
    // The credit of the new connection is its own: what the old one has is not given back to it.
    order.acknowledge(BatchRef { first: 0, end: 2, bytes: 16, connection: 0 }, |_| ());
    assert_eq!(order.bytes, 40);
    order.acknowledge(handed[0], |_| ());
    assert_eq!((order.bytes, order.acknowledged()), (0, 7));
}

/// The counts of the batches of a stream, the order in which they arrive, and which of them come
/// once more, cut in another way.
fn arrivals() -> impl Strategy<Value = (Vec<u64>, Vec<usize>, Vec<bool>)> {
    prop::collection::vec(1..6u64, 1..20).prop_flat_map(|counts| {
        let n = counts.len();
        let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
        (Just(counts), order, prop::collection::vec(any::<bool>(), n))
    })
}

proptest! {
    #[test]
    fn any_order_of_arrivals_gives_the_same_items((counts, turns, twice) in arrivals()) {
        let mut order = Sessions::new(1 << 20, 0);
        let ends: Vec<u64> =
            counts.iter().scan(0, |at, n| { *at += n; Some(*at) }).collect();
        let all = ends[ends.len() - 1];
        order.end_at(all).unwrap();
        let (mut items, mut open, mut answered, mut owed) = (Vec::new(), Vec::new(), 0, 0);
        for (n, turn) in turns.iter().enumerate() {
            let (first, count) = (ends[*turn] - counts[*turn], counts[*turn]);
            let mut arrivals = vec![batch(first, count, 0)];
            if twice[n] {
                // From the middle of the batch on, to that of the next one.
                let middle = first + count / 2;
                arrivals.push(batch(middle, (count + 1).min(all - middle), 0));
            }
            for it in arrivals {
                owed += 1;
                let (new, answers, handed) = arrive(&mut order, it);
                items.extend(new);
                answered += answers.len();
                open.extend(handed);
            }
        }
        prop_assert_eq!(items, (0..all).collect::<Vec<_>>());
        prop_assert!(order.has_ended());
        for batch in open {
            answered += 1;
            order.acknowledge(batch, |_| answered += 1);
        }
        prop_assert_eq!(answered, owed, "each batch is answered once");
        prop_assert_eq!(order.acknowledged(), all);
        prop_assert_eq!((order.bytes, order.batches), (0, 0));
    }
}
