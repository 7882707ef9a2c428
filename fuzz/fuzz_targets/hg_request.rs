//! See `margo::hg::fuzzing::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| margo::hg::fuzzing::request(data));
