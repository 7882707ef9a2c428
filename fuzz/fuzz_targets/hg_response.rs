//! See `margo::hg::fuzzing::response`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| margo::hg::fuzzing::response(data));
