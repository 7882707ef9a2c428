//! Requests that wait at a gate.

use std::sync::Arc;

use hg::{Registration, RequestHandle};

use crate::observe::monitor::Moment;
use crate::operation::token::Token;

/// A request that was read and is not handled yet; in a gate it waits as such.
pub(crate) struct Waiting {
    pub(crate) request: RequestHandle<Token>,
    /// The data is the `RegisteredRpc`.
    pub(crate) registration: Arc<Registration>,
    /// It has its place of its RPC, if that has a gate, and waits for one in the pool.
    pub(crate) in_own: bool,
    /// The time of its arrival, if that is observed.
    pub(crate) arrived: Option<Moment>,
}
