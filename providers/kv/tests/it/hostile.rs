//! Requests that a client of another make might send.

use std::ops::Bound;

use margo::encoding::Bytes;
use margo::{Access, ForwardError, ProviderHandle, ProviderId, Rpc};
use margo_provider_kv::{
    Batch, CHANGE, Change, ChangeArgs, ClientError, Condition, GET_MANY, GetManyArgs, KeyRange,
    KvClient, KvError, KvStat, LIST, Lengths, ListArgs, Outcomes, PageToken, Part, READ, ReadArgs,
    STAT, Selection,
};

use crate::common::{PATIENCE, Pair, in_memory, on_each, pattern};

fn change(pair: &Pair, args: &ChangeArgs) -> Result<Outcomes, KvError> {
    pair.client.forward_timed(CHANGE, &pair.kv.owner(b""), args, PATIENCE).unwrap()
}

fn put(parts: &[Part], bulk: Option<margo::Bulk>) -> ChangeArgs {
    let put = |(at, part): (usize, &Part)| Change::Put {
        key: Part::Here(Bytes(vec![at as u8])),
        value: part.clone(),
        when: Condition::Always,
    };
    let changes = parts.iter().enumerate().map(put).collect();
    let batch = Batch { is_atomic: false, only_if: Vec::new(), changes };
    ChangeArgs { batch, durability: None, bulk, skip: 0, epoch: 0 }
}

#[test]
fn parts_that_are_not_there_are_refused_and_nothing_is_changed() {
    on_each(|pair| {
        let there = |len| Part::There(len);
        let exposed = pair.client.expose(pattern(100, 1), Access::ReadOnly).unwrap();
        let bulk = || Some(exposed.bulk().clone());
        for args in [
            put(&[there(1)], None),
            put(&[there(101)], bulk()),
            put(&[there(60), there(41)], bulk()),
            put(&[there(u64::MAX), there(2)], bulk()),
            ChangeArgs { skip: 60, ..put(&[there(41)], bulk()) },
            ChangeArgs { skip: u64::MAX, ..put(&[there(1)], bulk()) },
        ] {
            let error = change(pair, &args).unwrap_err();
            assert!(matches!(error, KvError::Invalid(_)), "{error}");
        }
        // As many as there are, and memory that is not asked for.
        change(pair, &put(&[there(0), there(60), there(40)], bulk())).unwrap();
        assert_eq!(pair.kv.get(&[2], PATIENCE).unwrap().value.0, pattern(100, 1)[60..]);
        change(pair, &put(&[Part::Here(Bytes(Vec::new()))], bulk())).unwrap();
        change(pair, &ChangeArgs { skip: 70, ..put(&[there(30)], bulk()) }).unwrap();
        assert_eq!(pair.kv.get(&[0], PATIENCE).unwrap().value.0, pattern(100, 1)[70..]);
        pair.kv.erase_range(.., PATIENCE).unwrap();

        // Memory that may not be read, and memory that was taken back.
        let hidden = pair.client.expose(vec![0; 10_000], Access::WriteOnly).unwrap();
        let taken = exposed.bulk().clone();
        exposed.release().unwrap();
        for bulk in [hidden.bulk().clone(), taken] {
            let error = change(pair, &put(&[there(bulk.len())], Some(bulk))).unwrap_err();
            assert!(matches!(error, KvError::Failed(_)), "{error}");
        }
        assert_eq!(pair.kv.count(&Selection::default(), PATIENCE).unwrap(), 0);
    });
}

#[test]
fn values_are_not_pushed_where_they_do_not_belong() {
    on_each(|pair| {
        pair.kv.put(b"k", &pattern(10_000, 1), PATIENCE).unwrap();
        let read = |bulk: &margo::Bulk| {
            let args = ReadArgs { key: Bytes(b"k".to_vec()), view: None, bulk: bulk.clone() };
            pair.client.forward_timed(READ, &pair.kv.owner(b""), &args, PATIENCE).unwrap()
        };
        let exposed = pair.client.expose(vec![0; 10_000], Access::ReadOnly).unwrap();
        let error = read(exposed.bulk()).unwrap_err();
        assert!(matches!(error, KvError::Failed(_)), "{error}");
        let short = pair.client.expose(vec![0; 9_999], Access::ReadWrite).unwrap();
        assert_eq!(read(short.bulk()), Err(KvError::TooSmall { need: 10_000 }));
    });
}

