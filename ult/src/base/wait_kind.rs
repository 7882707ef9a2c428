//! Kinds of waits: reports and dumps name them, so that a program that hangs can be understood.

use std::fmt;

/// The kind of wait of a ULT or a thread, named after the object or event that it waits for.
///
/// ```
/// use ult::{DumpOptions, UltState, WaitKind};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT with the name `waiter` waits for an eventual.
/// let dump = runtime.dump(&DumpOptions::new().stacks(false));
/// let UltState::Blocked { kind, .. } = dump.ults[0].state else { panic!("{dump}") };
/// assert_eq!(kind, WaitKind::Eventual);
/// assert_eq!(kind.to_string(), "eventual");
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum WaitKind {
    /// [`Mutex`](crate::Mutex).
    Mutex,
    /// [`ReentrantMutex`](crate::ReentrantMutex).
    ReentrantMutex,
    /// Shared access to a [`RwLock`](crate::RwLock).
    RwLockRead,
    /// Exclusive access to a [`RwLock`](crate::RwLock).
    RwLockWrite,
    /// A notify of a [`Condvar`](crate::Condvar).
    Condvar,
    /// The value of an [`Eventual`](crate::Eventual).
    Eventual,
    /// The last arrival at a [`CountDown`](crate::CountDown).
    CountDown,
    /// Permits of a [`Semaphore`](crate::Semaphore).
    Semaphore,
    /// The other parties of a [`Barrier`](crate::Barrier).
    Barrier,
    /// An initialisation by another party ([`OnceCell`](crate::OnceCell)).
    Once,
    /// Room in a [`channel`](crate::wait::channel).
    ChannelSend,
    /// An item of a [`channel`](crate::wait::channel).
    ChannelRecv,
    /// The first of several ([`wait_any`](crate::wait_any)).
    Select,
    /// The end of a ULT.
    Join,
    /// The units of a [`scope`](crate::scope()).
    Scope,
    /// The waker of a future ([`block_on`](crate::block_on())).
    Future,
    /// A time.
    Sleep,
    /// An unpark.
    Park,
    /// An event from outside, while nothing else is runnable.
    Idle,
    /// The end of a closure on a thread ([`blocking`](crate::blocking())).
    Blocking,
}

impl WaitKind {
    /// In the order of their numbers.
    #[cfg(not(loom))]
    pub(crate) const ALL: [Self; 20] = [
        Self::Mutex,
        Self::ReentrantMutex,
        Self::RwLockRead,
        Self::RwLockWrite,
        Self::Condvar,
        Self::Eventual,
        Self::CountDown,
        Self::Semaphore,
        Self::Barrier,
        Self::Once,
        Self::ChannelSend,
        Self::ChannelRecv,
        Self::Select,
        Self::Join,
        Self::Scope,
        Self::Future,
        Self::Sleep,
        Self::Park,
        Self::Idle,
        Self::Blocking,
    ];

    /// The kind with this number; the last one if there is none.
    #[cfg(not(loom))]
    pub(crate) fn from_u8(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Idle)
    }

    /// The name that [`Display`](fmt::Display) prints.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::ReentrantMutex => "reentrant mutex",
            Self::RwLockRead => "rwlock (read)",
            Self::RwLockWrite => "rwlock (write)",
            Self::Condvar => "condvar",
            Self::Eventual => "eventual",
            Self::CountDown => "countdown",
            Self::Semaphore => "semaphore",
            Self::Barrier => "barrier",
            Self::Once => "once",
            Self::ChannelSend => "channel (send)",
            Self::ChannelRecv => "channel (recv)",
            Self::Select => "select",
            Self::Join => "join",
            Self::Scope => "scope",
            Self::Future => "future",
            Self::Sleep => "sleep",
            Self::Park => "park",
            Self::Idle => "idle",
            Self::Blocking => "blocking",
        }
    }
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::WaitKind;

    #[test]
    fn numbers_and_kinds_correspond() {
        for (number, kind) in (0u8..).zip(WaitKind::ALL) {
            assert_eq!(kind as u8, number);
            assert_eq!(WaitKind::from_u8(number), kind);
        }
    }
}
