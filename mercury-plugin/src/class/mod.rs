//! The objects behind Mercury's pointers: a class, its contexts, addresses, operations and memory.
//!
//! - Imports: `c`, `settings`.
//! - Reading order: this file (a class) · `context.rs` (how a sleeper is woken) · `op.rs`
//!   (operations and their ends) · `address.rs` · `memory.rs`.

use std::sync::mpsc::{RecvTimeoutError, channel};
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

/// How long memory is waited for that a peer still uses when it is taken back; shorter in the tests
/// of this file, in which the peer has stopped.
const RELEASE_WAIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// How long a look at the network is put off while memory is waited for.
const RELEASE_PAUSE: Duration = Duration::from_micros(200);

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
    pub(crate) fn poll(&self, poller: Option<&Context>) -> Result<usize, Status> {
        if let Some(context) = poller {
            context.looks();
        }
        let mut own = 0;
        let polled = self.endpoint.poll(BUDGET, &mut |completion| {
            // SAFETY: the endpoint hands back what `op.rs` has given to it, each once.
            own += usize::from(unsafe { op::ended(self, completion, poller) });
        });
        self.look_after_others(poller);
        match polled {
            Ok(_) => Ok(own),
            Err(error) => Err(broken(&error)),
        }
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
                let (tell, told) = channel();
                // The other side is gone when nobody waits any more.
                memory.revoke(move |_| tell.send(()).unwrap_or_default());
                told
            }
        };
        let began = Instant::now();
        let status = loop {
            match told.recv_timeout(RELEASE_PAUSE) {
                Ok(()) => return Ok(()),
                // Another thread's look may give it back just as well.
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    tracing::error!(
                        "memory that was deregistered stays with a peer that has stopped in the \
                         midst of a transfer: it must never be freed"
                    );
                    break Status::Busy;
                }
            }
            match self.poll(None) {
                Ok(_) if began.elapsed() <= RELEASE_WAIT => {}
                Ok(_) => {
                    tracing::error!(
                        "memory that was deregistered is still in use by a peer, which has stopped \
                         in the midst of a transfer: it must not be freed"
                    );
                    break Status::Busy;
                }
                Err(status) => {
                    tracing::error!("memory that was deregistered cannot be taken back");
                    break status;
                }
            }
        };
        own.replace(Lending::Ending(told));
        Err(status)
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
            std::thread::sleep(RELEASE_PAUSE);
        }
    }
}

#[cold]
fn broken(error: &Error) -> Status {
    tracing::error!(%error, "the network does not work any more");
    Status::from(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c::mercury::OLDER;
    use na::{Access, Completion, Memory, OpId, RawSegment, Transfer};

    /// So much that it does not fit into the buffers of a connection.
    const BYTES: usize = 64 << 20;

    /// Memory of a program into which a peer has begun to write, and the peer, which has stopped.
    fn stopped_peer(class: &Class, program: &mut [u8]) -> (OwnMem, Arc<dyn Endpoint>) {
        let segment = RawSegment { ptr: program.as_mut_ptr(), len: program.len() };
        let own = OwnMem::new([segment].into_iter(), Access::WriteOnly.bits().into()).unwrap();
        // SAFETY: each test takes it back, and uses the memory only then.
        unsafe { own.register(&*class.endpoint) }.unwrap();
        let peer = na::open("na+tcp://", &OpenOptions::listening(false)).unwrap();
        let to = peer.lookup(class.endpoint.self_addr().uri()).unwrap();
        let description = class.endpoint.mem_to_bytes(&own.get().unwrap());
        let transfer = Transfer {
            local: peer.register(Memory::from_vec(vec![7; BYTES]), Access::ReadOnly).unwrap(),
            local_offset: 0,
            remote: peer.mem_from_bytes(&description).unwrap(),
            remote_offset: 0,
            len: BYTES as u64,
        };
        peer.put(OpId(1), &to, transfer).unwrap();
        let mut first = [0];
        while first == [0] {
            peer.poll(1, &mut drop).unwrap();
            class.poll(None).unwrap();
            assert!(own.get().unwrap().read_at(0, &mut first));
        }
        (own, peer)
    }

    #[test]
    fn memory_that_a_stopped_peer_writes_is_taken_back_when_it_goes_on_or_ends() {
        let class = Class::open("na+tcp://", &OpenOptions::listening(true), &OLDER).unwrap();
        for goes_on in [true, false] {
            let mut program = vec![0; BYTES];
            let (own, peer) = stopped_peer(&class, &mut program);
            for _ in 0..2 {
                assert_eq!(class.take_back(&own), Err(Status::Busy));
            }
            // SAFETY: it is refused.
            assert_eq!(unsafe { own.register(&*class.endpoint) }, Err(Status::Busy));
            if goes_on {
                std::thread::scope(|scope| {
                    let goes_on = scope.spawn(|| {
                        let mut ended = false;
                        while !ended {
                            let mut end = |end| ended = matches!(end, Completion::Transfer { .. });
                            peer.poll(1, &mut end).unwrap();
                        }
                    });
                    while class.take_back(&own).is_err() {}
                    while !goes_on.is_finished() {
                        class.poll(None).unwrap();
                    }
                });
            } else {
                drop(peer);
                assert_eq!(class.take_back(&own), Ok(()));
            }
            assert_eq!(class.take_back(&own), Ok(()), "nothing is lent any more");
            program.fill(1);
        }
        class.close();
    }
}