#[test]
fn lists_that_make_no_sense_are_answered() {
    on_each(|pair| {
        for key in 0..5_u8 {
            pair.kv.put(&[key], b"x", PATIENCE).unwrap();
        }
        let list = |args: &ListArgs| {
            pair.client.forward_timed(LIST, &pair.kv.owner(b""), args, PATIENCE).unwrap()
        };
        let args = |selection| ListArgs {
            selection,
            values: true,
            max: u32::MAX,
            token: None,
            shard: None,
            epoch: 0,
        };
        let token = PageToken { view: u64::MAX, after: Bytes(Vec::new()) };
        let with_token = ListArgs { token: Some(token), ..args(Selection::default()) };
        assert_eq!(list(&with_token), Err(KvError::Gone));
        let page = list(&ListArgs { max: 0, ..args(Selection::default()) }).unwrap();
        assert_eq!(page.entries.len(), 1, "a page is never empty while there is more");
        // A token that leads out of the selection: behind the end, or before the beginning.
        let Some(PageToken { view, .. }) = page.next else { panic!("there is more") };
        for (is_backwards, after, keys) in
            [(false, vec![3], vec![4]), (false, vec![9], vec![]), (true, vec![0], vec![])]
        {
            let page = list(&ListArgs { max: 0, ..args(Selection::default()) }).unwrap();
            let token = PageToken { after: Bytes(after), ..page.next.unwrap() };
            assert!(token.view > view);
            let selection = Selection { is_backwards, ..Selection::default() };
            let page = list(&ListArgs { token: Some(token), ..args(selection) }).unwrap();
            let found: Vec<_> = page.entries.iter().map(|entry| entry.key.0[0]).collect();
            assert_eq!((found, page.next), (keys, None));
        }
        let inverted =
            KeyRange { from: Bound::Excluded(Bytes(vec![3])), to: Bound::Excluded(Bytes(vec![3])) };
        let none = Lengths { least: 9, most: 3 };
        for selection in [
            Selection { range: inverted, ..Selection::default() },
            Selection { key_bytes: none, ..Selection::default() },
            Selection { value_bytes: none, ..Selection::default() },
            Selection::prefix([0xFF; 4000]),
        ] {
            let page = list(&args(selection)).unwrap();
            assert_eq!((page.entries, page.next), (vec![], None));
        }
    });
}

#[test]
fn counts_that_are_not_there_are_not_believed() {
    on_each(|pair| {
        // A batch that says it has 2^60 changes, and one key of 2^60 bytes.
        let raw: Rpc<margo::encoding::Raw, Result<Outcomes, KvError>> = Rpc::new(CHANGE.name());
        for bytes in [
            [&[0; 9][..], &(1_u64 << 60).to_le_bytes()].concat(),
            [&[0; 9][..], &1_u64.to_le_bytes(), &[0; 8], &(1_u64 << 60).to_le_bytes()].concat(),
        ] {
            let args = margo::encoding::Raw(bytes);
            let error = pair.client.forward_timed(raw, &pair.kv.owner(b""), &args, PATIENCE);
            let error = error.unwrap_err();
            assert!(matches!(error, ForwardError::BadArguments { .. }), "{error}");
        }
        // Many keys, none of which is there, and the same long one again and again.
        pair.kv.put(b"k", &vec![7; 1 << 20], PATIENCE).unwrap();
        let mut keys = vec![Bytes(Vec::new()); 20_000];
        keys.extend(vec![Bytes(b"k".to_vec()); 100]);
        let args = GetManyArgs { keys, most: u64::MAX };
        let found = pair.client.forward_timed(GET_MANY, &pair.kv.owner(b""), &args, PATIENCE);
        let found = found.unwrap().unwrap();
        assert!(found[..20_000].iter().all(|found| *found == Err(KvError::NotFound)));
        let sum = found.iter().flatten().map(|found| found.value.len()).sum::<usize>();
        assert_eq!(sum, 1 << 20, "a page of values, and no more");
        assert_eq!(found[20_099], Err(KvError::TooSmall { need: 1 << 20 }));
    });
}

#[test]
fn numbers_of_shards_that_cannot_be_are_not_believed() {
    let pair = Pair::new("na+sm://", &in_memory());
    let told = pair.kv.stat(PATIENCE).unwrap()[0];
    for (at, (shards, instance_shards)) in [(0, 1), (129, 1), (2, 200)].into_iter().enumerate() {
        let id = ProviderId::new(100 + at as u16);
        let liar = pair.service.provider(id, &pair.service.layout().rpc_pool());
        let told = KvStat { shards, instance_shards, ..told };
        liar.serve(STAT).function(move |()| Ok(told)).unwrap();
        let target = ProviderHandle::new(pair.kv.owner(b"").addr().clone(), id);
        let error = KvClient::cluster(&pair.client, [target], PATIENCE).unwrap_err();
        assert!(matches!(error, ClientError::BadAnswer(_)), "{error}");
    }
    pair.end();
}
