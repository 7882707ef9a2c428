//! The side that calls.

use margo::hg::{Bulk, proc};
use na::{Access, Addr, LocalMem};

use super::spec::{BEGIN, CALL, END, Sweep, What};
use crate::base::{Deadline, Doing, OrFail, Result};
use crate::floors::memcpy::touched;
use crate::rows::net::hg_node::Calls;
use crate::rows::net::na_node::holds;

/// The origin.
pub(super) struct Origin {
    calls: Calls,
    target: Addr,
    sweep: Sweep,
    /// The data that is sent, or must arrive.
    data: Vec<u8>,
    buffers: Vec<LocalMem>,
}

impl Origin {
    /// Opens it, and tells the target about its buffers.
    pub(super) fn open(sweep: Sweep, address: &str, deadline: Deadline) -> Result<Self> {
        let core = sweep.open(false)?;
        let target = core.lookup(address).doing("looking the target up")?;
        let data = touched(sweep.bytes);
        let buffers = match sweep.what {
            What::Rate => Vec::new(),
            What::Read => sweep.buffers(&core, Access::WriteOnly, None)?,
            What::Write => sweep.buffers(&core, Access::ReadOnly, Some(&data))?,
        };
        let handles: Vec<Bulk> = buffers.iter().map(|memory| core.bulk_handle(memory)).collect();
        let mut calls = Calls::new(core, deadline);
        for (number, handle) in handles.iter().enumerate() {
            let told = (number as u32, handle);
            calls.start(&target, BEGIN, |writer| proc::to_writer(writer, &told), number)?;
        }
        calls.answers(handles.len())?;
        Ok(Self { calls, target, sweep, data, buffers })
    }

    /// Makes as many calls as are to be in flight, and awaits all their answers.
    pub(super) fn calls(&mut self) -> Result<()> {
        let Self { calls, target, sweep, data, .. } = self;
        let size = sweep.bytes as u32;
        for number in 0..sweep.in_flight {
            match sweep.what {
                What::Rate => calls.start(
                    target,
                    CALL,
                    |writer| {
                        writer.put(&size.to_le_bytes())?;
                        writer.put(data)
                    },
                    number,
                )?,
                What::Read | What::Write => {
                    let told = (Bulk::null(), number as u32, size);
                    calls.start(target, CALL, |writer| proc::to_writer(writer, &told), number)?;
                }
            }
        }
        calls.answers(sweep.in_flight).map(drop)
    }

    /// Ends the target and this side; whether all bytes have arrived.
    pub(super) fn end(mut self) -> Result<bool> {
        self.calls.start(&self.target, END, |_| Ok(()), 0)?;
        let verdict = self.calls.answers(1)?.or_fail("the end has no verdict")?;
        let all = || self.buffers.iter().all(|memory| holds(memory, &self.data));
        let arrived = self.sweep.what != What::Read || all();
        self.calls.core.close();
        Ok(verdict == 1 && arrived)
    }
}
