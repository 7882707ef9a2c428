//! A registered RPC: the data that the table of the RPC core (`hg/src/core/registry.rs`) keeps for
//! each.

use std::fmt;
use std::sync::Arc;

use hg::{Core, ProviderId, Registration, RpcId};
use na::shared::Shared;
use ult::{PoolRef, Priority};

use crate::admission::rules::Callers;
use crate::admission::waiting::Waiting;
use crate::dispatch::member::Member;
use crate::instance::reply::Reply;
use crate::observe::monitor::Serving;
use crate::operation::token::Token;

/// The code that runs on the handler's ULT: decodes, calls the user's function, sees to an answer.
pub(crate) type Run = dyn Fn(&mut Shared<Reply>) + Send + Sync;

/// The gate of a pool or of an RPC.
pub(crate) type RequestGate = crate::admission::gates::Gate<Waiting>;

/// A registered RPC.
#[derive(Clone)]
pub(crate) struct RegisteredRpc {
    pub(crate) rpc: &'static str,
    pub(crate) provider: ProviderId,
    pub(crate) pool: PoolRef,
    /// Which of the instance's pools that is, if it is one.
    pub(crate) pool_index: Option<usize>,
    pub(crate) run: Arc<Run>,
    pub(crate) instance: crate::WeakInstance,
    /// The callers that rules let in, if there are rules.
    pub(crate) callers: Option<Arc<Callers>>,
    /// The gate of the pool.
    pub(crate) gate: Arc<RequestGate>,
    /// The own.
    pub(crate) own_gate: Option<Arc<RequestGate>>,
    pub(crate) tasklet: bool,
    pub(crate) one_way: bool,
    pub(crate) priority: Priority,
    /// A request that names one of so many parts is for the shard that has it. 0: there are none.
    pub(crate) parts: u8,
    /// A handler may start at another shard than that of its request (`margo.share_from`).
    pub(crate) stealable: bool,
    /// The membership of a provider's RPC. The last field: it goes after the handler.
    pub(crate) member: Option<Member>,
}

impl RegisteredRpc {
    /// Returns whether its requests take the short way in: there is no gate but the pool's plain
    /// one.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.own_gate.is_none() && self.gate.is_plain()
    }

    /// Returns whether a request for that part, which has arrived at the shard of `core`, is
    /// another one's, or nobody's.
    #[inline]
    pub(crate) fn is_not_for(&self, part: u8, core: &Core<Token>) -> bool {
        part != core.shard() || part >= self.parts
    }

    /// As the monitors are told of it. `core`: that by which the request has come.
    #[inline]
    pub(crate) fn serving<'a>(&'a self, core: &'a Core<Token>) -> Serving<'a> {
        let endpoint = &**core.endpoint();
        Serving { rpc: self.rpc, provider: self.provider, pool: &self.pool, endpoint }
    }

    /// The registration of this entry, and of those of shards 1, 2 and so on that have their own.
    pub(crate) fn registration(self, id: RpcId, others: Vec<Self>) -> Registration {
        let registration = Registration::with_id(id, self.rpc);
        let registration = if self.one_way { registration.no_response() } else { registration };
        let others = others.into_iter().map(|other| Arc::new(other) as _).collect();
        registration.data_of_shards(Arc::new(self), others)
    }
}

impl fmt::Debug for RegisteredRpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredRpc({} of provider {})", self.rpc, self.provider)
    }
}
