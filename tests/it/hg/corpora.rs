//! The fuzzers' entry points of the RPC layer, and of tokens, over their seed corpora
//! (`fuzz/corpus`) and over mutations of them: what a fuzzer finds stays found without a fuzzer.

#![allow(clippy::unwrap_used, reason = "an unwrap is an assertion here")]

use std::path::PathBuf;

use margo::hg::fuzzing;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "fuzz", "corpus", target].iter().collect();
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// A change such as a fuzzer makes.
#[derive(Debug, Clone)]
enum Change {
    Flip(Index, u8),
    Word(Index, u64, usize),
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let words = vec![0, 1, 2, 63, 255, 4096, 65_535, 1 << 31, u64::MAX >> 1, u64::MAX];
    prop_oneof![
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (any::<Index>(), select(words), select(vec![1, 2, 4, 8]))
            .prop_map(|(at, word, width)| Change::Word(at, word, width)),
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), 1usize..16).prop_map(|(at, len)| Change::Remove(at, len)),
        (any::<Index>(), any::<Vec<u8>>()).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: Change) {
    let place = |at: Index, bytes: &[u8]| at.index(bytes.len() + 1);
    match change {
        Change::Flip(at, bit) => {
            let at = place(at, bytes);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        Change::Word(at, word, width) => {
            let at = place(at, bytes);
            for (byte, new) in bytes[at..].iter_mut().zip(&word.to_le_bytes()[..width]) {
                *byte = *new;
            }
        }
        Change::Cut(at) => bytes.truncate(place(at, bytes)),
        Change::Remove(at, len) => {
            let at = place(at, bytes);
            let end = bytes.len().min(at + len);
            bytes.drain(at..end);
        }
        Change::Insert(at, new) => {
            let at = place(at, bytes);
            bytes.splice(at..at, new);
        }
    }
}

/// Runs `target` on its corpus, and on changed copies that are the same in each run.
fn replay(name: &str, target: fn(&[u8])) {
    let seeds = corpus(name);
    seeds.iter().for_each(|seed| target(seed));
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[0x5A; 32]);
    let mutated = (select(seeds), proptest::collection::vec(change(), 1..4));
    let result = TestRunner::new_with_rng(config, rng).run(&mutated, |(mut bytes, changes)| {
        changes.into_iter().for_each(|change| apply(&mut bytes, change));
        target(&bytes);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn requests_do_no_harm() {
    replay("hg_request", fuzzing::request);
}

#[test]
fn introductions_do_no_harm() {
    replay("hg_introduction", fuzzing::introduction);
}

#[test]
fn responses_do_no_harm() {
    replay("hg_response", fuzzing::response);
}

#[test]
fn descriptors_do_no_harm() {
    replay("hg_descriptor", fuzzing::descriptor);
}

#[test]
fn values_do_no_harm() {
    replay("hg_values", fuzzing::values);
}

#[test]
fn tokens_of_strangers_do_no_harm() {
    replay("capability", margo::capability::fuzzing::capabilities);
}
