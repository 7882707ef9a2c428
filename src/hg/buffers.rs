//! Message buffers that wait for their next use, and payloads that give theirs back.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use na::{Endpoint, MsgBuf};

/// Buffers kept for reuse; more are freed.
const KEPT_MAX: usize = 1024;

/// Locks, also when a thread panicked meanwhile: every section under a lock of this module tree
/// leaves whole state behind, and none runs foreign code.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool of message buffers of one endpoint.
pub(super) struct Buffers {
    endpoint: Arc<dyn Endpoint>,
    kept: Mutex<Vec<MsgBuf>>,
}

impl Buffers {
    pub(super) fn new(endpoint: Arc<dyn Endpoint>) -> Arc<Self> {
        Arc::new(Self { endpoint, kept: Mutex::new(Vec::new()) })
    }

    /// An empty buffer.
    pub(super) fn take(&self) -> MsgBuf {
        let kept = lock(&self.kept).pop();
        kept.unwrap_or_else(|| self.endpoint.alloc_msg())
    }

    /// Takes a buffer back.
    pub(super) fn put(&self, mut buf: MsgBuf) {
        buf.clear();
        let mut kept = lock(&self.kept);
        if kept.len() < KEPT_MAX {
            kept.push(buf);
        }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} kept)", lock(&self.kept).len())
    }
}

/// The bytes behind a message's headers, wherever they are.
#[derive(Debug)]
pub(super) enum Payload {
    /// There are none, or they were given back.
    None,
    /// In the message itself, from that byte on.
    Message(MsgBuf, usize),
    /// They did not fit into the message.
    Overflow(Vec<u8>),
}

impl Payload {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Message(buf, start) => buf.as_slice().get(*start..).unwrap_or_default(),
            Self::Overflow(bytes) => bytes,
        }
    }

    /// Gives the buffer back.
    pub(super) fn recycle(&mut self, buffers: &Buffers) {
        if let Self::Message(buf, _) = std::mem::replace(self, Self::None) {
            buffers.put(buf);
        }
    }
}
