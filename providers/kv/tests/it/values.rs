//! Values of all lengths: in messages, fetched, and by bulk transfer.

use margo::ForwardError;
use margo_provider_kv::{ClientError, Condition, KvError};

use crate::common::{PATIENCE, on_each, on_each_with, pattern, refusal};

#[test]
fn values_of_all_lengths_come_back_intact() {
    on_each(|pair| {
        let kv = &pair.kv;
        let eager = pair.client.network().eager_bytes();
        for len in [0, 1, eager - 1, eager, eager + 1, 256 << 10, (256 << 10) + 1, 1_000_003] {
            let value = pattern(len, len as u64);
            let version = kv.put(b"k", &value, PATIENCE).unwrap();
            let found = kv.get(b"k", PATIENCE).unwrap();
            assert!(found.version == version && found.value.0 == value, "{len}");
            // Straight into the caller's memory, which may be longer.
            let mut into = vec![0xEE; len + 3];
            let meta = kv.get_into(b"k", &mut into, PATIENCE).unwrap();
            assert_eq!((meta.version, meta.len), (version, len as u64));
            assert!(into[..len] == value && into[len..] == [0xEE; 3], "{len}");
            if len > 0 {
                let error = refusal(kv.get_into(b"k", &mut into[..len - 1], PATIENCE));
                assert_eq!(error, KvError::TooSmall { need: len as u64 });
            }
            kv.append(b"k", &value, PATIENCE).unwrap();
            assert_eq!(kv.measure(b"k", PATIENCE).unwrap().unwrap().len, 2 * len as u64);
            kv.put_if(b"k", b"", Condition::Value(&[&*value, &value].concat()), PATIENCE).unwrap();
        }
        assert_eq!(refusal(kv.get_into(b"none", &mut [], PATIENCE)), KvError::NotFound);
    });
}

#[test]
fn a_batch_mixes_short_and_long_values_and_keys() {
    on_each(|pair| {
        let kv = &pair.kv;
        let values: Vec<_> = [10, 70_000, 0, 300_000, 100, 1 << 20]
            .iter()
            .enumerate()
            .map(|(at, len)| pattern(*len, at as u64))
            .collect();
        let long_key = pattern(20_000, 77);
        let keys: [&[u8]; 6] = [b"0", b"1", b"2", b"3", &long_key, b"5"];
        let mut batch = kv.batch().atomic().only_if(b"0", Condition::Absent);
        for (key, value) in keys.iter().zip(&values) {
            batch = batch.put(key, value);
        }
        batch.run(PATIENCE).unwrap();
        let found = kv.get_many(&[&keys[..], &[b"none"]].concat(), PATIENCE).unwrap();
        assert_eq!(found[6], Err(KvError::NotFound));
        for (found, value) in found.iter().zip(&values) {
            assert!(found.as_ref().unwrap().value.0 == *value);
        }
        let found = kv.measure_many(&[b"1", b"none", b"2"], PATIENCE).unwrap();
        let lens: Vec<_> = found.iter().map(|meta| meta.map(|meta| meta.len)).collect();
        assert_eq!(lens, [Some(70_000), None, Some(0)]);
        assert_eq!(kv.get_many(&[], PATIENCE).unwrap(), []);
    });
}

#[test]
fn many_values_that_do_not_fit_into_one_answer_all_come() {
    on_each_with(
        |config| config.page_bytes = 4096,
        |pair| {
            let keys: Vec<_> = (0..300_u16).map(u16::to_be_bytes).collect();
            let value = |number: usize| pattern(100, number as u64);
            let values: Vec<_> = (0..keys.len()).map(value).collect();
            let mut batch = pair.kv.batch();
            for (key, value) in keys.iter().zip(&values) {
                batch = batch.put(key, value);
            }
            assert!(batch.run(PATIENCE).unwrap().iter().all(Result::is_ok));
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            for (found, value) in pair.kv.get_many(&keys, PATIENCE).unwrap().iter().zip(&values) {
                assert_eq!(found.as_ref().unwrap().value.0, *value);
            }
        },
    );
}

#[test]
fn calls_are_pipelined() {
    on_each(|pair| {
        let key = |number: u16| number.to_be_bytes();
        let puts = (0..200).map(|n| pair.kv.start_put(&key(n), &pattern(50, n.into()), PATIENCE));
        for put in puts.map(Result::unwrap).collect::<Vec<_>>() {
            put.wait().unwrap();
        }
        let gets = (0..200).map(|n| pair.kv.start_get(&key(n), 50, PATIENCE).unwrap());
        for (n, get) in gets.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(get.wait().unwrap().value.0, pattern(50, n as u64));
        }
        let get = pair.kv.start_get(&key(7), 49, PATIENCE).unwrap().wait();
        assert!(matches!(get, Err(ClientError::Kv(KvError::TooSmall { need: 50 }))), "{get:?}");
        // Together with other things; cancelled; awaited.
        let get = pair.kv.start_get(&key(7), 50, PATIENCE).unwrap();
        assert_eq!(margo::ult::wait_any(&[get.ready().unwrap()], None), Some(0));
        assert!(get.test());
        assert_eq!(margo::ult::block_on(get).unwrap().value.0, pattern(50, 7));
        let get = pair.kv.start_get(&key(7), 50, PATIENCE).unwrap();
        get.cancel();
        match get.wait() {
            Ok(found) => assert_eq!(found.value.0, pattern(50, 7)),
            Err(error) => {
                let is_so = matches!(error, ClientError::Forward(ForwardError::Canceled { .. }));
                assert!(is_so, "{error}");
            }
        }
    });
}
