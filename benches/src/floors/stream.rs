//! Rows `floor.tcp_get.*` and `floor.tcp_stream.*`: one process reads chunks that the other writes
//! into a TCP connection on loopback, both polling.
//!
//! - `floor.tcp_get.*`: the reader asks for each chunk with 64 bytes, and the writer then writes
//!   it. The floor of a pull over TCP, which is just that.
//! - `floor.tcp_stream.*`: the writer never waits to be asked, so it runs ahead by what the
//!   socket's buffers hold. The row's value is over the whole time; its percentiles are of single
//!   chunks, many of which were there already. It may well be slower than asking: megabytes of
//!   socket buffers do not stay in a cache.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;

use super::memcpy::touched;
use super::tcp;
use super::tls::{self, Stream};
use crate::base::{Deadline, Doing, Effort, Figure, Result, Samples, ensure, fail};
use crate::process::Context;
use crate::process::child::send;

/// When the writer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// When asked.
    Get,
    /// Always.
    Stream,
}

const REQUEST: [u8; 64] = [1; 64];

/// Writes chunks until the reader closes the connection: that is its way to say that it has enough.
///
/// # Errors
///
/// When it stays open past the deadline.
pub(crate) fn write_until_closed(
    mut stream: impl Read + Write,
    style: Style,
    chunk: usize,
    deadline: Deadline,
) -> Result<()> {
    let bytes = touched(chunk);
    let mut request = REQUEST;
    loop {
        if style == Style::Get && !fill(&mut stream, &mut request, deadline)? {
            return Ok(());
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    deadline.check("the reader of the stream")?;
                }
                Err(_) => return Ok(()),
            }
        }
    }
}

/// Fills `into` from `stream`; `false` when the other side has closed it.
fn fill(stream: &mut impl Read, into: &mut [u8], deadline: Deadline) -> Result<bool> {
    let mut filled = 0;
    while filled < into.len() {
        match stream.read(&mut into[filled..]) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                deadline.check("the other side of the stream")?;
            }
            // Closed with chunks on their way to it, or without a word of TLS.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
                ) =>
            {
                return Ok(false);
            }
            Err(error) => fail!("reading a stream: {error}"),
        }
    }
    Ok(true)
}

/// The reader's side of one connection.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Box<dyn Stream>,
    style: Style,
    into: Vec<u8>,
    deadline: Deadline,
}

impl Reader {
    /// Connects to the writer.
    ///
    /// # Errors
    ///
    /// When nobody listens there.
    pub(crate) fn connect(
        address: &str,
        style: Style,
        chunk: usize,
        deadline: Deadline,
    ) -> Result<Self> {
        let stream = Box::new(tcp::connect(address)?);
        Ok(Self { stream, style, into: touched(chunk), deadline })
    }

    /// As [`connect`](Self::connect), with TLS.
    ///
    /// # Errors
    ///
    /// When nobody listens there.
    pub(crate) fn connect_private(
        address: &str,
        style: Style,
        chunk: usize,
        deadline: Deadline,
    ) -> Result<Self> {
        let stream = tls::dial(tcp::connect(address)?, deadline)?;
        Ok(Self { stream, style, into: touched(chunk), deadline })
    }

    /// Reads one chunk.
    ///
    /// # Errors
    ///
    /// When the writer is gone or silent.
    #[inline]
    pub(crate) fn read(&mut self) -> Result<()> {
        if self.style == Style::Get {
            // Fits an empty socket buffer, and it is empty: the last request was answered.
            self.stream.write_all(&REQUEST).doing("asking for a chunk")?;
        }
        let is_open = fill(&mut self.stream, &mut self.into, self.deadline)?;
        ensure!(is_open, "the writer of the stream is gone");
        Ok(())
    }
}

/// The peer's part: reads, and sends its samples.
///
/// # Errors
///
/// When the stream ends early.
pub(crate) fn peer(context: &Context, style: Style, chunk: usize, address: &str) -> Result<()> {
    let mut reader = Reader::connect(address, style, chunk, context.deadline)?;
    let effort = Effort::transfers(context.quick, chunk);
    let samples = effort.alone(1, |samples| samples.each(|| reader.read()))?;
    drop(reader);
    send(&samples)
}

/// The row.
pub(crate) fn run(context: &Context, style: Style, chunk: usize) -> Result<Figure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut peer = context.start_peer(listener.local_addr()?.to_string())?;
    let stream = tcp::accept(&listener, context.deadline, std::hint::spin_loop)?;
    write_until_closed(stream, style, chunk, context.deadline)?;
    let mut samples: Samples = peer.receive("the peer's samples")?;
    peer.finish()?;
    let overall = samples.mean().map(|ns| chunk as f64 * 1e9 / ns);
    let figure = Figure::median(samples.bandwidth(chunk), None);
    Ok(match style {
        Style::Get => figure,
        Style::Stream => Figure { value: overall, ..figure },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn three_chunks(style: Style) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let deadline = Deadline::after(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let stream = tcp::accept(&listener, deadline, std::thread::yield_now).unwrap();
                write_until_closed(stream, style, 10_000, deadline)
            });
            let mut reader = Reader::connect(&address, style, 10_000, deadline).unwrap();
            for _ in 0..3 {
                reader.read().unwrap();
                assert_eq!(reader.into, touched(10_000));
            }
            drop(reader);
            writing.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_reader_gets_chunks_until_it_has_enough() {
        three_chunks(Style::Stream);
        three_chunks(Style::Get);
    }
}
