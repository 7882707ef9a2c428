//! Timers, and progress that spins only when it is needed.

mod timers;
mod when_needed;
