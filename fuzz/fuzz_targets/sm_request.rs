//! See `na::fuzzing::sm::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::sm::request(data));
