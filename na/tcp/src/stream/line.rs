//! The line to a peer: its socket, and the key by which records on it are sealed, if they are.

use std::io;
use std::os::fd::OwnedFd;

use na_core::memory::copy_bytes;
use na_tls::{Plaintext, Sealer};
use prim::sync::Arc;

use crate::system::socket::{self, Pieces};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Line {
    socket: Arc<OwnedFd>,
    sealer: Option<Box<Sealer>>,
}

impl Line {
    pub(crate) fn new(socket: Arc<OwnedFd>, sealer: Option<Box<Sealer>>) -> Self {
        Self { socket, sealer }
    }

    pub(crate) fn into_sealer(self) -> Option<Box<Sealer>> {
        self.sealer
    }

    /// Sends as much of `pieces` as the kernel takes, or has room for as records: these leave with
    /// the next calls ([`waiting`](Self::waiting)).
    ///
    /// # Safety
    ///
    /// Each piece must be valid for reads until this returns, but that pages may be gone where the
    /// pieces say so. It may change meanwhile.
    pub(crate) unsafe fn send(&mut self, pieces: &mut Pieces<'_>) -> io::Result<usize> {
        match &mut self.sealer {
            // SAFETY: the contract of this function.
            None => unsafe { socket::send(&self.socket, pieces) },
            Some(sealer) => sealer.send(&self.socket, &mut Cursor { pieces, piece: 0, skip: 0 }),
        }
    }

    /// Bytes of records that the kernel has not taken.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.sealer.as_ref().map_or(0, |sealer| sealer.waiting())
    }

    /// Hands the kernel the records that are waiting.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        match &mut self.sealer {
            Some(sealer) => sealer.push(&self.socket),
            None => Ok(()),
        }
    }

    /// Sends bytes of which a fresh connection takes all at once.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut pieces = Pieces::new();
        let _ = pieces.push_slice(bytes);
        // SAFETY: the only piece is a slice that lives during the call.
        match unsafe { self.send(&mut pieces) }? {
            sent if sent == bytes.len() && self.waiting() == 0 => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

/// Pieces of which some bytes are sealed.
struct Cursor<'a, 'room> {
    pieces: &'a Pieces<'room>,
    /// The piece that is next, and how many bytes of it are done.
    piece: usize,
    skip: usize,
}

// SAFETY: `copy_to` writes `len` bytes, or fails.
unsafe impl Plaintext for Cursor<'_, '_> {
    fn left(&self) -> usize {
        let all = self.pieces.as_slice()[self.piece..].iter();
        all.map(|piece| piece.iov_len).sum::<usize>() - self.skip
    }

    unsafe fn copy_to(&mut self, to: *mut u8, len: usize) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let piece =
                self.pieces.as_slice().get(self.piece).ok_or(io::ErrorKind::InvalidInput)?;
            let part = (piece.iov_len - self.skip).min(len - done);
            let from = piece.iov_base.cast::<u8>().wrapping_add(self.skip);
            // SAFETY: less than `len`, and so inside what the caller vouches for.
            let to = unsafe { to.add(done) };
            let is_there = match self.pieces.may_be_gone() {
                // SAFETY:
                // - source: part of a piece, valid for reads by the contract of `Line::send`, the
                //   only place that makes a cursor;
                // - destination: `part` more bytes that the caller vouches for, elsewhere.
                true => unsafe { copy_bytes::copy_checked(from, to, part) },
                false => {
                    // SAFETY: as above, and the source is there.
                    unsafe { copy_bytes::copy_shared(from, to, part) };
                    true
                }
            };
            if !is_there {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            done += part;
            self.skip += part;
            if self.skip == piece.iov_len {
                (self.piece, self.skip) = (self.piece + 1, 0);
            }
        }
        Ok(())
    }
}
