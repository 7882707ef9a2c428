//! Instances and processes from start to end: callbacks of the end, parents and children, peers
//! that are killed, endpoints that fail, systems without memory.

mod acceptance;
mod children;
mod endpoint_failure;
mod kill;
mod life_cycle;
mod no_stack;
mod surroundings;
mod weak_instance;
