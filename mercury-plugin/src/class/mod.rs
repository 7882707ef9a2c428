//! The objects behind Mercury's pointers: a class, its contexts, addresses, operations and memory.
//!
//! - Imports: `c`, `settings`.
//! - Reading order: this file (a class) · `context.rs` (how a sleeper is woken) · `op.rs`
//!   (operations and their ends) · `address.rs` · `memory.rs`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use na::{Endpoint, Error, LargeBuffers, OpenOptions};
use prim::fork::Process;
use prim::sync::atomic::{AtomicUsize, Ordering};

use self::context::Context;
use self::memory::{Lending, OwnMem};
use crate::c::mercury::Mercury;
use crate::c::status::Status;

pub(crate) mod address;
pub(crate) mod context;
pub(crate) mod memory;
pub(crate) mod op;

/// Completions that one look at the network reports.
const BUDGET: usize = 64;

/// How long memory is waited for that a peer still uses when it is taken back.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// Buffers of the endpoint for messages of one receive, until they are copied to the program's.
const LARGE_BUFFERS: usize = 4;
const LARGE_BYTES: usize = 256 << 10;

/// A class of Mercury's: an endpoint, and the contexts that use it.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) mercury: &'static Mercury,
    /// For receives of many messages.
    pub(crate) large: LargeBuffers,
    /// Progress never sleeps.
    pub(crate) no_block: bool,
    contexts: Mutex<Vec<Arc<Context>>>,
    /// How many these are.
    several: AtomicUsize,
    process: Process,
}

impl Class {
    pub(crate) fn open(
        uri: &str,
        options: &OpenOptions,
        mercury: &'static Mercury,
    ) -> Result<Self, Error> {
        let endpoint = na::open(uri, options)?;
        let bytes_max = endpoint.limits().unexpected_bytes_max;
        Ok(Self {
            large: LargeBuffers::new(LARGE_BUFFERS, LARGE_BYTES.max(bytes_max), bytes_max),
            no_block: options.no_block || endpoint.wait_fd().is_none(),
            contexts: Mutex::default(),
            several: AtomicUsize::new(0),
            process: Process::current(),
            endpoint,
            mercury,
        })
    }

    /// Refuses to go on in a child that was forked off: connections and memory are its parent's.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Status> {
        if self.process.is_other() { Err(Status::Permission) } else { Ok(()) }
    }

    pub(crate) fn add_context(&self) -> Result<Arc<Context>, Error> {
        let wait_fd = if self.no_block { None } else { self.endpoint.wait_fd() };
        let context = Arc::new(Context::new(wait_fd)?);
        let mut contexts = self.contexts();
        contexts.push(context.clone());
        self.several.store(contexts.len(), Ordering::Relaxed);
        drop(contexts);
        Ok(context)
    }

    /// Forgets a context. Operations that were begun in it end unheard.
    pub(crate) fn remove_context(&self, context: &Arc<Context>) {
        context.retire();
        let mut contexts = self.contexts();
        contexts.retain(|known| !Arc::ptr_eq(known, context));
        self.several.store(contexts.len(), Ordering::Relaxed);
    }

    fn contexts(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Context>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the network once, for `poller`, or for nobody. Returns how many operations of that
    /// context have ended.
    pub(crate) fn poll(&self, poller: Option<&Context>) -> Result<usize, Error> {
        if let Some(context) = poller {
            context.looks();
        }
        let mut own = 0;
        let polled = self.endpoint.poll(BUDGET, &mut |completion| {
            // SAFETY: the endpoint hands back what `op.rs` has given to it, each once.
            own += usize::from(unsafe { op::ended(self, completion, poller) });
        });
        self.look_after_others(poller);
        polled.map(|_| own)
    }

    /// Looks after those who sleep in another context: the look has ended what was announced for
    /// them, so it is announced again, or they are woken.
    fn look_after_others(&self, poller: Option<&Context>) {
        if poller.is_some() && self.several.load(Ordering::Relaxed) < 2 {
            return;
        }
        let contexts = self.contexts();
        let is_own = |context: &Context| poller.is_some_and(|own| std::ptr::eq(own, context));
        let asleep = || contexts.iter().filter(|other| !is_own(other) && other.sleeps());
        if asleep().next().is_some() && !self.endpoint.prepare_wait() {
            asleep().for_each(|other| other.ring());
        }
    }

    /// Takes memory back from peers. When it returns, nobody uses the memory any more, or the error
    /// says that a peer may; then it can be called again.
    pub(crate) fn take_back(&self, own: &OwnMem) -> Result<(), Status> {
        if self.process.is_other() {
            return Ok(());
        }
        let told = match own.replace(Lending::No) {
            Lending::No => return Ok(()),
            Lending::Ending(told) => told,
            Lending::Yes(memory) => {
                let Err(memory) = memory.reclaim() else { return Ok(()) };
                let (tell, told) = std::sync::mpsc::channel();
                // The other side is gone when nobody waits any more.
                memory.revoke(move |_| tell.send(()).unwrap_or_default());
                told
            }
        };
        let began = Instant::now();
        loop {
            // Another thread's look may give it back just as well.
            if told.recv_timeout(Duration::from_micros(200)).is_ok() {
                return Ok(());
            }
            let polled = self.poll(None);
            let status = match polled {
                Ok(_) if began.elapsed() <= RELEASE_WAIT => continue,
                Ok(_) => {
                    tracing::error!(
                        "memory that was deregistered is still in use by a peer, which has stopped \
                         in the midst of a transfer: it must not be freed"
                    );
                    Status::Busy
                }
                Err(error) => {
                    tracing::error!(%error, "memory cannot be taken back");
                    Status::from(&error)
                }
            };
            own.replace(Lending::Ending(told));
            return Err(status);
        }
    }

    /// Ends all operations and connections.
    pub(crate) fn close(&self) {
        if self.process.is_other() {
            return;
        }
        self.contexts().drain(..).for_each(|context| context.retire());
        self.endpoint.close();
        // Each operation ends, unheard, and its memory is let go of.
        let began = Instant::now();
        while self.poll(None).is_ok_and(|_| self.endpoint.keeps_memory()) {
            if began.elapsed() > RELEASE_WAIT {
                tracing::error!(
                    "a peer that has stopped in the midst of a transfer may still use memory of \
                     this program: what was registered must not be freed"
                );
                return;
            }
            std::thread::yield_now();
        }
    }
}
