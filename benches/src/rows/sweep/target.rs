//! The side that answers.

use std::sync::Arc;

use margo::hg::{Bulk, BulkOp, Core, HgError, RequestHandle, Response, Sink, proc};
use na::{Access, LocalMem};

use super::{BEGIN, BUDGET, CALL, Sweep, What, all_hold, buffers, open};
use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;
use crate::floors::memcpy::touched;
use crate::process::child;

/// The peer's part.
///
/// # Errors
///
/// When the origin falls silent, or an operation fails.
pub(crate) fn peer(sweep: Sweep, deadline: Deadline) -> Result<()> {
    let core = open(sweep, true)?;
    let mut serving = Serving::new(core.clone(), sweep)?;
    child::send(&core.self_addr().uri())?;
    let mut outcome = Ok(0);
    deadline.spin_until("the end of the calls", || {
        outcome = core.poll(BUDGET, &mut serving);
        outcome.is_err() || serving.ended || serving.failed.is_some()
    })?;
    outcome.doing("polling")?;
    serving.failed.take().map_or(Ok(()), Err)?;
    // The last answer may still need our help to leave.
    while !child::finish_asked()? {
        core.poll(BUDGET, &mut serving).doing("polling")?;
        deadline.check("the end of the origin")?;
    }
    core.close();
    Ok(())
}

/// The target. Requests are served where they arrive, as by callbacks.
struct Serving {
    core: Arc<Core<usize>>,
    sweep: Sweep,
    /// The data that is sent, or must arrive.
    data: Vec<u8>,
    /// Where arguments are copied to.
    arguments: Vec<u8>,
    slots: Vec<Slot>,
    ended: bool,
    failed: Option<Failure>,
}

/// The buffers of each call in flight.
struct Slot {
    memory: LocalMem,
    remote: Bulk,
    /// To be answered when its transfer has ended.
    request: Option<RequestHandle<usize>>,
}

impl Serving {
    fn new(core: Arc<Core<usize>>, sweep: Sweep) -> Result<Self> {
        let data = touched(sweep.bytes);
        let memories = match sweep.what {
            What::Rate => Vec::new(),
            What::Read => buffers(&core, sweep, Access::ReadOnly, Some(&data))?,
            What::Write => buffers(&core, sweep, Access::WriteOnly, None)?,
        };
        let slot = |memory| Slot { memory, remote: Bulk::null(), request: None };
        let slots = memories.into_iter().map(slot).collect();
        let arguments = vec![1; sweep.bytes];
        Ok(Self { core, sweep, data, arguments, slots, ended: false, failed: None })
    }

    fn slot(&mut self, number: usize) -> Result<&mut Slot> {
        self.slots.get_mut(number).ok_or_else(|| Failure::new("no buffer of that number"))
    }

    fn serve(&mut self, mut request: RequestHandle<usize>) -> Result<()> {
        if request.id() == BEGIN {
            let told = request.input(|bytes| proc::from_slice::<(u32, Bulk)>(bytes));
            let (number, remote) = told.doing("reading a handle")?;
            self.slot(number as usize)?.remote = remote;
            return answer(request, None);
        }
        if request.id() != CALL {
            self.ended = true;
            let arrived = match self.sweep.what {
                What::Rate => self.arguments == self.data,
                What::Read => true,
                What::Write => self
                    .slots
                    .iter()
                    .all(|slot| all_hold(std::slice::from_ref(&slot.memory), &self.data)),
            };
            return answer(request, Some(arrived));
        }
        if self.sweep.what == What::Rate {
            request.input(|payload| self.take_arguments(payload))?;
            return answer(request, None);
        }
        self.transfer(request)
    }

    fn take_arguments(&mut self, payload: &[u8]) -> Result<()> {
        let parts = payload.split_first_chunk::<4>();
        let parts =
            parts.filter(|(size, _)| u32::from_le_bytes(**size) as usize == self.sweep.bytes);
        match parts {
            Some((_, bytes)) if bytes.len() == self.arguments.len() => {
                self.arguments.copy_from_slice(bytes);
                Ok(())
            }
            _ => Err(Failure::new("arguments of another size")),
        }
    }

    fn transfer(&mut self, mut request: RequestHandle<usize>) -> Result<()> {
        let told = request.input(|bytes| proc::from_slice::<(Bulk, u32, u32)>(bytes));
        let (_, number, size) = told.doing("reading what to transfer")?;
        let (core, what, number) = (self.core.clone(), self.sweep.what, number as usize);
        let op = if what == What::Read { BulkOp::Push } else { BulkOp::Pull };
        let slot = self.slot(number)?;
        let origin = request.origin().clone();
        slot.request = Some(request);
        let started =
            core.transfer(op, &origin, &slot.remote, 0, &slot.memory, 0, size.into(), number);
        started.map(drop).map_err(|failed| failed.0).doing("starting a transfer")
    }

    fn moved(&mut self, number: usize, result: std::result::Result<u64, HgError>) -> Result<()> {
        result.doing("a transfer")?;
        let request = self.slot(number)?.request.take();
        answer(request.ok_or_else(|| Failure::new("nobody waits for the transfer"))?, None)
    }
}

/// Answers; whether that is over at once or later, nothing waits for it.
fn answer(request: RequestHandle<usize>, verdict: Option<bool>) -> Result<()> {
    let encode = |writer: &mut margo::hg::Writer| match verdict {
        Some(verdict) => writer.put(&[u8::from(verdict)]),
        None => Ok(()),
    };
    request.respond(encode, 0).map(drop).map_err(|failed| failed.0).doing("answering")
}

impl Sink<usize> for Serving {
    fn request(&mut self, request: RequestHandle<usize>) {
        self.failed = self.serve(request).err().or(self.failed.take());
    }

    fn response(&mut self, _token: usize, _result: std::result::Result<Response, HgError>) {}

    fn responded(&mut self, _token: usize, result: std::result::Result<(), HgError>) {
        self.failed = result.doing("an answer").err().or(self.failed.take());
    }

    fn bulk(&mut self, token: usize, result: std::result::Result<u64, HgError>) {
        self.failed = self.moved(token, result).err().or(self.failed.take());
    }
}
