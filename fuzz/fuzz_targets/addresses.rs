//! See `na::fuzzing::addresses`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::addresses(data));
