//! See `na::fuzzing::ucx::control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::ucx::control(data));
