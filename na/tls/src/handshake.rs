//! One handshake: bytes of a socket go to rustls and back until both ends have keys.
//!
//! rustls gets one record at a time. So what a peer sends behind its last record of the handshake
//! stays sealed, and is left to the [`Opener`].

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use na_core::Principal;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};

use crate::record::{self, Kernel, Opener, RECORD_BYTES_MAX, Sealer, record_bytes};
use crate::trust::settings::{Sides, server_name};

/// Most bytes that a peer may send in a handshake: some certificates of 2 KiB.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// The alert for a peer that does not speak TLS, but may know what this is (RFC 8446, 6).
const UNEXPECTED_MESSAGE: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];

/// A connection whose ends know each other.
#[derive(Debug)]
pub struct Secured {
    /// Seals what we send.
    pub sealer: Box<Sealer>,
    /// Opens what we receive.
    pub opener: Opener,
    /// Records that have come behind the handshake.
    pub left: Vec<u8>,
    /// The identity that the peer has proven.
    pub principal: Principal,
}

enum Side {
    Dialer(Box<UnbufferedClientConnection>),
    Acceptor(Box<UnbufferedServerConnection>),
}

/// How far a handshake has come.
pub(crate) enum Progress {
    /// It goes on when the socket can be read; or written, if `true`.
    Waits(bool),
    Done(Box<Secured>),
    Failed(Failure),
}

/// Why a handshake came to nothing: texts for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The connection ended, or the system failed: it may go better when it is tried again.
    Ended(String),
    /// One side does not believe the other.
    Refused(String),
}

/// A step of rustls, which is the same on both sides.
enum Step {
    Again,
    /// It needs another record.
    More,
    Finished,
}

/// See the module's documentation.
pub(crate) struct Handshake {
    side: Side,
    sides: Sides,
    address: Option<IpAddr>,
    incoming: Vec<u8>,
    /// Bytes of `incoming` that rustls was shown.
    shown: usize,
    received: usize,
    outgoing: Vec<u8>,
    sent: usize,
    has_spoken: bool,
}

impl Handshake {
    /// Begins to greet the peer that was dialed at `address`.
    pub(crate) fn dial(sides: Sides, address: IpAddr) -> Result<Self, rustls::Error> {
        let name = server_name(address);
        let connection = UnbufferedClientConnection::new(sides.dialer.clone(), name)?;
        Ok(Self::new(Side::Dialer(Box::new(connection)), sides, Some(address)))
    }

    /// Waits for the greeting of a peer that has dialed us from `address`.
    pub(crate) fn accept(sides: Sides, address: Option<IpAddr>) -> Result<Self, rustls::Error> {
        let connection = UnbufferedServerConnection::new(sides.acceptor.clone())?;
        Ok(Self::new(Side::Acceptor(Box::new(connection)), sides, address))
    }

    fn new(side: Side, sides: Sides, address: Option<IpAddr>) -> Self {
        Self {
            side,
            sides,
            address,
            incoming: Vec::new(),
            shown: 0,
            received: 0,
            outgoing: Vec::new(),
            sent: 0,
            has_spoken: false,
        }
    }

