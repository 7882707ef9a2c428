//! The RPC core alone, `margo::hg`, without ULTs: two cores in one thread, Mercury's acceptance
//! cases, sides that die, the fuzzers' corpora, and the examples of `docs/wire.md`.

mod cases;
mod corpora;
mod kill;
mod multi_recv;
mod shards;
mod support;
mod two_cores;
mod wire_doc;
