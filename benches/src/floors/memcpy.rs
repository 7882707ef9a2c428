//! Rows `floor.memcpy.*`: copying memory within one process, the floor of every bulk transfer
//! between processes that share memory. One copy, source and destination touched before.

use std::hint::black_box;

use crate::base::{Effort, Figure, Result, Samples};
use crate::process::Context;

/// `bytes` of memory whose pages are there and differ.
pub(crate) fn touched(bytes: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes.next_multiple_of(4096));
    for page in 0..bytes.div_ceil(4096) {
        // Byte by byte it takes seconds where nothing is optimised.
        let line: [u8; 256] = std::array::from_fn(|index| page as u8 ^ index as u8 | 1);
        (0..16).for_each(|_| all.extend_from_slice(&line));
    }
    all.truncate(bytes);
    all
}

/// A round copies one buffer of `bytes` into another.
pub(crate) fn copies(bytes: usize) -> impl FnMut(&mut Samples) -> Result<()> {
    let (from, mut into) = (touched(bytes), touched(bytes));
    move |samples| {
        samples.each(|| {
            into.copy_from_slice(black_box(&from));
            black_box(&mut into);
            Ok(())
        })
    }
}

/// The row.
pub(crate) fn run(context: &Context, bytes: usize) -> Result<Figure> {
    let mut samples = Effort::transfers(context.quick, bytes).alone(1, copies(bytes))?;
    Ok(Figure::median(samples.bandwidth(bytes), None))
}
