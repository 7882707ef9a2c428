//! Rows `floor.attach.*`: one process reads another one's memory (`process_vm_readv`), the floor of
//! a bulk transfer from memory that is not shared.
//!
//! The peer (a target that pulls) reads a plain buffer of the row process (the origin). The kernel
//! looks up and pins every 4 KiB page of the source in each call.

use std::io::Error;

use rustix::process::{PTracer, set_ptracer};
use serde::{Deserialize, Serialize};

use super::memcpy::touched;
use crate::base::{Effort, Figure, Result, Samples, ensure};
use crate::process::Context;
use crate::process::child::send;

/// Memory of another process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Source {
    pid: u32,
    address: u64,
    bytes: usize,
}

impl Source {
    /// `buffer` of this process, for a peer that attaches. The buffer must stay where it is;
    /// reading it after its end gives the peer an error or other bytes, never harm.
    ///
    /// Lets any process of this user attach to us, where the kernel's security module asks for
    /// consent. A kernel without it needs none, so refusal is no error; attaching reports what
    /// matters.
    pub(crate) fn of(buffer: &[u8]) -> Self {
        let _ = set_ptracer(PTracer::Any);
        let address = buffer.as_ptr().expose_provenance() as u64;
        Self { pid: std::process::id(), address, bytes: buffer.len() }
    }

    /// A round reads all of it into a buffer as large as the source.
    pub(crate) fn reads(self) -> impl FnMut(&mut Samples) -> Result<()> {
        let mut into = touched(self.bytes);
        move |samples| samples.each(|| self.read(&mut into))
    }

    fn read(&self, into: &mut [u8]) -> Result<()> {
        let (pid, len) = (self.pid, into.len());
        let mut done = 0;
        while done < len {
            let rest = &mut into[done..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let start = std::ptr::without_provenance_mut(self.address as usize + done);
            let remote = libc::iovec { iov_base: start, iov_len: rest.len() };
            // SAFETY: a live local slice of that length, borrowed exclusively; the kernel checks
            // the addresses in the other process; each pointer has one element behind it.
            let count =
                unsafe { libc::process_vm_readv(pid.cast_signed(), &local, 1, &remote, 1, 0) };
            ensure!(count >= 0, "attaching to process {pid}: {}", Error::last_os_error());
            ensure!(count > 0, "attaching: the memory has ended");
            done += count.unsigned_abs();
        }
        Ok(())
    }
}

/// The peer's part: reads, and sends its samples.
///
/// # Errors
///
/// When the kernel refuses.
pub(crate) fn peer(context: &Context, source: Source) -> Result<()> {
    send(&Effort::transfers(context.quick, source.bytes).alone(1, source.reads())?)
}

/// The row.
pub(crate) fn run(context: &Context, bytes: usize) -> Result<Figure> {
    let buffer = touched(bytes);
    let mut peer = context.start_peer(Source::of(&buffer))?;
    let mut samples: Samples = peer.receive("the peer's samples")?;
    peer.finish()?;
    drop(buffer);
    Ok(Figure::median(samples.bandwidth(bytes), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there() {
        let buffer: Vec<u8> = (0..10_000).map(|n| n as u8).collect();
        let mut into = vec![0; buffer.len()];
        Source::of(&buffer).read(&mut into).unwrap();
        assert_eq!(into, buffer);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let source = Source { pid: std::process::id(), address: 0, bytes: 8 };
        let error = source.read(&mut [0; 8]).unwrap_err();
        assert!(error.to_string().starts_with("attaching to process"), "{error}");
    }
}
