//! A message of 64 bytes over a TCP connection on loopback, there and back, both sides polling.
//!
//! The roles are those of [`lines`](super::lines): the responder says hello when it begins a round,
//! answers each message, and ends the round with the message that says so.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;

const MESSAGE_BYTES: usize = 64;
const CALL: u8 = 0;
const STOP: u8 = 1;
const HELLO: u8 = 2;

/// Waits for one connection without giving the core away.
///
/// # Errors
///
/// When none comes until the deadline. `idle` is called between the attempts and may fail too.
pub(crate) fn accept(
    listener: &TcpListener,
    deadline: Deadline,
    mut idle: impl FnMut(),
) -> Result<TcpStream> {
    listener.set_nonblocking(true).doing("preparing a socket")?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return prepared(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => idle(),
            Err(error) => return Err(Failure::new(format!("accepting: {error}"))),
        }
        deadline.check("the peer's connection")?;
    }
}

/// A connection to `address`, ready for polling.
///
/// # Errors
///
/// When nobody listens there.
pub(crate) fn connect(address: &str) -> Result<TcpStream> {
    prepared(TcpStream::connect(address).doing(&format!("connecting to {address}"))?)
}

fn prepared(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true).doing("preparing a socket")?;
    stream.set_nonblocking(true).doing("preparing a socket")?;
    Ok(stream)
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    message: [u8; MESSAGE_BYTES],
    /// Bytes of `message` that are there.
    filled: usize,
}

impl Connection {
    /// Takes a stream from [`accept`] or [`connect`].
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, message: [0; MESSAGE_BYTES], filled: 0 }
    }

    /// Returns true if the responder has begun to serve.
    ///
    /// # Errors
    ///
    /// When the connection is gone, or it says something else.
    pub(crate) fn greeted(&mut self) -> Result<bool> {
        match self.try_take()? {
            None => Ok(false),
            Some(HELLO) => Ok(true),
            Some(other) => Err(Failure::new(format!("expected a hello, got {other}"))),
        }
    }

    /// One round trip.
    ///
    /// # Errors
    ///
    /// When the answer does not come in time, or the connection is gone.
    #[inline]
    pub(crate) fn round_trip(&mut self, deadline: Deadline) -> Result<()> {
        self.put(CALL)?;
        self.take(deadline)?;
        Ok(())
    }

    /// Ends the responder's round.
    ///
    /// # Errors
    ///
    /// When it does not confirm in time.
    pub(crate) fn stop(&mut self, deadline: Deadline) -> Result<()> {
        self.put(STOP)?;
        self.take(deadline)?;
        Ok(())
    }

    /// Serves one round.
    ///
    /// # Errors
    ///
    /// When no message comes until the deadline, or the connection is gone.
    pub(crate) fn answer(&mut self, deadline: Deadline) -> Result<()> {
        self.put(HELLO)?;
        loop {
            let kind = self.take(deadline)?;
            self.put(kind)?;
            if kind == STOP {
                return Ok(());
            }
        }
    }

    fn put(&mut self, kind: u8) -> Result<()> {
        // Fits an empty socket buffer, and it is empty: one message is under way at a time.
        self.stream.write_all(&[kind; MESSAGE_BYTES]).doing("sending a message")
    }

    fn take(&mut self, deadline: Deadline) -> Result<u8> {
        let mut taken = Ok(None);
        deadline.spin_until("the other side's message", || {
            taken = self.try_take();
            !matches!(taken, Ok(None))
        })?;
        taken?.ok_or_else(|| Failure::new("no message"))
    }

    fn try_take(&mut self) -> Result<Option<u8>> {
        match self.stream.read(&mut self.message[self.filled..]) {
            Ok(0) => return Err(Failure::new("the other side closed the connection")),
            Ok(count) => self.filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(Failure::new(format!("reading a message: {error}"))),
        }
        if self.filled < MESSAGE_BYTES {
            return Ok(None);
        }
        self.filled = 0;
        Ok(Some(self.message[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_round_is_greeted_answered_and_stopped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let deadline = Deadline::after(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let serving =
                scope.spawn(|| Connection::new(connect(&address).unwrap()).answer(deadline));
            let mut caller =
                Connection::new(accept(&listener, deadline, std::thread::yield_now).unwrap());
            while !caller.greeted().unwrap() {
                std::thread::yield_now();
            }
            for _ in 0..3 {
                caller.round_trip(deadline).unwrap();
            }
            caller.stop(deadline).unwrap();
            serving.join().unwrap().unwrap();
            assert!(caller.round_trip(deadline).is_err(), "the other side is gone");
        });
    }

    #[test]
    fn nobody_connects() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = accept(&listener, Deadline::after(Duration::ZERO), || ()).unwrap_err();
        assert!(error.to_string().contains("connection"), "{error}");
    }
}
