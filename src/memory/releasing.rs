//! Exposed memory on its way back to its owner: [`Releasing`].
//!
//! The key of the memory is gone, so no transfer begins there any more. A transfer that had begun
//! still has the memory, and its peer may be stopped. Each wait here has a limit or ends with the
//! instance, and none loses the memory.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use na::LocalMem;
use ult::{Eventual, Selectable, wait_any};

use crate::memory::buffer::{Back, revoke};
use crate::memory::exposed::{Exposable, owner_of};

/// The network of an instance, whose end is waited for.
pub(crate) trait NetworkEnds: Send + Sync {
    /// Returns two events; once either has come, no poll gives anything back any more.
    fn network_ends(&self) -> [&Eventual<()>; 2];
}

/// Exposed memory that its owner wants back, while transfers that had begun still use it: what
/// [`Exposed::release_timed`](crate::Exposed::release_timed) gives if they do not end in time.
/// Peers are refused already.
///
/// It owns the memory. Dropped, it frees the memory when the last of those transfers is over. To
/// get the memory, wait on, as often as need be.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use margo::{Access, Instance};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let exposed = instance.expose(vec![7; 1000], Access::ReadOnly)?;
/// let bytes = match exposed.release_timed(Duration::from_secs(1)) {
///     Ok(bytes) => bytes,
///     // A peer that is stopped has it. Something else could be done before the next attempt.
///     Err(releasing) => releasing.wait_timed(Duration::from_secs(60))?,
/// };
/// # assert_eq!(bytes[999], 7);
/// # instance.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "it owns the memory: wait on, or drop it to have the memory freed later"]
pub struct Releasing<B> {
    back: Arc<Back>,
    len: u64,
    /// Not a count of the instance, which may end meanwhile.
    ends: Weak<dyn NetworkEnds>,
    owner: PhantomData<fn() -> B>,
}

impl<B: Exposable> Releasing<B> {
    /// Takes the key back.
    pub(crate) fn begin(memory: LocalMem, ends: Weak<dyn NetworkEnds>) -> Self {
        let len = memory.len();
        Self { back: revoke(memory), len, ends, owner: PhantomData }
    }

    /// Waits until no peer uses the memory, and gives it back. A ULT suspends, an OS thread parks;
    /// a ULT that is cancelled meanwhile drops this.
    ///
    /// # Errors
    ///
    /// The value itself when the instance has ended and a peer that is stopped in the midst of a
    /// copy still has the memory, when it [is lost](Self::is_lost), and at once in a tasklet, which
    /// cannot wait. Once the instance has ended, such a wait returns at once, also while a clone of
    /// the instance is still held. A later one gives the memory back if the peer has gone on; a
    /// loop of waits should pause in between.
    pub fn wait(self) -> Result<B, Self> {
        self.wait_until(None)
    }

    /// As [`wait`](Self::wait), for at most `limit` from now.
    ///
    /// # Errors
    ///
    /// As `wait`, and when the limit is over.
    pub fn wait_timed(self, limit: Duration) -> Result<B, Self> {
        // A limit beyond all clocks is none.
        self.wait_until(Instant::now().checked_add(limit))
    }

    /// Returns whether the memory never comes back: a fabric could not end its registration, or the
    /// endpoint is gone while a peer that is stopped was copying, and they may go on using the
    /// memory. It stays where it is for good; the log has the cause.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let lost = |back: &std::sync::Mutex<Option<_>>| {
            back.lock().unwrap_or_else(PoisonError::into_inner).is_none()
        };
        self.back.try_get().is_some_and(lost)
    }

    /// Returns whether waiting would not wait.
    pub(crate) fn is_over(&self) -> bool {
        self.back.is_ready()
    }

    fn wait_until(self, deadline: Option<Instant>) -> Result<B, Self> {
        if !self.back.is_ready() && !ult::is_tasklet() {
            // Without it nobody is left who could hold the memory up.
            let network = self.ends.upgrade();
            let ends = network.as_ref().map(|network| network.network_ends());
            let mut objects: Vec<&dyn Selectable> = vec![&*self.back];
            objects.extend(ends.into_iter().flatten().map(|end| end as &dyn Selectable));
            wait_any(&objects, deadline);
        }
        let back = self.back.try_get();
        let memory =
            back.and_then(|back| back.lock().unwrap_or_else(PoisonError::into_inner).take());
        memory.map(owner_of).ok_or(self)
    }
}

impl<B: Exposable> fmt::Display for Releasing<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.len;
        if self.is_lost() {
            return write!(
                f,
                "exposed memory of {len} bytes does not come back: the transport could not end its \
                 registration, or a peer that was stopped in the midst of a copy has it; they may \
                 go on using it, so it stays where it is for good (the log has the cause)"
            );
        }
        write!(
            f,
            "exposed memory of {len} bytes is still used by a transfer that had begun before it \
             was released; its peer may be stopped: wait on, or drop this to have the memory freed \
             when the transfer is over"
        )
    }
}

impl<B: Exposable> fmt::Debug for Releasing<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Releasing")
            .field("len", &self.len)
            .field("is_back", &self.back.is_ready())
            .finish_non_exhaustive()
    }
}

impl<B: Exposable> std::error::Error for Releasing<B> {}

#[cfg(test)]
mod tests {
    use na::Memory;

    use super::*;
    use crate::Instance;
    use crate::memory::buffer::GiveBack;

    /// Memory that a peer never lets go of, as far as this instance lives.
    fn held_up(instance: &Instance) -> (Releasing<Vec<u8>>, GiveBack) {
        let back = Arc::new(Back::new());
        let hook = GiveBack::to(&back);
        let ends = Arc::downgrade(instance.inner());
        (Releasing { back, len: 4, ends, owner: PhantomData }, hook)
    }

    #[test]
    fn whoever_waits_is_told_of_the_end_of_the_instance_and_may_go_on() {
        let instance = Instance::builder("na+sm://").listen(false).start().unwrap();
        let (releasing, hook) = held_up(&instance);
        let (other, lost) = held_up(&instance);
        // One in a thread, and one in a ULT, which the end waits for.
        let thread = std::thread::spawn(move || releasing.wait().unwrap_err());
        let ult = instance.layout().rpc_pool().spawn(move || other.wait().unwrap_err()).unwrap();
        instance.finalize_and_wait().unwrap();
        let (mut releasing, mut other) = (thread.join().unwrap(), ult.join().unwrap());
        assert!(!releasing.is_lost() && !other.is_lost());
        drop(instance);
        // The peer has gone on.
        std::thread::spawn(move || hook.with(Memory::from_vec(vec![7; 4])));
        // A wait ends at once as long as somebody else still counts the instance.
        let until = Instant::now() + Duration::from_secs(60);
        let bytes = loop {
            match releasing.wait() {
                Ok(bytes) => break bytes,
                Err(again) => releasing = again,
            }
            assert!(Instant::now() < until, "it does not come back");
            std::thread::yield_now();
        };
        assert_eq!(bytes, [7; 4]);
        // The endpoint has ended before it did.
        std::thread::spawn(move || drop(lost));
        while !other.is_lost() {
            assert!(Instant::now() < until, "nobody is told that it is lost");
            std::thread::yield_now();
            other = other.wait().unwrap_err();
        }
        assert!(other.to_string().contains("does not come back"), "{other}");
    }
}
