//! The reasons why pools and xstreams of a running instance stay as they are.

use crate::error::{LayoutErrors, chain};

/// Why a pool, an xstream, a shard or the progress ULT was not added, removed, moved or found.
/// Nothing has changed then, unless the variant says otherwise.
///
/// ```
/// use margo::elasticity::ElasticityError;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// match instance.layout().find_pool("work") {
///     Ok(pool) => println!("{}", pool.index),
///     Err(ElasticityError::NoSuchPool { have, .. }) => assert!(have.contains("__primary__")),
///     Err(error) => println!("{error}"),
/// }
/// let removed = instance.layout().remove_pool("__primary__");
/// assert!(matches!(removed, Err(ElasticityError::PoolInUse { by, .. }) if !by.is_empty()));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElasticityError {
    /// The description is wrong, or the layout with it would be: everything that is, by path.
    #[error("the description is not valid:\n{0}")]
    Description(#[from] margo_config::Errors),
    /// This machine does not have what the description asks for.
    #[error("the description does not work on this machine:\n{0}")]
    Layout(LayoutErrors),
    /// There is no such pool, or not any more.
    #[error("this instance has no pool {wanted} (it has: {have})")]
    NoSuchPool {
        /// The name, index or handle that was given.
        wanted: String,
        /// The pools that there are.
        have: String,
    },
    /// There is no such xstream, or not any more.
    #[error("this instance has no xstream {wanted} (it has: {have})")]
    NoSuchXstream {
        /// The name, index or handle that was given.
        wanted: String,
        /// The xstreams that there are.
        have: String,
    },
    /// The instance knows this pool or xstream already.
    #[error("{what} `{name}` is already part of this instance")]
    Known {
        /// "pool" or "xstream".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// It is not of this instance's runtime, or has been removed there.
    #[error(
        "{what} `{name}` is not part of this instance's runtime: make it with `Instance::runtime`"
    )]
    NotOurs {
        /// "pool" or "xstream".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The pool is in use. Deregister the RPC or give it another pool, drop the hold, disarm the
    /// timer, remove the xstream or move progress, as `by` says.
    #[error("pool `{pool}` is in use by {}", by.join(", "))]
    PoolInUse {
        /// The pool.
        pool: String,
        /// All users of it.
        by: Vec<String>,
    },
    /// The pool holds units that have not ended, or are to start later, or were called off where no
    /// xstream drops them. Wait for them. Only those that have not started can be moved elsewhere,
    /// with [`transfer_pool_content`](crate::groups::InstanceLayout::transfer_pool_content).
    #[error(
        "pool `{pool}` has {units} units that have not ended: wait for them; those that have not \
         started can be moved (`transfer_pool_content`)"
    )]
    PoolNotEmpty {
        /// The pool.
        pool: String,
        /// Runnable, running and suspended ones.
        units: usize,
    },
    /// The xstream is in use.
    #[error("xstream `{xstream}` is in use by {}", by.join(", "))]
    XstreamInUse {
        /// The xstream.
        xstream: String,
        /// All users of it.
        by: Vec<String>,
    },
    /// No other xstream runs a pool that is in use. Add an xstream for it first, or end the use, as
    /// for [`PoolInUse`](Self::PoolInUse).
    #[error("xstream `{xstream}` alone runs pool `{pool}`, which is in use by {}", by.join(", "))]
    XstreamNeeded {
        /// The xstream.
        xstream: String,
        /// The pool.
        pool: String,
        /// All users of that pool.
        by: Vec<String>,
    },
    /// The primary xstream ends with its instance.
    #[error("xstream `{xstream}` is the primary one and stays as long as its instance")]
    Primary {
        /// The xstream.
        xstream: String,
    },
    /// No xstream runs the pool. Add one first.
    #[error("pool `{pool}` is run by no xstream: add one first")]
    Unserved {
        /// The pool.
        pool: String,
    },
    /// A private pool belongs to one xstream, and only that one may spawn into it; so progress,
    /// which spawns handlers, cannot move to it or away from it.
    #[error(
        "pool `{pool}` is private, so the progress ULT cannot {what}; define it as mpsc or mpmc"
    )]
    PrivatePool {
        /// The pool.
        pool: String,
        /// The change that the progress ULT cannot make.
        what: &'static str,
    },
    /// There is no such shard, or not any more.
    #[error(
        "there is no shard {shard}: this instance has {count}, and removed ones keep their number"
    )]
    NoSuchShard {
        /// The shard that was asked for.
        shard: usize,
        /// How many there are.
        count: usize,
    },
    /// Shard 0 stays as long as its instance: it stands for what concerns all of them.
    #[error("shard 0 stays as long as its instance; others can be removed")]
    FirstShard,
    /// The shard has state that only it touches.
    #[error("shard {shard} is in use by {}", by.join(", "))]
    ShardInUse {
        /// The shard.
        shard: usize,
        /// All users of it.
        by: Vec<String>,
    },
    /// The network or the RPC layer cannot be had once more; a transport without groups of
    /// endpoints, or of fixed ones, cannot change them (see `docs/transports.md`).
    #[error("the network does not take the change: {0}")]
    Shard(#[source] hg::HgError),
    /// The caller is the progress ULT itself, which cannot wait for its own move.
    #[error("the progress ULT cannot wait for its own move: do it from another ULT")]
    OwnProgress,
    /// The runtime refuses the new pool or xstream.
    #[error("cannot add it: {}", chain(&**.0))]
    Start(#[source] Box<ult::StartError>),
    /// The runtime refuses to remove it; for an xstream that is still busy after 30 s, or alone
    /// runs a pool with units that are to start later, it says with what. It goes on as before.
    #[error("cannot remove it: {}", chain(&**.0))]
    Remove(#[source] Box<ult::LayoutError>),
    /// The units cannot move.
    #[error("cannot move the units: {0}")]
    Transfer(#[from] ult::MigrateError),
    /// The progress ULT cannot be made in that pool.
    #[error("cannot make a progress ULT: {0}")]
    Spawn(#[from] ult::SpawnError),
    /// The system has no memory for the stack of a progress ULT in that pool. One that was to
    /// move goes on where it was. Give the pool smaller stacks, or the process more address space.
    #[error(
        "cannot make a progress ULT in pool `{pool}`: no memory for a stack of {bytes} bytes; make \
         a pool with a smaller stack_bytes, or raise the limits of the process (ulimit -v, \
         vm.max_map_count)"
    )]
    NoStack {
        /// The pool.
        pool: String,
        /// Stack size of its ULTs, bytes.
        bytes: usize,
    },
    /// A tasklet, such as the inline callback of a timer, must not wait, and a change of the layout
    /// waits for xstreams and for other changes.
    #[error("a tasklet must not wait for a change of pools, xstreams or progress; use a ULT")]
    Inline,
    /// [`finalize`](crate::Instance::finalize) has begun.
    #[error("the instance is shutting down")]
    Closing,
    /// This process is a child that was forked off. The instance is its parent's.
    #[error("this process was forked off: the instance belongs to its parent process")]
    Forked,
    /// The instance is a [child](crate::InstanceBuilder::parent): pools and xstreams are its
    /// parent's. Change them there.
    #[error("this instance runs in the pools of its parent; change them there")]
    Child,
    /// The instance runs in a [runtime](crate::InstanceBuilder::runtime) of the program's. Make
    /// pools and xstreams there, and tell the instance with
    /// [`add_external_pool`](crate::groups::InstanceLayout::add_external_pool) and
    /// [`add_external_xstream`](crate::groups::InstanceLayout::add_external_xstream).
    #[error(
        "this instance runs in a runtime of the program's: make pools and xstreams there, and make \
         them known with `add_external_pool` and `add_external_xstream`"
    )]
    Program,
}

impl From<ult::StartError> for ElasticityError {
    fn from(error: ult::StartError) -> Self {
        Self::Start(Box::new(error))
    }
}

impl From<ult::LayoutError> for ElasticityError {
    fn from(error: ult::LayoutError) -> Self {
        Self::Remove(Box::new(error))
    }
}
