//! The side that answers.

use std::sync::Arc;

use margo::hg::{Bulk, BulkOp, Core, HgError, RequestHandle, Response, Sink, Writer, proc};
use na::{Access, LocalMem};

use super::spec::{BEGIN, CALL, Sweep, What};
use crate::base::{Doing, Failure, OrFail, Result, ensure};
use crate::floors::memcpy::touched;
use crate::process::{Context, child};
use crate::rows::net::hg_node::BUDGET;
use crate::rows::net::na_node::holds;

/// The peer's part.
///
/// # Errors
///
/// When the origin falls silent, or an operation fails.
pub(crate) fn peer(context: &Context, sweep: Sweep) -> Result<()> {
    let core = sweep.open(true)?;
    let mut serving = Serving::new(core.clone(), sweep)?;
    child::send(&core.self_addr().uri())?;
    context.deadline.spin_for("the end of the calls", || {
        core.poll(BUDGET, &mut serving).doing("polling")?;
        serving.failed.take().map_or(Ok(serving.ended.then_some(())), Err)
    })?;
    child::poll_until_finish(context.deadline, || {
        core.poll(BUDGET, &mut serving).map(drop).doing("polling")
    })?;
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
            What::Read => sweep.buffers(&core, Access::ReadOnly, Some(&data))?,
            What::Write => sweep.buffers(&core, Access::WriteOnly, None)?,
        };
        let slot = |memory| Slot { memory, remote: Bulk::null(), request: None };
        let slots = memories.into_iter().map(slot).collect();
        let arguments = vec![1; sweep.bytes];
        Ok(Self { core, sweep, data, arguments, slots, ended: false, failed: None })
    }

    fn slot(&mut self, number: usize) -> Result<&mut Slot> {
        self.slots.get_mut(number).or_fail("no buffer of that number")
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
                What::Write => self.slots.iter().all(|slot| holds(&slot.memory, &self.data)),
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
        let (size, bytes) = payload.split_first_chunk::<4>().or_fail("no size of arguments")?;
        let wanted = self.sweep.bytes;
        let is_right = u32::from_le_bytes(*size) as usize == wanted && bytes.len() == wanted;
        ensure!(is_right, "arguments of another size");
        self.arguments.copy_from_slice(bytes);
        Ok(())
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

    fn moved(&mut self, number: usize, result: Result<u64, HgError>) -> Result<()> {
        result.doing("a transfer")?;
        let request = self.slot(number)?.request.take();
        answer(request.or_fail("nobody waits for the transfer")?, None)
    }
}

/// Answers; whether that is over at once or later, nothing waits for it.
fn answer(request: RequestHandle<usize>, verdict: Option<bool>) -> Result<()> {
    let encode = |writer: &mut Writer| match verdict {
        Some(verdict) => writer.put(&[u8::from(verdict)]),
        None => Ok(()),
    };
    request.respond(encode, 0).map(drop).map_err(|failed| failed.0).doing("answering")
}

impl Sink<usize> for Serving {
    fn request(&mut self, request: RequestHandle<usize>) {
        self.failed = self.serve(request).err().or(self.failed.take());
    }

    fn response(&mut self, _token: usize, _result: Result<Response, HgError>) {}

    fn responded(&mut self, _token: usize, result: Result<(), HgError>) {
        self.failed = result.doing("an answer").err().or(self.failed.take());
    }

    fn bulk(&mut self, token: usize, result: Result<u64, HgError>) {
        self.failed = self.moved(token, result).err().or(self.failed.take());
    }
}
