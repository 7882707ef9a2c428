//! See `na::fuzzing::sm::connection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::sm::connection(data));
