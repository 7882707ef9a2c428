//! Message buffers that wait for their next use, and payloads that give theirs back.
//!
//! Each thread keeps some buffers of the cores that it works for, so that taking and giving back
//! touch nothing shared. A thread that takes more than it gives back fetches them from the pool
//! that all threads share, several at a time; one that gives back more brings them there.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use na::{Endpoint, MsgBuf};
use prim::sync::lock;

use crate::memory::spare;

/// Buffers kept for reuse in the shared pool; more are freed.
const KEPT_MAX: usize = 1024;

/// Buffers that a thread keeps of one core.
const MAGAZINE_MAX: usize = 32;

/// Buffers that move between a thread and the pool at a time.
const BATCH: usize = MAGAZINE_MAX / 2;

/// Cores of which a thread keeps buffers; of others it forgets them.
const MAGAZINES: usize = 4;

/// A pool of message buffers of one core.
pub(crate) struct Buffers {
    number: u64,
    /// The room that each kept buffer has.
    bytes: usize,
    endpoint: Arc<dyn Endpoint>,
    kept: Mutex<Vec<MsgBuf>>,
    own: Weak<Self>,
}

/// The buffers of one core that a thread keeps.
#[derive(Default)]
struct Magazine {
    number: u64,
    bufs: Vec<MsgBuf>,
    owner: Weak<Buffers>,
}

thread_local! {
    static MAGAZINES_OF_THREAD: RefCell<Vec<Magazine>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Magazine {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.keep(&mut self.bufs, 0);
        }
    }
}

/// Runs `f` on what this thread keeps of core `number`, if it does; not in a destructor of the
/// thread.
#[inline]
fn with_magazine<R>(number: u64, f: impl FnOnce(&mut Vec<MsgBuf>) -> R) -> Option<R> {
    let kept = |magazines: &RefCell<Vec<Magazine>>| {
        let mut magazines = magazines.try_borrow_mut().ok()?;
        magazines.iter_mut().find(|kept| kept.number == number).map(|kept| f(&mut kept.bufs))
    };
    MAGAZINES_OF_THREAD.try_with(kept).ok().flatten()
}

impl Buffers {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let kept = Mutex::new(Vec::new());
        let limits = endpoint.limits();
        let bytes = limits.unexpected_bytes_max.max(limits.expected_bytes_max);
        Arc::new_cyclic(|own| Self { number, bytes, endpoint, kept, own: own.clone() })
    }

    /// Names this pool for [`put_to`].
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes that fit into one.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// An empty buffer.
    // Not inlined, as everything here that reads a thread-local: its address must not be kept over
    // a switch of stacks.
    #[inline(never)]
    pub(crate) fn take(&self) -> MsgBuf {
        match with_magazine(self.number, Vec::pop) {
            Some(Some(buf)) => buf,
            Some(None) => self.refill(),
            None => self.introduce(),
        }
    }

    /// Takes a buffer back; one in which a request was received, with others or as long as that,
    /// ends.
    #[inline]
    pub(crate) fn put(&self, buf: MsgBuf) {
        if buf.is_part() || buf.capacity() < self.bytes {
            drop(buf);
        } else {
            self.put_whole(buf);
        }
    }

    #[inline(never)]
    fn put_whole(&self, mut buf: MsgBuf) {
        buf.clear();
        let mut buf = Some(buf);
        let kept = with_magazine(self.number, |bufs| {
            bufs.extend(buf.take());
            if bufs.len() > MAGAZINE_MAX {
                self.keep(bufs, BATCH);
            }
        });
        if kept.is_none() {
            self.keep(&mut buf.into_iter().collect(), 0);
        }
    }

    /// Moves all but `stay` buffers to the shared pool.
    #[cold]
    fn keep(&self, bufs: &mut Vec<MsgBuf>, stay: usize) {
        let mut kept = lock(&self.kept);
        let room = KEPT_MAX.saturating_sub(kept.len());
        let surplus = bufs.len().saturating_sub(stay);
        kept.extend(bufs.drain(..surplus.min(room)));
        drop(kept);
        bufs.truncate(stay);
    }

    #[cold]
    fn refill(&self) -> MsgBuf {
        let mut more = {
            let mut kept = lock(&self.kept);
            let from = kept.len().saturating_sub(BATCH);
            kept.split_off(from)
        };
        let first = more.pop();
        if !more.is_empty() {
            with_magazine(self.number, |bufs| bufs.append(&mut more));
        }
        first.unwrap_or_else(|| self.endpoint.alloc_msg())
    }

    /// The first buffer that this thread takes.
    #[cold]
    fn introduce(&self) -> MsgBuf {
        let owner = self.own.clone();
        let bufs = Vec::with_capacity(MAGAZINE_MAX + 1);
        let mut new = Some(Magazine { number: self.number, bufs, owner });
        let forgotten = MAGAZINES_OF_THREAD.try_with(|magazines| {
            let mut magazines = magazines.try_borrow_mut().ok()?;
            let full = magazines.len() >= MAGAZINES;
            let oldest = full.then(|| magazines.remove(0));
            magazines.extend(new.take());
            oldest
        });
        drop(forgotten);
        drop(new);
        self.refill()
    }
}

/// Gives a buffer back to the pool of that number, if this thread works with it.
#[inline(never)]
fn put_to(number: u64, mut buf: MsgBuf) {
    debug_assert!(!buf.is_part(), "a response is received in a buffer of its own");
    buf.clear();
    with_magazine(number, |bufs| {
        // Its own core brings what is too much to the shared pool, when it next gives one back.
        if bufs.len() < 4 * MAGAZINE_MAX {
            bufs.push(buf);
        }
    });
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} kept)", lock(&self.kept).len())
    }
}

/// The bytes behind a message's headers, wherever they are.
#[derive(Debug)]
pub(crate) enum Payload {
    /// There are none, or they were given back.
    None,
    /// In the message itself, from that byte on.
    Message(MsgBuf, usize),
    /// They did not fit into the message.
    Overflow(Vec<u8>),
}

impl Payload {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.as_slice().len()
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Message(buf, start) => buf.as_slice().get(*start..).unwrap_or_default(),
            Self::Overflow(bytes) => bytes,
        }
    }

    /// The message's buffer, which is empty afterwards. Longer payloads are kept for the next ones.
    pub(crate) fn take_buf(&mut self) -> Option<MsgBuf> {
        match std::mem::replace(self, Self::None) {
            Self::Message(mut buf, _) => {
                buf.clear();
                Some(buf)
            }
            Self::Overflow(bytes) => {
                spare::give_filled(bytes);
                None
            }
            Self::None => None,
        }
    }

    /// Gives the buffer back to the pool of that number.
    #[inline]
    pub(crate) fn recycle(&mut self, pool: u64) {
        if let Some(buf) = self.take_buf() {
            put_to(pool, buf);
        }
    }
}
