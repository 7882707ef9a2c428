//! The reasons why an RPC is not registered.

use hg::ProviderId;

/// The reason why an RPC was not registered.
///
/// ```
/// use margo::{Instance, RegisterError, Rpc};
///
/// const GET: Rpc<(), u32> = Rpc::new("get");
///
/// let service = Instance::builder("na+sm://").start()?;
/// service.serve(GET).function(|()| 1)?;
/// match service.serve(GET).function(|()| 2) {
///     Err(RegisterError::Exists { rpc, .. }) => assert_eq!(rpc, "get"),
///     other => panic!("the first one stays: {other:?}"),
/// }
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// This provider id already has an RPC of that name here. The first registration stays, until
    /// [`Instance::deregister`](crate::Instance::deregister), or the drop of its
    /// [`Provider`](crate::Provider).
    #[error(
        "RPC `{rpc}` is already registered for provider {provider}; deregister it, or drop the \
         provider whose it is, first"
    )]
    Exists {
        /// The RPC's name.
        rpc: &'static str,
        /// The provider.
        provider: ProviderId,
    },
    /// Another name has the same 32-bit hash, so calls could not be told apart. Rename one.
    #[error("RPC `{rpc}` and `{other}` have the same id {id:#x}; rename one of them")]
    Collision {
        /// The RPC's name.
        rpc: &'static str,
        /// The name that is registered.
        other: String,
        /// The id on the wire.
        id: u64,
    },
    /// The instance does not listen, so no peer could call it. Set `listen`.
    #[error("RPC `{rpc}` cannot be served: this instance does not listen (set `margo.listen`)")]
    NotListening {
        /// The RPC's name.
        rpc: &'static str,
    },
    /// The pool's access is `private`, but the progress ULT, which spawns handlers, runs elsewhere.
    /// Give the pool another access, or let the same execution stream run both.
    #[error(
        "RPC `{rpc}` cannot be served in pool `{pool}`: the pool is private, and progress runs on \
         another xstream; define it as mpsc or mpmc"
    )]
    PrivatePool {
        /// The RPC's name.
        rpc: &'static str,
        /// The pool.
        pool: String,
    },
    /// The pool's access is `private`, and requests may wait for a place there
    /// ([`Overload::Wait`](margo_config::Overload::Wait)): the unit that answers one lets the next
    /// one in, which other execution streams and threads may not do there. Give the pool another
    /// access, or have requests beyond the bound refused. A pool of the configuration with such
    /// bounds is not made private, whatever its access says; this error is about bounds of the
    /// RPC's own, and about pools that the program has made.
    #[error(
        "RPC `{rpc}` cannot be served in pool `{pool}`: the pool is private, and requests that \
         wait for a place are let in by whoever answers, wherever that is; define the pool as mpsc \
         or mpmc, or have requests beyond the bound refused (`overload`: `busy`)"
    )]
    PrivateWait {
        /// The RPC's name.
        rpc: &'static str,
        /// The pool.
        pool: String,
    },
    /// The RPC has a priority ([`Serve::priority`](crate::Serve::priority)), and the pool is of a
    /// kind that knows none. Use a pool of the kind `prio_wait`, or one of the program's own.
    #[error(
        "RPC `{rpc}` cannot be served in pool `{pool}` with a priority: its kind knows none; make \
         it prio_wait, or use a pool of the program's own that orders by priority"
    )]
    NoPriorities {
        /// The RPC's name.
        rpc: &'static str,
        /// The pool.
        pool: String,
    },
    /// The pool is part of another instance, whose execution streams these handlers would run on
    /// unseen: no bound of this instance would count them, and no layout show them. Use a pool of
    /// this instance, or a child instance of that one
    /// ([`InstanceBuilder::parent`](crate::InstanceBuilder::parent)).
    #[error(
        "RPC `{rpc}` cannot be served in pool `{pool}`: the pool belongs to another instance; use \
         a pool of this one ({own}), or make this instance a child of that one"
    )]
    OtherRuntime {
        /// The RPC's name.
        rpc: &'static str,
        /// The pool.
        pool: String,
        /// Names of the pools that there are.
        own: String,
    },
    /// The instance has no pool of the name that the service gives (`#[margo(pool = "…")]`). Add it
    /// to the configuration.
    #[error("RPC `{rpc}` is for pool `{pool}`, which the instance does not have (it has: {own})")]
    NoPool {
        /// The RPC's name.
        rpc: &'static str,
        /// The name of the pool.
        pool: String,
        /// Names of the pools that there are.
        own: String,
    },
    /// The pool has been removed from the instance.
    #[error("RPC `{rpc}` cannot be served in pool `{pool}`: the pool has been removed")]
    PoolRemoved {
        /// The RPC's name.
        rpc: &'static str,
        /// The pool.
        pool: String,
    },
    /// The RPC is not served here under this provider id.
    #[error("RPC `{rpc}` is not registered for provider {provider}")]
    NotRegistered {
        /// The RPC's name.
        rpc: &'static str,
        /// The provider.
        provider: ProviderId,
    },
    /// The caller is a tasklet, or a destructor of a ULT that unwinds, and pools, xstreams or
    /// progress are being changed, for which it must not wait: the change may wait for its xstream.
    #[error(
        "RPC `{rpc}` cannot be registered or moved now: a tasklet, or a ULT that unwinds, must not \
         wait for the change of pools, xstreams or progress that is under way; try again later"
    )]
    Inline {
        /// The RPC's name.
        rpc: &'static str,
    },
    /// [`finalize`](crate::Instance::finalize) has begun.
    #[error("the instance is shutting down")]
    Closing,
    /// This process is a child that was forked off. The instance is its parent's.
    #[error("this process was forked off: the instance belongs to its parent process")]
    Forked,
}
