//! A fabric without margo: the time that its library's own calls take for a message and its answer,
//! and for a transfer, between two processes that poll.
//!
//! Each side opens a bare endpoint of the provider that the transport of that name uses, with
//! nothing on it that a loop of one caller does without: no wait object, one thread. The caller
//! offers its address, the responder [joins](join) and says where it is. Then the two are a
//! [`Channel`].

mod ofi;
mod ucx;

use std::ptr::NonNull;

use na::OpenOptions;
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use crate::base::{Deadline, Doing, OrFail, Result, ensure, fail};

/// A library and what it is to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fabric {
    /// libfabric over TCP.
    OfiTcp,
    /// libfabric over TCP, by the provider that C Mercury takes.
    OfiRxm,
    /// libfabric over shared memory.
    OfiShm,
    /// UCX over TCP.
    UcxTcp,
    /// UCX over shared memory.
    UcxSm,
}

impl Fabric {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::OfiTcp, Self::OfiRxm, Self::OfiShm, Self::UcxTcp, Self::UcxSm];

    /// The word in row ids.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::OfiTcp => "ofi_tcp",
            Self::OfiRxm => "ofi_rxm",
            Self::OfiShm => "ofi_shm",
            Self::UcxTcp => "ucx_tcp",
            Self::UcxSm => "ucx_sm",
        }
    }

    /// Where our endpoints open it.
    pub(crate) fn uri(self) -> &'static str {
        match self {
            Self::OfiTcp => "ofi+tcp://127.0.0.1:0",
            Self::OfiRxm => "ofi+tcp;ofi_rxm://127.0.0.1:0",
            Self::OfiShm => "ofi+shm://",
            // With several devices each look at the network asks them one after the other, in an
            // order that is not the same in both: a system call more for one of them.
            Self::UcxTcp => "ucx+tcp://lo/127.0.0.1:0",
            Self::UcxSm => "ucx+sm://127.0.0.1:0",
        }
    }

    /// Why it cannot be used here, if the machine has no library or device for it.
    pub(crate) fn lacks(self) -> Option<String> {
        match na::open(self.uri(), &OpenOptions::listening(true)) {
            Err(error @ na::Error::Unavailable { .. }) => Some(error.to_string()),
            // Whatever else is wrong is a failure of the row.
            _ => None,
        }
    }

    /// A bare endpoint.
    ///
    /// # Errors
    ///
    /// When the library or the device is missing, or refuses.
    pub(crate) fn open(self) -> Result<Box<dyn Bare>> {
        Ok(match self {
            Self::OfiTcp => Box::new(ofi::Endpoint::open(&ofi::TCP)?),
            Self::OfiRxm => Box::new(ofi::Endpoint::open(&ofi::RXM)?),
            Self::OfiShm => Box::new(ofi::Endpoint::open(&ofi::SHM)?),
            Self::UcxTcp => Box::new(ucx::Endpoint::open("tcp", Some("lo"))?),
            // TCP is among them for the transport's sake, which meets its peers by it.
            Self::UcxSm => Box::new(ucx::Endpoint::open("sm,self,tcp", None)?),
        })
    }
}

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// From the other side's memory.
    Get,
    /// To it.
    Put,
}

/// The operations of a library for one side. One message and one transfer at a time.
pub(crate) trait Bare: Send {
    /// Where the other side reaches this one.
    fn address(&self) -> Result<Vec<u8>>;

    /// Where the other side is.
    fn reach(&mut self, address: &[u8]) -> Result<()>;

    /// Sends a message of at most [`MESSAGE_BYTES_MAX`] bytes, which may still leave afterwards.
    fn send(&mut self, message: &[u8], deadline: Deadline) -> Result<()>;

    /// Moves the network; whether a message has come since one was looked at, which
    /// [`message`](Self::message) then gives.
    fn has_message(&mut self) -> Result<bool>;

    /// The last message, maybe with something behind it.
    fn message(&mut self) -> &[u8];

    /// Lets the other side at `memory`; how it is named there. At most once, before any transfer.
    fn expose(&mut self, memory: Vec<u8>) -> Result<Vec<u8>>;

    /// The exposed memory; between rounds only, when no transfer goes on.
    fn exposed(&mut self) -> &mut [u8];

    /// Transfers use what was exposed here, and there under `name`.
    fn aim(&mut self, name: &[u8]) -> Result<()>;

