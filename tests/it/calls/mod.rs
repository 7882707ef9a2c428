//! Calls and their handlers: RPCs that work, RPCs that fail, and RPCs that no caller waits for;
//! callbacks, answers, the ways to serve; deadlines and cancels, alone and through chains of calls.
//!
//! To be read in this order: `rpc`, `errors`, `serve`, `requests`, `deadlines`.

mod answers;
mod callbacks;
mod cancel_chain;
mod chunks;
mod deadlines;
mod deadlines_on_the_way;
mod descriptions;
mod errors;
mod handles;
mod in_place;
mod parent;
mod requests;
mod requests_stress;
mod rpc;
mod serve;
mod services;
