//! See `margo_config::fuzzing::document`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| margo_config::fuzzing::document(data));
