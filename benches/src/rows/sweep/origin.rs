//! The side that calls.

use std::sync::Arc;

use margo::hg::{Bulk, Core, ForwardOptions, HgError, RequestHandle, Response, RpcId, Sink};
use margo::hg::{ProcError, Writer, proc};
use na::{Access, Addr, LocalMem};

use super::{BEGIN, BUDGET, CALL, END, Sweep, What, all_hold, buffers, open};
use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;
use crate::floors::memcpy::touched;

/// The answers that have come back.
#[derive(Default)]
struct Seen {
    answers: usize,
    /// The verdict of the last answer, if it had one.
    verdict: Option<bool>,
    failed: Option<HgError>,
}

impl Sink<usize> for Seen {
    fn request(&mut self, _request: RequestHandle<usize>) {}

    fn response(&mut self, _token: usize, result: std::result::Result<Response, HgError>) {
        self.answers += 1;
        match result {
            Ok(response) => self.verdict = response.payload().first().map(|byte| *byte == 1),
            Err(error) => self.failed = Some(error),
        }
    }

    fn responded(&mut self, _token: usize, _result: std::result::Result<(), HgError>) {}

    fn bulk(&mut self, _token: usize, _result: std::result::Result<u64, HgError>) {}
}

/// The origin.
pub(super) struct Origin {
    core: Arc<Core<usize>>,
    target: Addr,
    seen: Seen,
    sweep: Sweep,
    /// The data that is sent, or must arrive.
    data: Vec<u8>,
    buffers: Vec<LocalMem>,
    deadline: Deadline,
}

impl Origin {
    /// Opens it, and tells the target about its buffers.
    pub(super) fn open(sweep: Sweep, address: &str, deadline: Deadline) -> Result<Self> {
        let core = open(sweep, false)?;
        let target = core.lookup(address).doing("looking the target up")?;
        let data = touched(sweep.bytes);
        let buffers = match sweep.what {
            What::Rate => Vec::new(),
            What::Read => buffers(&core, sweep, Access::WriteOnly, None)?,
            What::Write => buffers(&core, sweep, Access::ReadOnly, Some(&data))?,
        };
        let handles: Vec<Bulk> = buffers.iter().map(|memory| core.bulk_handle(memory)).collect();
        let seen = Seen::default();
        let mut origin = Self { core, target, seen, sweep, data, buffers, deadline };
        for (number, handle) in handles.iter().enumerate() {
            origin.start(BEGIN, number, |w| proc::to_writer(w, &(number as u32, handle)))?;
        }
        origin.wait(handles.len())?;
        Ok(origin)
    }

    /// Makes as many calls as are to be in flight, and awaits all their answers.
    pub(super) fn calls(&mut self) -> Result<()> {
        let count = self.sweep.in_flight;
        for number in 0..count {
            let size = self.sweep.bytes as u32;
            match self.sweep.what {
                What::Rate => self.start(CALL, number, |writer| {
                    writer.put(&size.to_le_bytes())?;
                    writer.put(&self.data)
                })?,
                What::Read | What::Write => self.start(CALL, number, |writer| {
                    proc::to_writer(writer, &(Bulk::null(), number as u32, size))
                })?,
            }
        }
        self.wait(count)
    }

    /// Ends the target and this side; whether all bytes have arrived.
    pub(super) fn end(mut self) -> Result<bool> {
        self.start(END, 0, |_| Ok(()))?;
        self.wait(1)?;
        let verdict = self.seen.verdict.ok_or_else(|| Failure::new("the end has no verdict"))?;
        let arrived = self.sweep.what != What::Read || all_hold(&self.buffers, &self.data);
        self.core.close();
        Ok(verdict && arrived)
    }

    fn start(
        &self,
        id: RpcId,
        number: usize,
        encode: impl FnOnce(&mut Writer) -> std::result::Result<(), ProcError>,
    ) -> Result<()> {
        let to = &self.target;
        let started = self.core.forward(to, id, ForwardOptions::default(), encode, number);
        started.map(drop).map_err(|failed| failed.0).doing("calling")
    }

    /// Polls until `count` answers have come.
    fn wait(&mut self, count: usize) -> Result<()> {
        let Self { core, seen, deadline, .. } = self;
        let mut outcome = Ok(0);
        deadline.spin_until("the answers", || {
            outcome = core.poll(BUDGET, seen);
            outcome.is_err() || seen.answers >= count
        })?;
        outcome.doing("polling")?;
        seen.answers -= count;
        seen.failed.take().map_or(Ok(()), Err).doing("an answer")
    }
}
