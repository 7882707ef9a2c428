//! Requests before their handlers run: bounds on those in hand, the order in which they run, and
//! requests whose origin has ended meanwhile.

mod bounds;
mod moved_requests;
mod origin_gone;
mod priorities;
mod successor;
mod support;
