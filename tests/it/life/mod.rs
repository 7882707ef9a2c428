//! Instances and processes from start to end: callbacks of the end, parents and children, peers
//! that are killed, endpoints that fail, systems without memory, and the examples as users run
//! them.

mod acceptance;
mod children;
mod endpoint_failure;
mod examples;
mod kill;
mod life_cycle;
mod no_stack;
mod surroundings;
mod weak_instance;
