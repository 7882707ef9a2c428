//! Errors of what an instance has of its own: providers of its configuration, its end, profiles,
//! timers and published figures.

/// The reason why providers could not be started from the configuration, or do what was asked of
/// them.
///
/// ```
/// use margo::errors::ProviderError;
///
/// let document = r#"{ "margo": { "providers": [{ "type": "kv", "provider_id": 1 }] } }"#;
/// let instance = margo::init(document)?;
/// // This program has no component of that type.
/// match instance.start_providers(&[]) {
///     Ok(providers) => println!("{} run", providers.names().count()),
///     Err(ProviderError::UnknownType { type_name, .. }) => assert_eq!(type_name, "kv"),
///     Err(error) => println!("{error}"),
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// No component of that type was offered to `start_providers`.
    #[error("provider `{name}`: no component of type `{type_name}` (this program has: {known})")]
    UnknownType {
        /// The provider's name in the configuration.
        name: String,
        /// The type in the configuration.
        type_name: String,
        /// The types that there are.
        known: String,
    },
    /// The `dependencies` are not what its type needs, or the address of one cannot be looked up.
    #[error("provider `{name}` of type `{type_name}`: dependencies: {reason}")]
    Dependency {
        /// The provider's name in the configuration.
        name: String,
        /// The type.
        type_name: String,
        /// Which, and what is wrong with it.
        reason: String,
    },
    /// The component refused to start. Providers that had been started were stopped.
    #[error("provider `{name}` of type `{type_name}` did not start: {source}")]
    Start {
        /// The provider's name in the configuration.
        name: String,
        /// The type.
        type_name: String,
        /// The component's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No provider of that name runs.
    #[error("no provider `{name}` was started (there are: {known})")]
    UnknownName {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// Other providers work with it.
    #[error("provider `{name}` is needed by {by}: stop these first, or say that it is `needed`")]
    Needed {
        /// The name that was asked for.
        name: String,
        /// The others.
        by: String,
    },
    /// A running provider could not do what was asked of it.
    #[error("provider `{name}` of type `{type_name}`: {what}: {source}")]
    Asked {
        /// The provider's name.
        name: String,
        /// The type.
        type_name: String,
        /// `drain`, `move to another pool`, `snapshot` or `restore`.
        what: &'static str,
        /// The provider's error; [`Unsupported`](crate::component::Unsupported) if its type cannot.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The failure of a step while an instance was shutting down. The instance is shut down as far as
/// possible.
///
/// ```
/// use std::sync::mpsc;
///
/// use margo::errors::FinalizeError;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let (sender, result) = mpsc::channel();
/// let callback = instance.on_finalize(move |own| {
///     let _ = sender.send(own.wait_for_finalize());
/// })?;
/// callback.keep();
/// match instance.finalize_and_wait() {
///     Ok(()) => println!("all has ended"),
///     Err(FinalizeError::Stuck(ults)) => println!("these go on: {ults}"),
///     Err(error) => println!("{error}"),
/// }
/// // The callback could not wait for the end, which waits for the callback.
/// assert!(matches!(result.recv()?, Err(FinalizeError::OwnCallback)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FinalizeError {
    /// Some ULTs did not end: the network is closed, but their execution streams still run.
    #[error("finalized, but some ULTs did not end: {0}")]
    Stuck(String),
    /// The thread that ends the instance could not be started.
    #[error("cannot start the thread that finalizes the instance: {0}")]
    Thread(String),
    /// A step of the end panicked, which the log tells of. The network is closed; execution streams
    /// end when the instance is not held any more.
    #[error("finalizing panicked, see the log; the network is closed")]
    Panicked,
    /// This process is a child that was forked off. The instance is its parent's and goes on there;
    /// nothing of it works here but reading its configuration and statistics, and dropping it.
    #[error("this process was forked off: the instance belongs to its parent process")]
    Forked,
    /// A tasklet, such as the inline callback of a timer, must not wait; nothing was waited for.
    #[error("a tasklet must not wait for the end of an instance; use a ULT")]
    Inline,
    /// The caller is a callback of [`on_prefinalize`](crate::Instance::on_prefinalize) or
    /// [`on_finalize`](crate::Instance::on_finalize), or other code that the end runs, such as the
    /// destructor of a handler or a monitor: of this instance or of a child of it. The end waits
    /// for it, and so it must not wait for the end. Nothing was waited for.
    #[error(
        "the end of the instance waits for this callback, which must not wait for it; leave that \
         to another thread"
    )]
    OwnCallback,
}

