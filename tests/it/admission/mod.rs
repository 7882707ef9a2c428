//! Requests before their handlers run: who may call, bounds on those in hand, the order in which
//! they run, and requests whose origin has ended meanwhile.

mod bounds;
mod limits;
mod members;
mod moved_requests;
mod on_behalf;
mod origin_gone;
mod priorities;
mod private;
mod rules;
mod sessions;
mod successor;
mod support;
