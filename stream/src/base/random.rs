//! Numbers that nobody guesses.

use rustix::rand::{GetRandomFlags, getrandom};

/// A number that others cannot guess, and which does not come twice.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    let mut done = 0;
    while done < bytes.len() {
        // Fails only for reasons that are over at the next attempt: signals.
        done += getrandom(&mut bytes[done..], GetRandomFlags::empty()).unwrap_or(0);
    }
    u64::from_le_bytes(bytes)
}
