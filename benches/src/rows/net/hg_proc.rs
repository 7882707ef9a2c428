//! Rows `hg.proc.*`: encoding and decoding `{ u64, u32, string of 16 bytes }`, 39 bytes on the
//! wire.
//!
//! - `hg.proc.encode`: straight into a message buffer, a hundred times one behind the other: the
//!   buffer's way into the encoder and out of it is not part of an encoding.
//! - `hg.proc.decode`: from a receive buffer; the string is borrowed from it.
//! - `hg.proc.decode_owned`: the same with a `String`, so with an allocation.
//!
//! Floor: copying as many bytes, whose number the compiler does not know either.

use std::hint::black_box;

use margo::hg::Writer;
use margo::hg::proc::{self, WriterLimits, Written};
use na::MsgBuf;
use serde::{Deserialize, Serialize};

use crate::base::{Doing, Effort, Figure, OrFail, Result, Samples, fail};
use crate::process::Context;

/// Operations per sample.
const BATCH: u32 = 256;
/// Encodings in one message, which hold 39 bytes each.
const PER_MESSAGE: u32 = 100;
/// Bytes of headers before a payload.
const HEADERS: usize = 16;

#[derive(Serialize, Deserialize)]
struct Args<S> {
    offset: u64,
    len: u32,
    name: S,
}

const ARGS: Args<&str> = Args { offset: 1 << 40, len: 4096, name: "sixteen bytes ok" };

/// Alternates with the floor.
fn measure(
    context: &Context,
    per: u32,
    from: &[u8],
    round: impl FnMut(&mut Samples) -> Result<()>,
) -> Result<Figure> {
    let mut into = vec![0; from.len()];
    let floor = |floors: &mut Samples| {
        floors.batched(|| {
            let from = black_box(from);
            into[..from.len()].copy_from_slice(from);
            black_box(&mut into);
            Ok(())
        })
    };
    Effort::batches(context.quick).in_turns([BATCH, per], floor, round).map(Figure::latency)
}

/// Row `hg.proc.encode`.
pub(crate) fn encode(context: &Context) -> Result<Figure> {
    let mut buf = Some(MsgBuf::with_capacity(4096));
    measure(context, PER_MESSAGE, &proc::to_vec(&ARGS)?, |samples| {
        samples.each(|| {
            let taken = buf.take().or_fail("no buffer")?;
            let mut writer = Writer::new(taken, HEADERS, 4096, WriterLimits::default());
            for _ in 0..PER_MESSAGE {
                proc::to_writer(&mut writer, black_box(&ARGS)).doing("encoding")?;
            }
            match writer.finish() {
                Written::Fits(full) => buf = Some(black_box(full)),
                Written::Overflow(..) => fail!("the message overflows"),
            }
            Ok(())
        })
    })
}

/// Row `hg.proc.decode`.
pub(crate) fn decode(context: &Context) -> Result<Figure> {
    let bytes = proc::to_vec(&ARGS)?;
    measure(context, BATCH, &bytes, |samples| {
        samples.batched(|| {
            let args = proc::from_slice::<Args<&str>>(black_box(&bytes)).doing("decoding")?;
            black_box((args.offset, args.len, args.name));
            Ok(())
        })
    })
}

/// Row `hg.proc.decode_owned`.
pub(crate) fn decode_owned(context: &Context) -> Result<Figure> {
    let bytes = proc::to_vec(&ARGS)?;
    measure(context, BATCH, &bytes, |samples| {
        samples.batched(|| {
            let args = proc::from_slice::<Args<String>>(black_box(&bytes)).doing("decoding")?;
            black_box((args.offset, args.len, args.name));
            Ok(())
        })
    })
}
