//! Lists: selections, pages, and the one moment that they show.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use margo_provider_kv::{
    Entry, KvClient, KvError, LIST, ListArgs, Page, PageToken, READ, ReadArgs, Selection,
};

use crate::common::{PATIENCE, Pair, client_of, on_each, on_each_with, pattern, refusal};

fn names(kv: &KvClient, selection: Selection) -> Vec<String> {
    let keys = kv.keys(selection, PATIENCE).map(|entry| {
        let Entry { key, value, .. } = entry.unwrap();
        assert_eq!(value, None);
        String::from_utf8(key.0).unwrap()
    });
    keys.collect()
}

#[test]
fn selections_have_prefixes_ranges_suffixes_and_lengths_both_ways() {
    on_each(|pair| {
        let kv = &pair.kv;
        for (key, value) in
            [("a", "1"), ("b/1", "22"), ("b/1x", "333"), ("b/2", "4444"), ("b0", ""), ("c", "6")]
        {
            kv.put(key.as_bytes(), value.as_bytes(), PATIENCE).unwrap();
        }
        let of = |selection: Selection| {
            let all = names(kv, selection.clone());
            assert_eq!(kv.count(&selection, PATIENCE).unwrap(), all.len() as u64);
            let mut backwards = names(kv, selection.backwards());
            backwards.reverse();
            assert_eq!(backwards, all);
            all
        };
        assert_eq!(of(Selection::default()), ["a", "b/1", "b/1x", "b/2", "b0", "c"]);
        assert_eq!(of(Selection::prefix("b/")), ["b/1", "b/1x", "b/2"]);
        assert_eq!(of(Selection::prefix("b/").suffix("1")), ["b/1"]);
        assert_eq!(of(Selection::range("a".."b/2")), ["a", "b/1", "b/1x"]);
        assert_eq!(of(Selection::range("b/1x"..="b0")), ["b/1x", "b/2", "b0"]);
        assert_eq!(of(Selection::default().key_bytes(3..=3)), ["b/1", "b/2"]);
        assert_eq!(of(Selection::default().value_bytes(0..=1)), ["a", "b0", "c"]);
        assert_eq!(of(Selection::range("c".."a")), [""; 0]);
        let both = Selection { range: Selection::range("b/2"..).range, ..Selection::prefix("b/") };
        assert_eq!(of(both), ["b/2"]);
        let values = kv.entries(Selection::prefix("b/2"), PATIENCE).next().unwrap().unwrap();
        assert_eq!(values.value.unwrap().0, b"4444");
    });
}

/// Puts `count` keys with the value `value`.
fn fill(pair: &Pair, count: u32, value: &[u8]) {
    let keys: Vec<_> = (0..count).map(u32::to_be_bytes).collect();
    let batch = keys.iter().fold(pair.kv.batch().atomic(), |batch, key| batch.put(key, value));
    batch.run(PATIENCE).unwrap();
}

#[test]
fn pages_are_of_one_moment_while_others_write() {
    on_each_with(
        |config| config.page_bytes = 4096,
        |pair| {
            const KEYS: u32 = 1500;
            fill(pair, KEYS, b"0");
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut round = 0_u8;
                    while !is_over.load(Relaxed) {
                        round = round.wrapping_add(1);
                        fill(pair, KEYS, &[round]);
                        let new = [&[0xFF], &round.to_be_bytes()[..]].concat();
                        pair.kv.put(&new, b"", PATIENCE).unwrap();
                    }
                });
                for selection in [Selection::default(), Selection::default().backwards()] {
                    let all: Vec<_> = pair.kv.entries(selection, PATIENCE).collect();
                    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
                    let (old, new): (Vec<_>, Vec<_>) =
                        all.iter().partition(|entry| entry.key.0[0] != 0xFF);
                    assert_eq!(old.len(), KEYS as usize);
                    let first = &old[0].value;
                    assert!(old.iter().all(|entry| entry.value == *first), "of several moments");
                    assert!(new.iter().all(|entry| entry.len == 0));
                }
                is_over.store(true, Relaxed);
            });
            assert_eq!(pair.kv.stat(PATIENCE).unwrap()[0].views, 0, "read to the end");
        },
    );
}

