//! The parent of a call: the RPC on whose behalf it is made.
//!
//! Each request says in which RPC's handler its call was made; peers use it for statistics by call
//! path. The id of the RPC whose handler runs is the word that ULTs hand on to those that they
//! spawn ([`ult::integration::inherited_word`]), so a call has the same parent wherever in a
//! handler's ULTs it is made. Zero is none, as in C.

use hg::{RpcId, margo};

/// The RPC on whose behalf the caller runs: the one whose handler it is, or whose handler has
/// spawned it, over any number of ULTs and tasklets in between. `None` elsewhere. Calls made here
/// have it as their [`parent`](crate::Handle::parent), whichever instance makes them.
///
/// An OS thread that a handler starts is not part of it: see [`set_current_rpc_id`].
///
/// ```
/// assert_eq!(margo::monitor::current_rpc_id(), None);
/// ```
///
/// Counterpart: `margo_get_current_rpc_id`.
#[must_use]
pub fn current_rpc_id() -> Option<RpcId> {
    from_word(ult::integration::inherited_word())
}

/// Says on behalf of which RPC the caller, and what it spawns from now on, runs; for a ULT or OS
/// thread that works through requests which others have taken. Handlers need not call it, nor what
/// they spawn.
///
/// Counterpart: `margo_set_current_rpc_id`, which user ULTs in a handler have to call.
pub fn set_current_rpc_id(id: Option<RpcId>) {
    ult::integration::set_inherited_word(id.map_or(0, |id| id.0));
}

/// Returns the parent that a request names, if any.
pub(crate) fn from_wire(id: u64) -> Option<RpcId> {
    if RpcId(id) == margo::NO_PARENT { None } else { from_word(id) }
}

fn from_word(word: u64) -> Option<RpcId> {
    (word != 0).then_some(RpcId(word))
}
