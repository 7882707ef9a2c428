//! A message of 64 bytes over a TCP connection on loopback, there and back, both sides polling; the
//! roles are those of a [`Channel`].

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use super::channel::Channel;
use crate::base::{Deadline, Doing, Result, ensure, fail};

const MESSAGE_BYTES: usize = 64;

/// Waits for one connection without giving the core away; `idle` is called between the attempts.
///
/// # Errors
///
/// When none comes until the deadline.
pub(crate) fn accept(listener: &TcpListener, deadline: Deadline, idle: fn()) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return prepared(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => idle(),
            Err(error) => fail!("accepting: {error}"),
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
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Connection<S = TcpStream> {
    stream: S,
    message: [u8; MESSAGE_BYTES],
    /// Bytes of `message` that are there.
    filled: usize,
}

impl<S> Connection<S> {
    /// Takes a stream from [`accept`] or [`connect`].
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, message: [0; MESSAGE_BYTES], filled: 0 }
    }
}

impl<S: Read + Write + Send> Channel for Connection<S> {
    #[inline]
    fn put(&mut self, kind: u8, _deadline: Deadline) -> Result<()> {
        // Fits an empty socket buffer, and it is empty: one message is under way at a time.
        self.stream.write_all(&[kind; MESSAGE_BYTES]).doing("sending a message")
    }

    #[inline]
    fn try_take(&mut self) -> Result<Option<u8>> {
        match self.stream.read(&mut self.message[self.filled..]) {
            Ok(count) => {
                ensure!(count > 0, "the other side closed the connection");
                self.filled += count;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => fail!("reading a message: {error}"),
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
            caller.wait_for_hello(deadline, std::thread::yield_now).unwrap();
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
