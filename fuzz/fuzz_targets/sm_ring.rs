//! See `na::fuzzing::sm::ring`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::sm::ring(data));
