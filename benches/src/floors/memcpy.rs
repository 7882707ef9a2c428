//! Rows `floor.memcpy.*`: copying memory within one process, the floor of every bulk transfer
//! between processes that share memory. One copy, source and destination touched before.

use crate::base::failure::Result;
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::process::context::Context;

/// `bytes` of memory whose pages are there and differ.
pub(crate) fn touched(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index >> 12) as u8 ^ index as u8 | 1).collect()
}

/// A source and a destination.
#[derive(Debug)]
pub(crate) struct Copy {
    from: Vec<u8>,
    into: Vec<u8>,
}

impl Copy {
    /// Two buffers of `bytes` each.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { from: touched(bytes), into: touched(bytes) }
    }

    /// One round of copies.
    ///
    /// # Errors
    ///
    /// None.
    pub(crate) fn round(&mut self, effort: Effort, samples: &mut Samples) -> Result<()> {
        effort.each(samples, || {
            self.into.copy_from_slice(std::hint::black_box(&self.from));
            std::hint::black_box(&mut self.into);
            Ok(())
        })
    }
}

/// The row.
pub(crate) fn run(context: &Context, bytes: usize) -> Result<Figure> {
    let effort = Effort::transfers(context.quick, bytes);
    let (mut samples, mut copy) = (effort.room(1), Copy::new(bytes));
    for _ in 0..effort.rounds {
        copy.round(effort, &mut samples)?;
    }
    Ok(Figure::median(samples.bandwidth(bytes), None))
}
