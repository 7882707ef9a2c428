//! See `margo::hg::fuzzing::introduction`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| margo::hg::fuzzing::introduction(data));