    /// Goes on as far as the socket allows.
    pub(crate) fn advance(mut self: Box<Self>, socket: impl AsFd) -> (Progress, Option<Box<Self>>) {
        loop {
            match self.push(&socket) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (Progress::Waits(true), Some(self));
                }
                Err(error) => return (ended(format!("sending failed: {error}")), None),
            }
            let step = match self.step() {
                Ok(step) => step,
                Err(error) => {
                    // The alert that tells the peer why.
                    let _ = self.step();
                    let _ = self.push(&socket);
                    return (refused(error), None);
                }
            };
            let more = match step {
                Step::Again => continue,
                Step::Finished if self.sent < self.outgoing.len() => continue,
                Step::Finished => return (Self::finish(*self), None),
                Step::More => self.show_more(),
            };
            match more {
                Ok(true) => continue,
                Ok(false) => {}
                Err(reason) => {
                    self.outgoing.extend_from_slice(&UNEXPECTED_MESSAGE);
                    let _ = self.push(&socket);
                    return (refused(reason), None);
                }
            }
            match self.pull(&socket) {
                Ok(0) => {
                    let reason = "it ended the connection during the TLS handshake";
                    return (ended(reason), None);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (Progress::Waits(false), Some(self));
                }
                Err(error) => {
                    return (ended(format!("receiving failed: {error}")), None);
                }
            }
        }
    }

    /// Returns whether something was sent since this was asked last.
    pub(crate) fn take_has_spoken(&mut self) -> bool {
        std::mem::take(&mut self.has_spoken)
    }

    fn push(&mut self, socket: impl AsFd) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            match rustix::net::send(&socket, &self.outgoing[self.sent..], flags) {
                Ok(sent) => {
                    self.sent += sent;
                    self.has_spoken = true;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Has rustls see the next record, if all of it is there.
    fn show_more(&mut self) -> Result<bool, String> {
        let whole = record_bytes(&self.incoming[self.shown..])?;
        let Some(len) = whole.filter(|len| self.incoming.len() - self.shown >= *len) else {
            return Ok(false);
        };
        self.shown += len;
        Ok(true)
    }

    fn pull(&mut self, socket: impl AsFd) -> io::Result<usize> {
        if self.received >= HANDSHAKE_BYTES_MAX {
            return Err(io::Error::other("its handshake is too long"));
        }
        let had = self.incoming.len();
        self.incoming.resize(had + RECORD_BYTES_MAX, 0);
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let got = rustix::net::recv(socket, &mut self.incoming[had..], flags);
        let got = got.map(|(got, _)| got);
        self.incoming.truncate(had + got.unwrap_or(0));
        self.received += got.unwrap_or(0);
        Ok(got?)
    }

    fn step(&mut self) -> Result<Step, rustls::Error> {
        let shown = &mut self.incoming[..self.shown];
        let (discard, step) = match &mut self.side {
            Side::Dialer(side) => step(side.process_tls_records(shown), &mut self.outgoing),
            Side::Acceptor(side) => step(side.process_tls_records(shown), &mut self.outgoing),
        };
        self.incoming.drain(..discard);
        self.shown -= discard;
        step
    }

    fn finish(self) -> Progress {
        let Self { side, sides, address, incoming, shown, .. } = self;
        let shown_by = match &side {
            Side::Dialer(side) => (side.peer_certificates(), side.alpn_protocol()),
            Side::Acceptor(side) => (side.peer_certificates(), side.alpn_protocol()),
        };
        if shown_by.1.is_none() {
            return refused("it speaks TLS, but not this protocol inside");
        }
        let principal = sides.principal(shown_by.0, address);
        let secrets = match side {
            Side::Dialer(side) => side
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Kernel::Dialer(kernel))),
            Side::Acceptor(side) => side
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Kernel::Acceptor(kernel))),
        };
        let directions = secrets.and_then(|(secrets, kernel)| record::directions(secrets, kernel));
        match directions {
            Ok((sealer, opener)) => {
                debug_assert_eq!(shown, 0, "rustls has taken all that it was shown");
                let (sealer, left) = (Box::new(sealer), incoming);
                Progress::Done(Box::new(Secured { sealer, opener, left, principal }))
            }
            Err(error) => refused(error),
        }
    }
}

fn ended(reason: impl ToString) -> Progress {
    Progress::Failed(Failure::Ended(reason.to_string()))
}

fn refused(reason: impl ToString) -> Progress {
    Progress::Failed(Failure::Refused(format!("TLS: {}", reason.to_string())))
}

/// Does what rustls wants; also returns how many bytes it has done with.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Vec<u8>,
) -> (usize, Result<Step, rustls::Error>) {
    let step = match status.state {
        Err(error) => Err(error),
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let had = outgoing.len();
            let needed = match data.encode(&mut []) {
                Err(EncodeError::InsufficientSize(wanted)) => wanted.required_size,
                Ok(_) | Err(_) => 0,
            };
            outgoing.resize(had + needed, 0);
            match data.encode(&mut outgoing[had..]) {
                Ok(len) => {
                    outgoing.truncate(had + len);
                    Ok(Step::Again)
                }
                Err(error) => Err(rustls::Error::General(error.to_string())),
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It stays in `outgoing` until it has left.
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::More),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Finished),
        Ok(other) => Err(rustls::Error::General(format!("{other:?} during the handshake"))),
    };
    (status.discard, step)
}