#[test]
fn long_values_are_read_from_the_view_of_their_page() {
    on_each_with(
        |config| config.page_bytes = 4096,
        |pair| {
            let long = pattern(100_000, 5);
            for (key, value) in [(b"a", &b"1"[..]), (b"b", &long), (b"c", b"3"), (b"d", &long)] {
                pair.kv.put(key, value, PATIENCE).unwrap();
            }
            let mut entries = pair.kv.entries(Selection::default(), PATIENCE);
            assert_eq!(entries.next().unwrap().unwrap().value.unwrap().0, b"1");
            pair.kv.put(b"d", b"changed", PATIENCE).unwrap();
            let rest: Vec<_> = entries.map(|entry| entry.unwrap().value.unwrap().0).collect();
            assert!(rest == [&*long, b"3", &long]);
        },
    );
}

#[test]
fn a_view_is_of_its_caller_and_gone_when_it_is_not_used() {
    on_each_with(
        |config| {
            config.view_idle_ms = 1;
            config.page_bytes = 4096;
        },
        |pair| {
            fill(pair, 10, b"x");
            let list = |token: Option<PageToken>, kv: &KvClient, client: &margo::Instance| {
                let selection = Selection::default();
                let args =
                    ListArgs { selection, values: false, max: 3, token, shard: None, epoch: 0 };
                client.forward_timed(LIST, &kv.owner(b""), &args, PATIENCE).unwrap()
            };
            let Page { entries, next } = list(None, &pair.kv, &pair.client).unwrap();
            assert_eq!(entries.len(), 3);
            let token = next.unwrap();
            let (other, stranger) = client_of(&pair.service);
            assert_eq!(list(Some(token.clone()), &stranger, &other), Err(KvError::Gone));
            other.finalize_and_wait().unwrap();
            let next = list(Some(token.clone()), &pair.kv, &pair.client).unwrap().next.unwrap();
            assert_eq!(next.view, token.view);
            // It goes with a change, when it has not been used for a millisecond.
            crate::common::until(|| {
                pair.kv.put(b"k", b"", PATIENCE).unwrap();
                pair.kv.stat(PATIENCE).unwrap()[0].views == 0
            });
            assert_eq!(list(Some(next), &pair.kv, &pair.client), Err(KvError::Gone));
        },
    );
}

#[test]
fn a_caller_with_many_lists_loses_the_oldest() {
    on_each_with(
        |config| {
            config.views = 16;
            config.page_bytes = 4096;
        },
        |pair| {
            fill(pair, 300, b"x");
            let begin = || {
                let mut list = pair.kv.keys(Selection::default(), PATIENCE);
                list.next().unwrap().unwrap();
                list
            };
            let (first, second, third) = (begin(), begin(), begin());
            assert_eq!(pair.kv.stat(PATIENCE).unwrap()[0].views, 2, "an eighth");
            let error = first.map(refusal_of).find_map(|error| error);
            assert_eq!(error, Some(KvError::Gone));
            assert_eq!(second.count(), 299);
            assert_eq!(third.count(), 299);
        },
    );
}

fn refusal_of<T: std::fmt::Debug>(
    entry: Result<T, margo_provider_kv::ClientError>,
) -> Option<KvError> {
    entry.is_err().then(|| refusal(entry))
}

#[test]
fn a_view_that_is_read_from_is_of_its_caller_too() {
    on_each_with(
        |config| config.page_bytes = 4096,
        |pair| {
            fill(pair, 10, b"x");
            let (selection, token) = (Selection::default(), None);
            let args = ListArgs { selection, values: false, max: 1, token, shard: None, epoch: 0 };
            let page = pair.client.forward_timed(LIST, &pair.kv.owner(b""), &args, PATIENCE);
            let view = page.unwrap().unwrap().next.unwrap().view;
            let exposed = pair.client.expose(vec![0; 4], margo::Access::ReadWrite).unwrap();
            let read = |view| {
                let key = margo::encoding::Bytes(0_u32.to_be_bytes().to_vec());
                let args = ReadArgs { key, view: Some(view), bulk: exposed.bulk().clone() };
                pair.client.forward_timed(READ, &pair.kv.owner(b""), &args, PATIENCE).unwrap()
            };
            assert_eq!(read(view).unwrap().len, 1);
            assert_eq!(read(view + 1), Err(KvError::Gone));
        },
    );
}
