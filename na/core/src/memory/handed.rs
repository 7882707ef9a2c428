//! Descriptors that one process of this host hands over to another, which has agreed to that.
//!
//! Who is to get one makes a number that nobody can guess, and tells it to the peer. The peer hands
//! the descriptor over under it ([`Endpoint::hand_over`](crate::Endpoint::hand_over)). What comes
//! under a number that nobody expects is closed, so a peer can make nothing grow.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;

use crate::Error;
use crate::memory::keys::Keys;
use prim::sync::{Mutex, lock};

type Taker = Box<dyn FnOnce(OwnedFd) + Send>;

/// Those that wait, of all endpoints of the process: the number says whose it is.
static EXPECTED: Mutex<BTreeMap<u64, Taker>> = Mutex::new(BTreeMap::new());

/// A descriptor that is waited for, until this is dropped.
///
/// ```
/// use std::sync::mpsc;
///
/// use na_core::memory::handed::{ExpectedDescriptor, arrived};
///
/// let (sender, receiver) = mpsc::channel();
/// let expected = ExpectedDescriptor::new(move |fd| drop(sender.send(fd)))?;
/// let file = std::fs::File::open("/dev/null")?;
/// // What a transport does when it comes.
/// assert!(arrived(expected.number(), file.into()).is_ok());
/// assert!(receiver.try_recv().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ExpectedDescriptor {
    number: u64,
}

impl ExpectedDescriptor {
    /// `take` is called with the descriptor, once at most, by whoever polls the endpoint; it must
    /// not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the system has no random numbers.
    pub fn new(take: impl FnOnce(OwnedFd) + Send + 'static) -> Result<Self, Error> {
        let number = Keys::default().next_key()?;
        lock(&EXPECTED).insert(number, Box::new(take));
        Ok(Self { number })
    }

    /// Returns the number to tell the peer.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ExpectedDescriptor {
    fn drop(&mut self) {
        // Not under the lock: it may own anything.
        let taker = lock(&EXPECTED).remove(&self.number);
        drop(taker);
    }
}

impl fmt::Debug for ExpectedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The number is a secret between the two.
        f.write_str("ExpectedDescriptor(..)")
    }
}

/// Gives a descriptor that has come to who expects it. For transports.
///
/// # Errors
///
/// Nobody does: the descriptor.
pub fn arrived(number: u64, fd: OwnedFd) -> Result<(), OwnedFd> {
    let taker = lock(&EXPECTED).remove(&number);
    match taker {
        Some(take) => {
            take(fd);
            Ok(())
        }
        None => Err(fd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn only_what_is_expected_is_taken_and_once() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let expected = ExpectedDescriptor::new(move |fd| sender.send(fd).unwrap()).unwrap();
        let number = expected.number();
        assert!(arrived(number ^ 1, file()).is_err());
        assert!(arrived(number, file()).is_ok() && arrived(number, file()).is_err());
        assert!(receiver.try_recv().is_ok() && receiver.try_recv().is_err());
    }

    #[test]
    fn what_is_not_expected_any_more_comes_back() {
        let expected = ExpectedDescriptor::new(drop).unwrap();
        let number = expected.number();
        drop(expected);
        assert!(arrived(number, file()).is_err());
    }
}