/// The reason why a profile was not started.
///
/// ```
/// use margo::errors::ProfileError;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// instance.monitoring().start_profiling()?;
/// instance.finalize_and_wait()?;
/// assert_eq!(instance.monitoring().start_profiling(), Err(ProfileError::Ended));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The execution streams cannot be recorded, because they are being recorded already: by the
    /// parent instance, or by the program with [`ult::Runtime::record`].
    #[error(transparent)]
    Recording(#[from] ult::RecordError),
    /// [`finalize`](crate::Instance::finalize) has come to the point where profiles end.
    #[error("the instance has ended: it is not recorded any more")]
    Ended,
    /// This process is a child that was forked off. The profile is its parent's.
    #[error("this process was forked off: the profile belongs to its parent process")]
    Forked,
}

/// The reason why a timer is not armed, or was not waited for.
///
/// ```
/// use std::time::Duration;
///
/// use margo::errors::TimerError;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let timer = instance.timer(|_| println!("an hour has passed"));
/// timer.start(Duration::from_secs(3600))?;
/// assert!(matches!(timer.start(Duration::ZERO), Err(TimerError::Armed)));
/// instance.finalize_and_wait()?;
/// assert!(matches!(timer.start(Duration::ZERO), Err(TimerError::Closing)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// It is armed already and stays so. [`Timer::restart`](crate::timers::Timer::restart) arms it
    /// anew.
    #[error("the timer is armed already; disarm or restart it")]
    Armed,
    /// [`finalize`](crate::Instance::finalize) has come to the point where timers end.
    #[error("the instance is shutting down")]
    Closing,
    /// A period of zero. Give the time between two runs.
    #[error("the period of a timer is zero; give the time between two runs")]
    ZeroPeriod,
    /// The pool is private to its execution stream, and the caller runs elsewhere. Arm the timer
    /// there, or give the pool another access; without a pool of its own, a timer takes any that is
    /// not private, and the instance has none.
    #[error(
        "cannot arm the timer: pool `{pool}` is private to its xstream; arm it there, or define \
         the pool as mpsc"
    )]
    PrivatePool {
        /// The pool.
        pool: String,
    },
    /// No unit could be made for it: its pool has been removed or has shut down.
    #[error("cannot arm the timer: {0}")]
    Spawn(#[source] ult::SpawnError),
    /// The timer is disarmed, but its callback cannot wait for its own end. Use
    /// [`disarm`](crate::timers::Timer::disarm) or [`Tick::stop`](crate::timers::Tick::stop) there.
    #[error("disarmed; but the callback of a timer cannot wait for its own end")]
    OwnCallback,
    /// The timer is disarmed, but a tasklet, such as the inline callback of a timer, must not wait
    /// for the callback that runs. Use [`disarm`](crate::timers::Timer::disarm) there.
    #[error("disarmed; but a tasklet must not wait for the callback that runs")]
    Inline,
    /// This process is a child that was forked off; the timer is its parent's.
    #[error("this process was forked off: the timer belongs to its parent process")]
    Forked,
}

/// A finalize callback came too late: the instance has gone past the point at which it would run.
///
/// ```
/// use margo::errors::StageOver;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// instance.finalize_and_wait()?;
/// assert_eq!(instance.on_finalize(|_| {}).unwrap_err(), StageOver);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the instance is shutting down and has gone past this stage; the callback will not run")]
pub struct StageOver;

/// The reason why a table of figures cannot be
/// [published](crate::groups::InstanceMonitoring::publish).
///
/// ```
/// use margo::Instance;
/// use margo::errors::PublishError;
/// use margo::metrics::{Column, TableSpec};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let columns = [Column::gauge("waiting", "Units that wait.")];
/// let taken = TableSpec { name: "margo_pool", labels: ["pool"], columns };
/// let refused = instance.monitoring().publish(&taken, Vec::new);
/// assert!(matches!(refused, Err(PublishError::Name { .. })));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Prometheus or margo does not allow a name. Use letters `a` to `z`, digits and `_`, 64 at
    /// most, with a letter first, each name once; not `margo_` and `process_`; and `_total` at the
    /// end of counters alone.
    #[error(
        "table `{table}`: `{name}` cannot be its name, or that of a label or column (letters, \
         digits and _, each once, not margo_ nor process_, _total at the end of counters alone)"
    )]
    Name {
        /// The table.
        table: String,
        /// The name.
        name: String,
    },
    /// Somebody else has published figures of these names, with other labels or columns.
    #[error("table `{table}`: figures of these names are published, with another head")]
    Differs {
        /// The table.
        table: String,
    },
}
