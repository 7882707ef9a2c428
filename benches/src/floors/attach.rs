//! Rows `floor.attach.*`: one process reads another one's memory (`process_vm_readv`), the floor of
//! a bulk transfer from memory that is not shared.
//!
//! The peer (a target that pulls) reads a plain buffer of the row process (the origin). The kernel
//! looks up and pins every 4 KiB page of the source in each call.

use serde::{Deserialize, Serialize};

use super::memcpy::touched;
use crate::base::failure::{Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::process::child::send;
use crate::process::context::Context;
use crate::process::peer::{self, Task};

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
    pub(crate) fn of(buffer: &[u8]) -> Self {
        let address = buffer.as_ptr().expose_provenance() as u64;
        Self { pid: std::process::id(), address, bytes: buffer.len() }
    }
}

/// Lets any process of this user attach to us, where the kernel's security module asks for consent.
/// A kernel without it needs none, so refusal is no error; attaching reports what matters.
pub(crate) fn allow_attach() {
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}

/// The reader's side.
#[derive(Debug)]
pub(crate) struct Attach {
    source: Source,
    into: Vec<u8>,
}

impl Attach {
    /// Makes a reader with a buffer as large as the source.
    pub(crate) fn new(source: Source) -> Self {
        Self { source, into: touched(source.bytes) }
    }

    /// One round of reads.
    ///
    /// # Errors
    ///
    /// When the kernel refuses or the memory is gone.
    pub(crate) fn round(&mut self, effort: Effort, samples: &mut Samples) -> Result<()> {
        effort.each(samples, || self.read())
    }

    fn read(&mut self) -> Result<()> {
        let pid = libc::pid_t::try_from(self.source.pid)
            .map_err(|_| Failure::new("attaching: no process id"))?;
        let mut done = 0;
        while done < self.into.len() {
            let rest = &mut self.into[done..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let remote = libc::iovec {
                iov_base: std::ptr::without_provenance_mut(self.source.address as usize + done),
                iov_len: rest.len(),
            };
            // SAFETY:
            // - local memory: one live, exclusively borrowed slice of exactly that length;
            // - remote memory: the kernel checks the addresses in the other process;
            // - both counts are 1, the number of elements behind each pointer.
            let count = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
            match usize::try_from(count) {
                Ok(0) => return Err(Failure::new("attaching: the memory has ended")),
                Ok(count) => done += count,
                Err(_) => {
                    let error = std::io::Error::last_os_error();
                    return Err(Failure::new(format!("attaching to process {pid}: {error}")));
                }
            }
        }
        Ok(())
    }
}

/// The peer's part: reads, and sends its samples.
///
/// # Errors
///
/// When the kernel refuses.
pub(crate) fn peer(source: Source, effort: Effort) -> Result<()> {
    let (mut samples, mut attach) = (effort.room(1), Attach::new(source));
    for _ in 0..effort.rounds {
        attach.round(effort, &mut samples)?;
    }
    send(&samples.raw())
}

/// The row.
pub(crate) fn run(context: &Context, bytes: usize) -> Result<Figure> {
    let effort = Effort::transfers(context.quick, bytes);
    let buffer = touched(bytes);
    allow_attach();
    let task = Task::Attach { source: Source::of(&buffer), effort };
    let mut peer = peer::start(context, task)?;
    let raw: Vec<u64> = peer.receive("the peer's samples", context.deadline)?;
    peer.finish(context.deadline)?;
    drop(buffer);
    Ok(Figure::median(Samples::from_raw(raw).bandwidth(bytes), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there() {
        let buffer: Vec<u8> = (0..10_000).map(|n| n as u8).collect();
        let mut attach = Attach::new(Source::of(&buffer));
        attach.read().unwrap();
        assert_eq!(attach.into, buffer);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let source = Source { pid: std::process::id(), address: 0, bytes: 8 };
        let error = Attach::new(source).read().unwrap_err();
        assert!(error.to_string().starts_with("attaching to process"), "{error}");
    }
}
