//! See `margo::hg::fuzzing::descriptor`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| margo::hg::fuzzing::descriptor(data));
