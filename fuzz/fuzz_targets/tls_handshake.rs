//! See `na::fuzzing::tls::handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::tls::handshake(data));
