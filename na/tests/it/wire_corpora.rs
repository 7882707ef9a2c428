//! The fuzzers' entry points over their seed corpora (`fuzz/corpus`) and over mutations of them,
//! the same in each run: what a fuzzer finds stays found without a fuzzer.

use std::path::PathBuf;

use na::conformance::Random;
use na::fuzzing;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "..", "fuzz", "corpus", target].iter().collect();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

const INTERESTING: [u64; 10] =
    [0, 1, 63, 64, 255, 4096, 65_535, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// A few changes such as a fuzzer makes: bits, numbers, lengths, and pieces of other seeds.
fn mutate(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            2 => {
                let word = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                for (place, byte) in bytes[at..].iter_mut().zip(&word[..width]) {
                    *place = *byte;
                }
            }
            3 => bytes.truncate(at),
            4 => {
                let end = bytes.len().min(at + 1 + random.below(16));
                bytes.drain(at..end);
            }
            5 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let piece = other[from..].iter().take(1 + random.below(64)).copied();
                let piece: Vec<u8> = piece.collect();
                bytes.splice(at..at, piece);
            }
            _ => {
                let end = bytes.len().min(at + 1 + random.below(64));
                bytes.extend_from_within(at..end);
            }
        }
    }
    bytes.truncate(2048);
}

/// Runs `target` on its corpus and on `mutations` changed copies. What fails is printed, to become
/// a file of the corpus.
fn replay(name: &str, mutations: usize, target: fn(&[u8])) {
    let seeds = corpus(name);
    let mut random = Random::new(0x006e_6173_6565_6473);
    let run = |bytes: &[u8]| {
        let result = std::panic::catch_unwind(|| target(bytes));
        assert!(result.is_ok(), "{name} fails for {}", bytes.escape_ascii());
    };
    seeds.iter().for_each(|seed| run(seed));
    for _ in 0..mutations {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        mutate(&mut bytes, &seeds, &mut random);
        run(&bytes);
    }
}

#[test]
fn tcp_frames_do_no_harm() {
    replay("tcp_frames", 10_000, fuzzing::tcp::frames);
}

#[test]
fn tls_handshakes_do_no_harm() {
    replay("tls_handshake", 300, fuzzing::tls::handshake);
}

#[test]
fn tcp_greetings_do_no_harm() {
    replay("tcp_greeting", 20_000, fuzzing::tcp::greeting);
}

#[test]
fn tcp_connections_do_no_harm() {
    replay("tcp_connection", 2_000, fuzzing::tcp::connection);
}

#[test]
fn sm_rings_do_no_harm() {
    replay("sm_ring", 30_000, fuzzing::sm::ring);
}

#[test]
fn sm_requests_do_no_harm() {
    replay("sm_request", 30_000, fuzzing::sm::request);
}

#[test]
fn sm_handshakes_do_no_harm() {
    replay("sm_handshake", 30_000, fuzzing::sm::handshake);
}

#[test]
fn sm_connections_do_no_harm() {
    replay("sm_connection", 2_000, fuzzing::sm::connection);
}

#[test]
fn addresses_do_no_harm() {
    replay("addresses", 20_000, fuzzing::addresses);
}

#[cfg(feature = "ucx")]
#[test]
fn ucx_control_messages_do_no_harm() {
    replay("ucx_control", 30_000, fuzzing::ucx::control);
}

#[cfg(feature = "ofi")]
#[test]
fn ofi_bytes_do_no_harm() {
    replay("ofi_bytes", 30_000, fuzzing::ofi::bytes);
}
