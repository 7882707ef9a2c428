//! See `na::fuzzing::sm::handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::sm::handshake(data));
