//! See `margo::capability::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| margo::capability::fuzzing::capabilities(data));
