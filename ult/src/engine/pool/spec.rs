//! The description of a pool: its kind, the access to it, and the trait of pools that the program
//! makes.

use std::fmt;

use crate::base::work_deque::WorkDeque;
use crate::engine::model::interfaces::{Access, Pool, PoolKind};
use crate::engine::model::pool::{FifoPool, PoolShared, Queue};
use crate::engine::pool::custom::CustomPool;
use crate::engine::pool::earliest::EarliestPool;
use crate::engine::pool::prio::PrioPool;
use crate::stack::memory::StackClass;

/// The description of a pool to be made; see [`RuntimeBuilder::pool`](crate::RuntimeBuilder::pool).
///
/// ```
/// use ult::{PoolKind, PoolSpec, Runtime, XstreamSpec};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main").kind(PoolKind::PrioWait).stack_bytes(64 * 1024))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .start()?;
/// let pool = runtime.pool("main").expect("defined above");
/// assert_eq!((pool.kind(), pool.stack_bytes()), (PoolKind::PrioWait, 64 * 1024));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PoolSpec {
    pub(crate) name: String,
    pub(crate) kind: PoolKind,
    pub(crate) access: Access,
    pub(crate) stack_bytes: Option<usize>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) custom: Option<Box<dyn Pool>>,
}

impl PoolSpec {
    /// A pool of the default kind ([`PoolKind::FifoWait`]).
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: PoolKind::default(),
            access: Access::default(),
            stack_bytes: None,
            numa_node: None,
            custom: None,
        }
    }

    /// A pool of the user's own making.
    pub fn custom(name: impl Into<String>, pool: Box<dyn Pool>) -> Self {
        Self { kind: PoolKind::Custom, custom: Some(pool), ..Self::new(name) }
    }

    /// Chooses the kind. Without effect on a custom pool.
    #[must_use]
    pub fn kind(mut self, kind: PoolKind) -> Self {
        if self.custom.is_none() && kind != PoolKind::Custom {
            self.kind = kind;
        }
        self
    }

    /// Promises which parties will use the pool. Default: [`Access::Mpmc`], no promise.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Stack size in bytes of ULTs that are spawned into this pool, unless the spawn says
    /// otherwise. Default: that of the runtime.
    #[must_use]
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// NUMA node whose memory the stacks of this pool's ULTs shall use. Default: the node of the
    /// core that touches a stack first. If the system refuses, that is warned about once, and the
    /// default applies.
    #[must_use]
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }
}

impl PoolSpec {
    /// Makes the pool, for this index; `stack_bytes` is the size of stacks where it says no other.
    pub(crate) fn build(self, index: usize, stack_bytes: usize) -> PoolShared {
        let queue = match (self.custom, self.kind) {
            (Some(custom), _) => Queue::Object(Box::new(CustomPool::new(&self.name, custom))),
            (None, PoolKind::PrioWait) => Queue::Object(Box::new(PrioPool::default())),
            (None, PoolKind::EarliestFirst) => Queue::Object(Box::new(EarliestPool::default())),
            (None, PoolKind::RandWs) => Queue::Deque(WorkDeque::new()),
            (None, _) => Queue::Fifo(FifoPool::new()),
        };
        let class = StackClass::new(self.stack_bytes.unwrap_or(stack_bytes), self.numa_node);
        PoolShared::new(&self.name, index, (self.kind, self.access), queue, class)
    }
}

impl fmt::Debug for PoolSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSpec")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("access", &self.access)
            .field("stack_bytes", &self.stack_bytes)
            .field("numa_node", &self.numa_node)
            .finish_non_exhaustive()
    }
}
