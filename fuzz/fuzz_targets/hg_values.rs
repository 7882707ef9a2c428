//! See `margo::hg::fuzzing::values`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| margo::hg::fuzzing::values(data));
