//! The protocol between a proxy and its child: frames of plain values, and descriptors.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::{DeniedReason, Error, RemoteMem};

/// Writes a frame.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn word(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut this = self.word(bytes.len() as u64);
        this.0.extend_from_slice(bytes);
        this
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    pub(super) fn remote(self, remote: &RemoteMem) -> Self {
        let native = remote.native.as_deref();
        self.bytes(&remote.to_bytes()).word(native.is_some().into()).bytes(native.unwrap_or(&[]))
    }

    pub(super) fn result<T>(self, result: Result<T, &Error>) -> Self {
        match result {
            Ok(_) => self.word(0),
            Err(error) => self.error(error),
        }
    }

    fn error(self, error: &Error) -> Self {
        match error {
            Error::BadUri { uri, reason } => self.word(1).text(uri).text(reason),
            Error::Unreachable { peer, reason } => self.word(2).text(peer).text(reason),
            Error::PeerGone { peer, reason } => self.word(3).text(peer).text(reason),
            Error::Protocol { peer, reason } => self.word(4).text(peer).text(reason),
            Error::Denied { peer, reason } => {
                let code = DENIALS.iter().position(|denial| denial == reason).unwrap_or(0);
                self.word(5).text(peer).word(code as u64)
            }
            Error::InvalidArgument(text) => self.word(6).text(text),
            Error::TooLong { len, max } => self.word(7).word(*len as u64).word(*max as u64),
            Error::Canceled => self.word(8),
            Error::Closed => self.word(9),
            other => self.word(10).text(&other.to_string()),
        }
    }

    pub(super) fn send(self, to: &UnixStream) {
        let mut frame = (self.0.len() as u64).to_le_bytes().to_vec();
        frame.extend(self.0);
        (&*to).write_all(&frame).expect("the other process reads");
    }
}

const DENIALS: [DeniedReason; 4] = [
    DeniedReason::NoSuchKey,
    DeniedReason::Access,
    DeniedReason::OutOfRange,
    DeniedReason::CopyFailed,
];

/// Reads a frame.
pub(super) struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    /// The next frame; `None` when the other process has left.
    pub(super) fn receive(from: &UnixStream) -> Option<Self> {
        let mut len = [0; 8];
        (&*from).read_exact(&mut len).ok()?;
        let mut bytes = vec![0; u64::from_le_bytes(len) as usize];
        (&*from).read_exact(&mut bytes).ok()?;
        Some(Self { bytes, at: 0 })
    }

    pub(super) fn word(&mut self) -> u64 {
        let word = self.bytes[self.at..self.at + 8].try_into().expect("8 bytes");
        self.at += 8;
        u64::from_le_bytes(word)
    }

    pub(super) fn flag(&mut self) -> bool {
        self.word() != 0
    }

    pub(super) fn bytes(&mut self) -> Vec<u8> {
        let len = self.word() as usize;
        self.at += len;
        self.bytes[self.at - len..self.at].to_vec()
    }

    pub(super) fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).expect("text")
    }

    pub(super) fn remote(&mut self) -> RemoteMem {
        let remote = RemoteMem::from_bytes(&self.bytes()).expect("a description");
        let (is_native, bytes) = (self.flag(), self.bytes());
        RemoteMem { native: is_native.then(|| bytes.into()), ..remote }
    }

    pub(super) fn result(&mut self) -> Result<(), Error> {
        Err(match self.word() {
            0 => return Ok(()),
            1 => Error::BadUri { uri: self.text(), reason: self.text() },
            2 => Error::Unreachable { peer: self.text(), reason: self.text() },
            3 => Error::PeerGone { peer: self.text(), reason: self.text() },
            4 => Error::Protocol { peer: self.text(), reason: self.text() },
            5 => Error::Denied { peer: self.text(), reason: DENIALS[self.word() as usize] },
            6 => Error::InvalidArgument(self.text()),
            7 => Error::TooLong { len: self.word() as usize, max: self.word() as usize },
            8 => Error::Canceled,
            9 => Error::Closed,
            _ => Error::io("in the other process", std::io::Error::other(self.text())),
        })
    }
}

/// Hands a descriptor over.
pub(super) fn send_fd(to: &UnixStream, fd: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(to, &[IoSlice::new(b"d")], &mut control, SendFlags::NOSIGNAL)
        .expect("hand a descriptor over");
}

/// Takes a descriptor that was handed over.
pub(super) fn recv_fd(from: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(from, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        .expect("a descriptor");
    let fds = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.expect("a descriptor")
}