    /// One transfer, of all of it, until the bytes are in their place.
    fn transfer(&mut self, verb: Verb, deadline: Deadline) -> Result<()>;
}

/// Memory that the other side reads and writes. Behind a pointer: it does so at any time of a
/// round.
struct Memory(NonNull<[u8]>);

// SAFETY: it owns its bytes, which are tied to no thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new(bytes: Vec<u8>) -> Self {
        Self(NonNull::from(Box::leak(bytes.into_boxed_slice())))
    }

    fn ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: leaked by `new`, so valid, and borrowed from nobody else here. The other side
        // touches it in a round only, and then nobody looks (the contract of `Bare::exposed`).
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, once; whoever has registered it ends that before.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Longest message: an address with its kind.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The length of a message, as in the rows that these floors belong to.
const CALL_BYTES: usize = 56;

/// The kind of the first message: the responder says where it is, the caller lets it in.
const JOIN: u8 = 3;

/// The responder's side.
///
/// # Errors
///
/// As for [`Fabric::open`], and when nobody is at `address`.
pub(crate) fn join(fabric: Fabric, address: &[u8], deadline: Deadline) -> Result<Box<dyn Bare>> {
    let mut bare = fabric.open()?;
    bare.reach(address)?;
    let message = [&[JOIN], &bare.address()?[..]].concat();
    ensure!(message.len() <= MESSAGE_BYTES_MAX, "an address is longer than a message");
    bare.send(&message, deadline).doing("telling the caller where we are")?;
    // One message at a time: the first hello shall not meet this one.
    match bare.take(deadline)? {
        JOIN => Ok(bare),
        other => fail!("expected to be let in, got {other}"),
    }
}

/// Waits for the responder without giving the core away.
///
/// # Errors
///
/// When it does not come until the deadline.
pub(crate) fn wait_for_join(bare: &mut Box<dyn Bare>, deadline: Deadline) -> Result<()> {
    let kind = bare.take(deadline).doing("the responder's address")?;
    ensure!(kind == JOIN, "the responder does not say where it is");
    let address = bare.message()[1..].to_vec();
    bare.reach(&address)?;
    bare.put(JOIN, deadline)
}

impl Channel for Box<dyn Bare> {
    #[inline]
    fn put(&mut self, kind: u8, deadline: Deadline) -> Result<()> {
        self.send(&[kind; CALL_BYTES], deadline)
    }

    #[inline]
    fn try_take(&mut self) -> Result<Option<u8>> {
        if !self.has_message()? {
            return Ok(None);
        }
        self.message().first().copied().or_fail("an empty message").map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Runs both sides in one process, over each library and provider that this machine has.
    #[test]
    fn a_round_is_joined_greeted_answered_and_stopped_and_memory_moves() {
        const BYTES: usize = 100_000;
        for fabric in Fabric::ALL {
            if let Some(lacks) = fabric.lacks() {
                println!("SKIPPED: {lacks}");
                continue;
            }
            let deadline = Deadline::after(Duration::from_secs(60));
            let mut caller = fabric.open().unwrap();
            let address = caller.address().unwrap();
            std::thread::scope(|scope| {
                let (tell, told) = std::sync::mpsc::channel();
                let serving = scope.spawn(move || {
                    let mut side = join(fabric, &address, deadline).unwrap();
                    tell.send(side.expose(vec![7; BYTES]).unwrap()).unwrap();
                    side.answer(deadline).unwrap();
                    assert!(side.exposed().iter().all(|byte| *byte == 8), "{fabric:?}: put");
                });
                wait_for_join(&mut caller, deadline).unwrap();
                caller.expose(vec![1; BYTES]).unwrap();
                caller.aim(&told.recv().unwrap()).unwrap();
                caller.wait_for_hello(deadline, std::thread::yield_now).unwrap();
                for _ in 0..3 {
                    caller.round_trip(deadline).unwrap();
                }
                caller.transfer(Verb::Get, deadline).unwrap();
                assert!(caller.exposed().iter().all(|byte| *byte == 7), "{fabric:?}: get");
                caller.exposed().fill(8);
                caller.transfer(Verb::Put, deadline).unwrap();
                caller.stop(deadline).unwrap();
                serving.join().unwrap();
            });
        }
    }
}
